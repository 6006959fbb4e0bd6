"""Brings an ONNX model into the form that the rules read: a recent opset, constants folded, functions written out."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from anynpu.graph.attributes import attribute
from anynpu.graph.fold import copied, fold_constants, same_nodes, static_shapes, with_nodes
from anynpu.graph.functions import is_function, written_out
from anynpu.graph.idle import without_idle
from anynpu.graph.opset import converted, opset_of
from anynpu.graph.passes import Pass
from anynpu.graph.shapes import infer
from anynpu.graph.simplify import without_empty_pieces
from anynpu.graph.softmax import BY_AXIS
from anynpu.lowering.lower import nodes_by_family
from anynpu.lowering.recognise import recognised
from anynpu.lowering.rewrite import rewritten
from anynpu.lowering.table import RULES

# Older opsets state axes and limits as attributes, which the rules read too, but broadcast and round otherwise.
_OLDEST = 11
_TARGET = 18
_SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")
"""Operators that old opsets have over all axes from one on."""
_PARTS = ("rows/shape", "shape", "rows", "shares")
# How deep functions are made of functions.
_NESTED = 4
# A shape that is computed is known once the shapes before it are.
_ROUNDS = 64


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with its shapes inferred and whatever is constant computed, again while that finds more."""
    for _ in range(_ROUNDS):
        before = model
        model = infer(fold_constants(infer(model, strict=False)), strict=False)
        if same_nodes(before, model):
            break
    return model


def _is_recent(model: onnx.ModelProto) -> str:
    versions = [item.version for item in model.opset_import if item.domain in ("", "ai.onnx")]
    if not versions or min(versions) >= _TARGET:
        return "the rules read its opset"
    nodes_by_family()
    # ONNX writes ReduceL1, Softsign and others as functions in later opsets alone.
    written = min(versions) >= _OLDEST and not any(map(_is_function, model.graph.node))
    return "the rules read its opset" if written else ""


def _converted_up(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    try:
        return converted(model, _TARGET), 1
    except (RuntimeError, ValueError, onnx.checker.ValidationError, version_converter.ConvertError):
        return model, 0  # an operator that has no adapter may still have a rule


def _is_function(node: onnx.NodeProto) -> bool:
    """Tells whether ONNX itself writes an operator as others, and no rule has a shorter form."""
    return node.op_type not in RULES and is_function(node)


def _without_functions(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    nodes_by_family()  # an operator that has a rule is not written out
    changed = 0
    for _ in range(_NESTED):
        if count := sum(map(_is_function, model.graph.node)):
            plain = folded(written_out(copied(model), _is_function))
            model, changed = without_idle(infer(without_empty_pieces(plain)[0]))[0], changed + count
    return model, changed


def _recognised(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    result = recognised(copied(model))
    return result, int(not same_nodes(result, model))


def _is_old_softmax(model: onnx.ModelProto) -> str:
    kinds = any(node.op_type in _SOFTMAXES for node in model.graph.node)
    return "" if kinds and opset_of(model) < BY_AXIS else "it has none of an old opset"


def _along_rows(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """Returns the model whose softmaxes of old opsets, over all axes from one on, are over the last axis of rows."""
    shapes, nodes, stored = static_shapes(model.graph), list[onnx.NodeProto](), list[onnx.TensorProto]()
    for node in model.graph.node:
        shape = shapes.get(node.input[0], ()) if node.op_type in _SOFTMAXES else ()
        if not shape:
            nodes.append(node)
            continue
        source, result = node.input[0], node.output[0]
        axis = int(attribute(node, "axis", 1)) % len(shape)
        if axis == len(shape) - 1:
            nodes.append(helper.make_node(node.op_type, [source], [result], name=node.name, axis=-1))
            continue
        rows, names = (math.prod(shape[:axis]), math.prod(shape[axis:])), [f"{result}/{part}" for part in _PARTS]
        stored += [numpy_helper.from_array(np.array(n), name) for n, name in zip((rows, shape), names, strict=False)]
        nodes += [
            helper.make_node("Reshape", [source, names[0]], [names[2]]),
            helper.make_node(node.op_type, [names[2]], [names[3]], name=node.name, axis=-1),
            helper.make_node("Reshape", [names[3], names[1]], [result]),
        ]
    written = with_nodes(model, nodes)
    written.graph.initializer.extend(stored)
    return folded(written), 1


def _rewritten(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    result = rewritten(model)
    return result, int(result is not model)


PREPARING: tuple[Pass[onnx.ModelProto], ...] = (
    Pass("opset", "an old opset is converted up", _converted_up, requires=_is_recent),
    Pass("fold", "shapes are inferred, and what is constant is computed", lambda model: (folded(model), 1)),
    Pass("softmax-rows", "a softmax over several axes is one over rows", _along_rows, requires=_is_old_softmax),
    Pass("functions", "operators that ONNX defines by others are written out", _without_functions),
    Pass("rewrite", "operators that TFLite lacks are written as others", _rewritten),
    Pass("recognise", "written-out GELU, hard swish and softplus become one node each", _recognised),
)
"""What brings a model into the form that the rules read; what cannot be converted or written out stays as it is."""

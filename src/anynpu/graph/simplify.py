"""Simplifies a model without changing what it computes, tried on one input; the import proves it on the samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from anynpu.artifact import PassEffect
from anynpu.errors import IntegrityError
from anynpu.foreign import ONNX, mapped
from anynpu.graph import passes
from anynpu.graph.affine import BATCH_NORM, CONSTANTS, DENSE, PLAIN
from anynpu.graph.agreement import Feeds
from anynpu.graph.dilated import DILATED
from anynpu.graph.fold import copied, fold_constants, names_read, same_nodes, static_shapes, with_nodes
from anynpu.graph.idle import IDLE, JOINED, PADDING, TWINS
from anynpu.graph.means import MEANS, VARIANCES
from anynpu.graph.passes import Pass, Repeated
from anynpu.graph.proof import executed
from anynpu.graph.run import random_feeds
from anynpu.graph.shapes import dtype_of, infer, shape_of
from anynpu.graph.softmax import SOFTMAX

_ROUNDS = 8
_STORED_APART = 4
"""The version of ONNX files from which on a constant need not be an input."""


def simplify(model: ModelProto, feeds: Sequence[Feeds] = ()) -> tuple[ModelProto, tuple[PassEffect, ...]]:
    """Returns an equal model with fewer nodes, constants folded, dead and idle nodes gone, and what each pass did.

    It is compared with the given one on `feeds`, or on random numbers where there are none.
    """
    simpler, effects = passes.run(SIMPLIFYING, model, executed(feeds or [random_feeds(model, seed=0)]))
    if not _same_border(model, simpler):
        raise IntegrityError("simplification changed the inputs or outputs of the model", "report this model")
    return simpler, tuple(effect for effect in effects if effect.changed or effect.dropped)


def without_stored_inputs(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model whose constants are not inputs too, as old files have them, and how many were."""
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    gone = len(model.graph.input) - len(inputs)
    if not gone:
        return model, 0
    result = copied(model)
    del result.graph.input[:]
    result.graph.input.extend(inputs)
    result.ir_version = max(model.ir_version, _STORED_APART)
    return result, gone


def folded(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with everything computed that constants and known shapes tell, and in how many rounds."""
    rounds = 0
    for _ in range(_ROUNDS):
        # Lenient on purpose: what inference cannot tell stays unfolded, and the equality check has the last word.
        result = fold_constants(infer(model, strict=False))
        if same_nodes(result, model):
            return result, max(rounds, 1)  # shapes are inferred, at least
        model, rounds = result, rounds + 1
    return model, rounds


def inlined(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model without functions of its own, and whether it had any."""
    import onnx_ir
    from onnx_ir.passes import Sequential, common

    with mapped(ONNX, "the model cannot be simplified", hint="export the model again"):
        result = Sequential(
            common.InlinePass(),
            common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
            common.RemoveUnusedOpsetsPass(),
        )(onnx_ir.from_proto(model))
        return onnx_ir.to_proto(result.model), int(result.modified)


def without_unused(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model without nodes and constants that no result needs, and how many there were."""
    read, kept = {value.name for value in model.graph.output}, list[onnx.NodeProto]()
    for node in reversed(model.graph.node):
        if read & set(node.output):
            read |= names_read(node)
            kept.append(node)
    gone = len(model.graph.node) - len(kept) + sum(tensor.name not in read for tensor in model.graph.initializer)
    return (with_nodes(model, reversed(kept)), gone) if gone else (model, 0)


def _is_endless(tensor: onnx.TensorProto) -> bool:
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    return tensor.data_type in kinds and bool(np.isinf(numpy_helper.to_array(tensor)).any())


def without_infinities(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with the largest numbers for infinite constants, and how many constants had one."""
    result, changed = copied(model), 0
    for tensor in result.graph.initializer:
        if _is_endless(tensor):
            finite = np.nan_to_num(numpy_helper.to_array(tensor), nan=np.nan)
            tensor.CopyFrom(numpy_helper.from_array(finite, tensor.name))
            changed += 1
    return result, changed


def without_empty_pieces(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with concatenations and splits of pieces that have elements, and how many had others."""
    empty = {name for name, shape in static_shapes(model.graph).items() if 0 in shape}
    if not any(node.op_type == "Concat" and empty & set(node.input) for node in model.graph.node):
        return model, 0
    result, changed = copied(model), 0
    for node in result.graph.node:
        pieces = [name for name in node.input if name not in empty]
        if node.op_type == "Concat" and 0 < len(pieces) < len(node.input):
            del node.input[:]
            node.input.extend(pieces)
            changed += 1
    read = {name for node in result.graph.node for name in names_read(node)}
    for node in result.graph.node:
        pieces = [name for name in node.output if name not in empty]
        if node.op_type == "Split" and len(pieces) == 1 < len(node.output) and not empty & read & set(node.output):
            whole = helper.make_node("Identity", node.input[:1], pieces, name=node.name)
            node.CopyFrom(whole)
            changed += 1
    return result, changed


SIMPLIFYING: passes.Plan[ModelProto] = (
    Pass("constants", "what has a stored value is not an input", without_stored_inputs),
    Pass(
        "functions",
        "functions of the model are written out",
        inlined,
        requires=lambda model: "" if len(model.functions) or len(model.opset_import) > 1 else "it has none",
    ),
    Pass("fold", "what depends on constants and known shapes alone is computed", folded),
    Pass("empty-pieces", "pieces without elements leave the concatenations that read them", without_empty_pieces),
    PADDING,
    DENSE,
    PLAIN,
    MEANS,
    VARIANCES,
    DILATED,
    Repeated((IDLE, JOINED, TWINS)),
    SOFTMAX,
    BATCH_NORM,
    CONSTANTS,
    Pass("unused", "nodes and constants that no result needs go", without_unused),
    Pass(
        "finite-masks",
        "infinite constants, which have no range, become the largest numbers",
        without_infinities,
        requires=lambda model: "" if any(map(_is_endless, model.graph.initializer)) else "its constants are finite",
    ),
)


def _same_border(model: ModelProto, simpler: ModelProto) -> bool:
    before, after = model.graph, simpler.graph
    stored = {tensor.name for tensor in before.initializer}
    wanted = [_signature(value) for value in before.input if value.name not in stored]
    stored = {tensor.name for tensor in after.initializer}
    inputs = [_signature(value) for value in after.input if value.name not in stored]
    # Inference may settle an output dimension that the file left open; it may not change a known one.
    pairs = zip(before.output, after.output, strict=False)
    outputs_agree = len(before.output) == len(after.output) and all(_agrees(old, new) for old, new in pairs)
    return wanted == inputs and outputs_agree


def _signature(value: ValueInfoProto) -> tuple[Any, ...]:
    return value.name, dtype_of(value), shape_of(value)


def _agrees(old: ValueInfoProto, new: ValueInfoProto) -> bool:
    if old.name != new.name or dtype_of(old) != dtype_of(new):
        return False
    if not old.type.tensor_type.HasField("shape"):
        return True
    a, b = shape_of(old), shape_of(new)
    return len(a) == len(b) and all(x == y or isinstance(x, str) for x, y in zip(a, b, strict=True))

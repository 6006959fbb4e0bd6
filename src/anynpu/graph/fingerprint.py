"""The canonical fingerprint of a network: equal for every export of one network, different for different networks.

A Merkle hash runs from the inputs (position, shape, type) through terms (see `terms`) to the outputs in order.
Names, node order, opset, spelling of defaults and what an exporter folded do not reach it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import onnx
import onnx.inliner
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper

from anynpu.graph import windows  # noqa: F401  its rules join RULES
from anynpu.graph.canonical import RULES, Site
from anynpu.graph.fold import fold_constants, inner_graphs, static_shapes
from anynpu.graph.shapes import dtype_of, infer, inputs_of, shape_of
from anynpu.graph.terms import Term, const, make

_VERSION = "anynpu-fingerprint-1"
_ROUNDS = 6
_GRAPHS = {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}

Terms = dict[str, Term]


def fingerprint(model: ModelProto) -> str:
    """Returns the canonical hash of a network as 64 hexadecimal digits."""
    prepared = _prepare(model)
    # A symbol is a name as well: every dynamic dimension counts as one.
    signature = [
        (tuple(dim if isinstance(dim, int) else "?" for dim in shape_of(value)), dtype_of(value))
        for value in inputs_of(prepared)
    ]
    terms = {}
    for position, (value, (shape, dtype)) in enumerate(zip(inputs_of(prepared), signature, strict=True)):
        numbers = tuple(dim for dim in shape if isinstance(dim, int))
        terms[value.name] = make("Input", [], numbers if len(numbers) == len(shape) else None, dtype, position=position)
    opset = next((o.version for o in prepared.opset_import if o.domain in ("", "ai.onnx")), 1)
    outputs = [term.digest for term in _outputs(prepared.graph, terms, opset)]
    return hashlib.sha256(repr((_VERSION, signature, outputs)).encode()).hexdigest()


def _prepare(model: ModelProto) -> ModelProto:
    """Returns the model without functions and with everything folded that constants and shapes decide."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    for _ in range(_ROUNDS):
        inferred = infer(model, strict=False)
        # A Cast needs no second operand and so can be folded, unlike CastLike
        types = _element_types(inferred.graph)
        for node in inferred.graph.node:
            kind = types.get(node.output[0], 0) if node.op_type == "CastLike" else 0
            if kind:
                node.op_type = "Cast"
                del node.input[1:], node.attribute[:]
                node.attribute.append(onnx.helper.make_attribute("to", kind))
        folded = fold_constants(inferred)
        if len(folded.graph.node) == len(model.graph.node):
            return folded
        model = folded
    return model


def _element_types(graph: GraphProto) -> dict[str, int]:
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    return types


def _outputs(graph: GraphProto, outside: Mapping[str, Term], opset: int) -> list[Term]:
    """Returns the terms of a graph's outputs, given those of its inputs and of the graph around it."""
    terms: Terms = dict(outside)
    terms.update({tensor.name: const(numpy_helper.to_array(tensor)) for tensor in graph.initializer})
    for sparse in graph.sparse_initializer:
        parts = [const(numpy_helper.to_array(part)) for part in (sparse.values, sparse.indices)]
        terms[sparse.values.name] = make("SparseConstant", parts, tuple(sparse.dims), parts[0].dtype)
    shapes, types = static_shapes(graph), _element_types(graph)
    for node in graph.node:
        kinds = [types.get(name, 0) for name in node.output]
        # Attributes count where they differ from their default, subgraphs by the terms of their outputs
        defaults = _defaults(node, opset)
        plain = {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in node.attribute if a.type not in _GRAPHS}
        attributes = {name: value for name, value in plain.items() if name not in defaults or defaults[name] != value}
        bodies = []
        for inner in inner_graphs(node):
            inside = {v.name: make("Argument", [], None, "", position=i) for i, v in enumerate(inner.input)}
            bodies.append([term.digest for term in _outputs(inner, terms | inside, opset)])
        site = Site(
            op=node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}",
            inputs=[terms.get(name) if name else None for name in node.input],
            attributes=attributes | ({"bodies": bodies} if bodies else {}),
            shapes=[shapes.get(name) for name in node.output],
            dtype=str(onnx.helper.tensor_dtype_to_np_dtype(kinds[0]).name) if kinds and kinds[0] else "",
            opset=opset,
        )
        rule = RULES.get(site.op)
        results = (rule(site) if rule else None) or [site.generic()]
        # A rule may speak of the first output only, as that of Dropout does.
        extra = range(len(results), len(node.output))
        results = [*results, *(make("Output", [site.generic()], None, "", place=place) for place in extra)]
        terms.update(zip(node.output, results, strict=False))
    return [terms[value.name] for value in graph.output]


def _defaults(node: NodeProto, opset: int) -> dict[str, object]:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: _plain(onnx.helper.get_attribute_value(attribute.default_value))
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type
    }


def _plain(value: object) -> object:
    """Returns an attribute's value as something whose text is the same everywhere."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, onnx.TensorProto):
        return const(numpy_helper.to_array(value)).digest
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, int | str):
        return value
    if isinstance(value, list | tuple) or hasattr(value, "__iter__"):
        return tuple(_plain(item) for item in value)
    return repr(value)

"""Operators that ONNX itself defines by others, written out as it defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import defs, inliner

from anynpu.graph.opset import STANDARD


def is_function(node: onnx.NodeProto) -> bool:
    """Tells whether ONNX itself writes an operator as others."""
    if node.domain not in STANDARD or not defs.has(node.op_type):
        return False
    schema: Any = defs.get_schema(node.op_type)  # its stubs lack what follows
    return bool(schema.has_function or schema.has_context_dependent_function)


def written_out(model: onnx.ModelProto, chosen: Callable[[onnx.NodeProto], bool] = is_function) -> onnx.ModelProto:
    """Returns the model with the chosen functions of others written out; it may change the model that it is given."""
    names = sorted({("", node.op_type) for node in model.graph.node if chosen(node)})
    for node in model.graph.node:
        if chosen(node):  # the inliner forgets attributes that are not given
            schema, stated = defs.get_schema(node.op_type), {item.name for item in node.attribute}
            defaults = [item.default_value for name, item in schema.attributes.items() if name not in stated]
            node.attribute.extend(item for item in defaults if item.type != onnx.AttributeProto.UNDEFINED)
    for name in names:
        try:
            model = inliner.inline_selected_functions(model, [name], inline_schema_functions=True)
        except (RuntimeError, onnx.checker.ValidationError):
            continue  # the operator is refused by its name
    return model


def without_idle_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model without copies and casts to the type that a tensor has: function bodies are full of them."""
    kinds = {item.name: item.data_type for item in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kinds[value.name] = value.type.tensor_type.elem_type
    results, same, nodes = {value.name for value in model.graph.output}, dict[str, str](), list[onnx.NodeProto]()
    for node in model.graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        idle = node.op_type == "Identity" or (
            node.op_type in ("Cast", "CastLike") and kinds.get(node.input[0], 0) == kinds.get(node.output[0], -1)
        )
        if idle and node.output[0] not in results:
            same[node.output[0]] = node.input[0]
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model

"""Operators that ONNX itself defines by others, written out as it defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import defs, helper, inliner

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
    typed = {value.name for value in model.graph.value_info}
    stored = [item for item in model.graph.initializer if names and item.name not in typed]  # it looks for types here
    model.graph.value_info.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in stored)
    for name in names:
        try:
            model = inliner.inline_selected_functions(model, [name], inline_schema_functions=True)
        except (RuntimeError, onnx.checker.ValidationError):
            continue  # the operator is refused by its name
    return model

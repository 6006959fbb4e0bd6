"""How large the numbers of an integer input may be: the size of the table that they are looked up in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx

SAME_VALUES = {"Cast", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
"""Operators whose first input holds the values of their output."""
TABLES = {"Gather": 1, "GatherElements": 1, "OneHot": 0, "ScatterElements": 1}
"""Operators that look something up or write it down, and which of their inputs holds the numbers."""


def index_sizes(model: onnx.ModelProto) -> dict[str, int]:
    """Returns how many rows the smallest table has that an integer input is looked up in, by the input's name."""
    from onnx import TensorProto
    from onnx.numpy_helper import to_array

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    kinds = (TensorProto.INT32, TensorProto.INT64)
    origin = {v.name: v.name for v in graph.input if v.type.tensor_type.elem_type in kinds and v.name not in constants}
    sizes: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in SAME_VALUES and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        place = TABLES.get(node.op_type)
        if place is None or node.input[place] not in origin:
            continue
        name = origin[node.input[place]]
        table = constants.get(node.input[1 - place])
        if table is None:
            continue
        if node.op_type == "OneHot":
            rows = int(np.ravel(to_array(table))[0])
        else:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            rows = table.dims[axis]
        sizes[name] = min(rows, sizes.get(name, rows))
    return sizes

"""Stores what a given .tflite file computes from shapes and constants alone: no chip needs to compute it again."""

from __future__ import annotations

from typing import Any

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.litert import REFERENCE, open_interpreter
from anynpu.runtime.tflite_file import operator_names, pack_model

SHAPES = ("SHAPE", "RANK")
"""Operators that read the shape of a tensor and none of its values."""
KEPT = ("DEQUANTIZE", "DENSIFY")
"""Operators that say how a constant is stored."""
MOST_ELEMENTS = 1 << 16
"""How many elements a stored result may have: larger ones were left to be computed on purpose."""


def store_known(model: Any) -> int:
    """Stores the results of operators that no input reaches in a model, and returns how many operators that spares."""
    from ai_edge_litert.schema_py_generated import BufferT

    graph = model.subgraphs[0]
    stored = [buffer.data is not None and len(buffer.data) > 0 for buffer in model.buffers]
    known = {i for i, t in enumerate(graph.tensors) if stored[t.buffer]} | {-1}
    spared = []
    for kind, op in zip(operator_names(model), graph.operators, strict=True):
        reached = {*op.inputs} - known
        if kind in KEPT or (reached and kind not in SHAPES) or {*op.outputs} & {*graph.outputs}:
            continue
        known |= {*op.outputs}
        spared.append(op)
    if not spared:
        return 0
    try:
        interpreter = open_interpreter(pack_model(model), REFERENCE, keep=True)
        for detail in interpreter.get_input_details():
            interpreter.set_tensor(detail["index"], np.zeros(detail["shape"], detail["dtype"]))
        interpreter.invoke()
    except (IntegrityError, ValueError, RuntimeError):  # whoever runs the file for its results says what is wrong
        return 0
    values = {i: interpreter.get_tensor(i) for op in spared for i in op.outputs}
    small = [op for op in spared if all(values[i].size <= MOST_ELEMENTS for i in op.outputs)]
    for op in small:
        for index in op.outputs:
            tensor, buffer = graph.tensors[index], BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(values[index]).tobytes(), np.uint8)
            tensor.buffer, tensor.shape = len(model.buffers), np.asarray(values[index].shape, np.int32)
            tensor.shapeSignature = None
            model.buffers.append(buffer)
    graph.operators = [op for op in graph.operators if not any(op is other for other in small)]
    return len(small)

"""YOLOv8n for pictures of another size: the same weights, with the anchors of the decode made anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

STRIDES = (8, 16, 32)
PLACES = 8400
"""Places of the three maps at 640 x 640."""


def anchors(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centres of the cells of all maps, [1, 2, places] in cells, and their strides, [1, places]."""
    centres, strides = [], []
    for stride in STRIDES:
        side = np.arange(size // stride, dtype=np.float32) + np.float32(0.5)
        y, x = np.meshgrid(side, side, indexing="ij")
        centres.append(np.stack([x.ravel(), y.ravel()]))
        strides.append(np.full(x.size, stride, np.float32))
    return np.concatenate(centres, axis=1)[np.newaxis], np.concatenate(strides)[np.newaxis]


def resized(model: Path, size: int, out: Path) -> Path:
    """Writes the model for pictures of `size` x `size`, a multiple of 32."""
    net = onnx.load(str(model))
    centres, strides = anchors(size)
    for dim in net.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    net.graph.output[0].type.tensor_type.shape.dim[2].dim_value = strides.size
    del net.graph.value_info[:]
    for node in net.graph.node:
        if node.op_type != "Constant":
            continue
        (value,) = (a.t for a in node.attribute if a.name == "value")
        data = numpy_helper.to_array(value)
        if data.dtype == np.int64:
            data = np.where(data == PLACES, strides.size, data)
        elif data.shape == (1, 2, PLACES):
            data = centres
        elif data.shape == (1, PLACES):
            data = strides
        value.CopyFrom(numpy_helper.from_array(data, value.name))
    onnx.checker.check_model(net, full_check=True)
    onnx.save(net, str(out))
    return out

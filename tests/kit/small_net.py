"""Small ONNX files and what tests look at after a command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 3, 8, 8)


def write_net(path: Path, seed: int = 0, hidden: int = 4, batch: int | str = 1, poison: float | None = None) -> Path:
    """Writes a convolution, a ReLU and a matrix product; `hidden` sets the size, `poison` one weight."""
    rng = np.random.default_rng(seed)
    kernel = (rng.standard_normal((hidden, 3, 3, 3)) * 0.2).astype(np.float32)
    matrix = (rng.standard_normal((hidden * 64, 5)) * 0.1).astype(np.float32)
    if poison is not None:
        matrix[3, 2] = poison
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["l"]),
        helper.make_node("MatMul", ["l", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *SHAPE[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5])],
        [numpy_helper.from_array(kernel, "w"), numpy_helper.from_array(matrix, "m")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(model)
    return path


def left_behind(folder: Path) -> list[str]:
    """Returns what lies in a folder, hidden or not."""
    return sorted(p.name for p in folder.iterdir())

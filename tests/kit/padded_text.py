"""A text model whose padding is louder than its words, and its samples."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TOKENS, WIDTH, LOUD = 12, 8, 40.0


def net(masked: bool = True, pooled: bool = True) -> onnx.ModelProto:
    """The sum of embedded tokens, each through a dense layer; padding is the loudest token. What is not `masked` is
    summed with padding, what is not `pooled` has a row for each token."""
    draw = np.random.default_rng(0)
    table = draw.normal(0, 1, (20, WIDTH))
    table[0] = LOUD
    stored = {"table": table, "weights": draw.normal(0, 1, (WIDTH, WIDTH)), "bias": draw.normal(0, 1, WIDTH)}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("MatMul", ["embedded", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["rows" if pooled else "y"]),
    ]
    if pooled:
        nodes += [
            helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["real", "last"], ["columns"]),
            helper.make_node("Mul", ["rows", "columns"], ["kept"]),
            helper.make_node("ReduceMean", ["kept" if masked else "rows"], ["y"], axes=[1], keepdims=0),
        ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, (1, TOKENS)) for name in ("ids", "mask")]
    shape = (1, WIDTH) if pooled else (1, TOKENS, WIDTH)
    constants = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in stored.items()]
    constants.append(numpy_helper.from_array(np.asarray([-1], np.int64), "last"))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "net", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def samples(count: int = 40, dtype: type = np.int64) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    mask = np.arange(TOKENS) < draw.integers(3, TOKENS, (count, 1))
    return {"ids": (draw.integers(1, 20, (count, TOKENS)) * mask).astype(dtype), "mask": mask.astype(dtype)}

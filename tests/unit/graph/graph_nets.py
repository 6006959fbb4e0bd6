"""Small models that the graph tests share."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper


def parse(text, opset=17, **tensors):
    """Returns the model of an ONNX text graph, with `tensors` as its initializers."""
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in tensors.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def weights(*shape, seed=0):
    """Returns seeded float32 weights."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def run(model, *arrays):
    """Returns the outputs of onnxruntime, without its own optimisations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})

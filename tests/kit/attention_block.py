"""A block of a transformer with one loud channel, its samples, and what it computes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper

from anynpu.graph.run import Session

TOKENS, WIDTH = 6, 16
NODE = helper.make_node


def norm(x, y, written, stored):
    """Returns a layer norm, or the same written out as exporters of older opsets do."""
    if not written:
        return [NODE("LayerNormalization", [x, f"{y}.scale", f"{y}.bias"], [y], name=y, epsilon=1e-5)]
    stored |= {"two": np.float32(2), "epsilon": np.float32(1e-5)}
    return [
        NODE("ReduceMean", [x], [f"{y}.m"], axes=[-1]),
        NODE("Sub", [x, f"{y}.m"], [f"{y}.c"]),
        NODE("Pow", [f"{y}.c", "two"], [f"{y}.q"]),
        NODE("ReduceMean", [f"{y}.q"], [f"{y}.v"], axes=[-1]),
        NODE("Add", [f"{y}.v", "epsilon"], [f"{y}.e"]),
        NODE("Sqrt", [f"{y}.e"], [f"{y}.r"]),
        NODE("Div", [f"{y}.c", f"{y}.r"], [f"{y}.d"]),
        NODE("Mul", [f"{y}.d", f"{y}.scale"], [f"{y}.g"]),
        NODE("Add", [f"{y}.g", f"{y}.bias"], [y]),
    ]


def block(mask=-1e9, written=False, seed=0):
    """An attention of one head and a dense layer, each added to what went in and normalised; one channel is loud."""
    draw = np.random.default_rng(seed)
    loud = np.where(np.arange(WIDTH) == 3, 40.0, 1.0)
    weight = lambda: draw.normal(0, WIDTH**-0.5, (WIDTH, WIDTH))  # noqa: E731
    stored = {name: weight() for name in ("q", "k", "v", "up")} | {name: weight() * loud for name in ("out", "down")}
    for name in ("n0", "n1", "n2"):
        stored |= {f"{name}.scale": draw.uniform(0.2, 2, WIDTH), f"{name}.bias": draw.normal(0, 0.3, WIDTH)}
    stored["mask"] = np.where(np.arange(TOKENS) < TOKENS - 2, 0.0, mask)
    stored["end"] = weight()
    nodes = [
        *norm("x", "n0", written, stored),
        *(NODE("MatMul", ["n0", name], [f"{name}.y"]) for name in "qkv"),
        NODE("Transpose", ["k.y"], ["k.t"], perm=[0, 2, 1]),
        NODE("MatMul", ["q.y", "k.t"], ["scores"]),
        NODE("Add", ["scores", "mask"], ["masked"]),
        NODE("Softmax", ["masked"], ["shares"], axis=-1),
        NODE("MatMul", ["shares", "v.y"], ["mixed"]),
        NODE("MatMul", ["mixed", "out"], ["out.y"]),
        NODE("Add", ["n0", "out.y"], ["s1"]),
        *norm("s1", "n1", written, stored),
        NODE("MatMul", ["n1", "up"], ["up.y"]),
        NODE("Tanh", ["up.y"], ["h"]),
        NODE("MatMul", ["h", "down"], ["down.y"]),
        NODE("Add", ["n1", "down.y"], ["s2"]),
        *norm("s2", "n2", written, stored),
        NODE("MatMul", ["n2", "end"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "block",
        [value("x", TensorProto.FLOAT, [1, TOKENS, WIDTH])],
        [value("y", TensorProto.FLOAT, [1, TOKENS, WIDTH])],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def stack(count):
    """Several blocks, one behind the other, which look alike but for their weights."""
    model = compose.add_prefix(block(-30.0), "0.")
    for number in range(1, count):
        behind = compose.add_prefix(block(-30.0, seed=number), f"{number}.")
        model = compose.merge_models(model, behind, io_map=[(f"{number - 1}.y", f"{number}.x")])
    return model


SAMPLES = np.random.default_rng(5).normal(0, 1, (24, TOKENS, WIDTH)).astype(np.float32)


def run(model):
    session = Session(model)
    return np.concatenate([session.run({"x": sample[np.newaxis]})[0] for sample in SAMPLES])

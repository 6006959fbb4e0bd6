"""A tensor of the lowered graph that has the name of an ONNX tensor holds its values: layers, ranges and training
compare the two by name."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from lowered_nets import net, samples
from onnx import helper

from anynpu.lowering.lower import lower
from anynpu.lowering.net import runner

NODE = helper.make_node


def drawn(**shapes):
    return {name: np.random.default_rng(at).normal(0, 1, shape).astype(np.float32)
            for at, (name, shape) in enumerate(shapes.items())}  # fmt: skip


NETS = {
    "a scaled convolution with a bias of its own": net(
        [NODE("Conv", ["x", "w"], ["a"]), NODE("Mul", ["a", "m"], ["b"]), NODE("Add", ["b", "c"], ["d"]),
         NODE("Relu", ["d"], ["e"]), NODE("Conv", ["e", "v"], ["y"])],
        {"x": (1, 3, 6, 6)}, drawn(w=(4, 3, 3, 3), m=(4, 1, 1), c=(4, 1, 1), v=(2, 4, 1, 1)),
    ),
    "a product of three axes with a layer's scale, and a sum": net(
        [NODE("MatMul", ["x", "w"], ["a"]), NODE("Mul", ["a", "gamma"], ["b"]), NODE("Add", ["b", "x"], ["d"]),
         NODE("MatMul", ["d", "w"], ["e"]), NODE("Add", ["e", "c"], ["f"]), NODE("Sigmoid", ["f"], ["y"])],
        {"x": (1, 5, 8)}, drawn(w=(8, 8), gamma=(8,), c=(8,)),
    ),
    "a product that is cut into heads, scaled behind": net(
        [NODE("MatMul", ["x", "w"], ["a"]), NODE("Reshape", ["a", "heads"], ["b"]), NODE("Mul", ["b", "s"], ["c"]),
         NODE("Transpose", ["c"], ["d"], perm=[0, 2, 1, 3]), NODE("Softmax", ["d"], ["y"])],
        {"x": (1, 4, 6)},
        {**drawn(w=(6, 6)), "heads": np.asarray([1, 4, 2, 3]), "s": np.asarray(0.5, np.float32)},
    ),
    "a normalised batch": net(
        [NODE("Conv", ["x", "w"], ["a"]),
         NODE("BatchNormalization", ["a", "g", "h", "i", "v"], ["b"]), NODE("LeakyRelu", ["b"], ["y"])],
        {"x": (1, 3, 6, 6)}, {**drawn(w=(4, 3, 1, 1), g=(4,), h=(4,), i=(4,)), "v": np.ones(4, np.float32)},
    ),
    "a factor ahead of weights": net(
        [NODE("Relu", ["x"], ["a"]), NODE("Mul", ["a", "s"], ["b"]), NODE("MatMul", ["b", "w"], ["y"])],
        {"x": (1, 5, 8)}, drawn(s=(8,), w=(8, 4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", NETS.values(), ids=NETS.keys())
def test_equal_names_are_equal_values(model):
    names = [name for node in model.graph.node for name in node.output]
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    sample = {name: values[:1] for name, values in samples(model).items()}
    wanted = dict(zip(names, session.run(names, sample), strict=True))
    found = runner(lower(model))(sample)
    shared = wanted.keys() & found.keys()
    assert "y" in shared and len(shared) > 1
    for name in shared:
        pairs = (np.sort(each[name], axis=None) for each in (wanted, found))  # the axes may have another order
        np.testing.assert_allclose(*pairs, atol=1e-4, err_msg=name)

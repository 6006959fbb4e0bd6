"""A tensor of the lowered graph that has the name of an ONNX tensor holds its values: layers, ranges and training
compare the two by name."""

from __future__ import annotations

import numpy as np
import pytest
from lowered_nets import names_agree, net
from onnx import helper

from anynpu.lowering.graph import free_name

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
    "means over words that are there": net(
        [NODE("Mul", ["x", "mask"], ["a"]), NODE("ReduceSum", ["a", "words"], ["b"], keepdims=0),
         NODE("ReduceSum", ["mask", "words"], ["n"], keepdims=0), NODE("Div", ["b", "n"], ["c"]),
         NODE("ReduceL2", ["c", "last"], ["d"]), NODE("Div", ["c", "d"], ["y"])],
        {"x": (1, 5, 8), "mask": (1, 5, 1)}, {"words": np.asarray([1]), "last": np.asarray([1])},
    ),
    "a factor ahead of weights": net(
        [NODE("Relu", ["x"], ["a"]), NODE("Mul", ["a", "s"], ["b"]), NODE("MatMul", ["b", "w"], ["y"])],
        {"x": (1, 5, 8)}, drawn(s=(8,), w=(8, 4)),
    ),
    "a normalisation ahead of weights, its rows moved between": net(
        [NODE("LayerNormalization", ["x", "g", "h"], ["a"]), NODE("Reshape", ["a", "rows"], ["b"]),
         NODE("Gemm", ["b", "w", "c"], ["d"]), NODE("Relu", ["d"], ["e"]), NODE("Reshape", ["e", "whole"], ["y"])],
        {"x": (1, 5, 8)},
        {**drawn(g=(8,), h=(8,), w=(8, 4), c=(4,)), "rows": np.asarray([5, 8]), "whole": np.asarray([1, 5, 4])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", NETS.values(), ids=NETS.keys())
def test_equal_names_are_equal_values(model):
    shared = names_agree(model)
    assert "y" in shared and len(shared) > 1


def test_a_free_name_is_found_without_asking_for_each_before_it():
    """A recurrent layer written out makes thousands of one stem: asking for each took minutes."""

    class Asked(set):
        count = 0

        def __contains__(self, name):
            self.count += 1
            return super().__contains__(name)

    taken = Asked()
    for number in range(3000):
        name = free_name("part", taken)
        assert name == (f"part~{number}" if number else "part")
        taken.add(name)
    assert taken.count < 3000 * 30 and free_name("other", taken) == "other"

"""Exports of detectors that end in a decode, written by hand."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

STRIDES, SIZE, CLASSES, REG_MAX = (8, 16, 32), (64, 96), 2, 4
RNG = np.random.default_rng(0)


class Writer:
    """A graph as it grows."""

    def __init__(self):
        self.nodes, self.weights = [], []

    def add(self, kind, *inputs, count=1, **attributes):
        names = [f"t{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if count == 1 else names

    def store(self, array):
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def conv(self, x, before, after, stride=1):
        weight = self.store(RNG.normal(0, 0.5, (after, before, stride, stride)).astype(np.float32))
        bias = self.store(RNG.normal(0, 0.3, after).astype(np.float32))
        return self.add("Conv", x, weight, bias, kernel_shape=[stride, stride], strides=[stride, stride])

    def model(self, outputs):
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        image = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, *SIZE])
        graph = helper.make_graph(self.nodes, "net", [image], values, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def cells():
    return [(SIZE[0] // s, SIZE[1] // s) for s in STRIDES]


def anchor_free(scores="Sigmoid", swapped=False, corners=False, together=True, broken=""):
    """A v8-style export; `swapped` lists classes before boxes, `together` joins both maps before they are flattened."""
    w = Writer()
    boxes, classes = [], []
    for stride in STRIDES:
        feature = w.add("Relu", w.conv("images", 3, 6, stride))
        pair = [w.conv(feature, 6, n) for n in (4 * REG_MAX, CLASSES)]
        if broken == "third" and stride == 8:
            pair[0] = w.add("Add", pair[0], w.conv(feature, 6, 4 * REG_MAX))
        boxes.append(pair[0])
        classes.append(pair[1])
    rows = 4 * REG_MAX + CLASSES
    if together:
        flat = []
        for b, c in zip(boxes, classes, strict=True):
            joined = w.add("Concat", *((c, b) if swapped else (b, c)), axis=1)
            flat.append(w.add("Reshape", joined, w.store(np.array([1, rows, -1]))))
        sizes = [CLASSES, 4 * REG_MAX] if swapped else [4 * REG_MAX, CLASSES]
        parts = w.add("Split", w.add("Concat", *flat, axis=2), w.store(np.array(sizes)), count=2, axis=1)
        box, score = parts[::-1] if swapped else parts
    else:
        box, score = (
            w.add("Concat", *(w.add("Reshape", m, w.store(np.array([1, n, -1]))) for m in maps), axis=2)
            for maps, n in ((boxes, 4 * REG_MAX), (classes, CLASSES))
        )
    spread = w.add("Transpose", w.add("Reshape", box, w.store(np.array([1, 4, REG_MAX, -1]))), perm=[0, 2, 1, 3])
    spread = w.add("Softmax", spread, axis=1) if broken != "distances" else w.add("Sigmoid", spread)
    line = w.store(np.arange(REG_MAX, dtype=np.float32).reshape(1, REG_MAX, 1, 1))
    sides = w.add("Reshape", w.add("Conv", spread, line), w.store(np.array([1, 4, -1])))
    before, after = w.add("Split", sides, w.store(np.array([2, 2])), count=2, axis=1)
    centre = np.concatenate([np.mgrid[0:h, 0:v].reshape(2, -1)[::-1] + 0.5 for h, v in cells()], 1)
    stride = np.concatenate([np.full(h * v, s) for s, (h, v) in zip(STRIDES, cells(), strict=True)])
    low = w.add("Sub", w.store(centre[None].astype(np.float32)), before)
    high = w.add("Add", w.store(centre[None].astype(np.float32)), after)
    if corners:
        both = w.add("Concat", low, high, axis=1)
    else:
        half = w.add("Mul", w.add("Add", low, high), w.store(np.array(0.5, np.float32)))
        both = w.add("Concat", half, w.add("Sub", high, low), axis=1)
    scaled = w.add("Mul", both, w.store(stride.astype(np.float32)))
    joined = w.add("Concat", scaled, w.add(scores, score, **({"axis": 1} if scores == "Softmax" else {})), axis=1)
    return w.model({joined: [1, 4 + CLASSES, len(stride)]})

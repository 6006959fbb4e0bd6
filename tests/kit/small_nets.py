"""Small float nets as ONNX models, one for each thing that the accelerator does, and how near its results come."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, shape_inference

from anynpu.runtime.ai8x import Ai8xSession
from anynpu.runtime.base import run_real
from anynpu.runtime.ort import OrtSession
from anynpu.tensors import by_name


class Net:
    """Builds a model node by node, with seeded weights."""

    def __init__(self, shape, seed=0):
        self.draw, self.nodes, self.constants = np.random.default_rng(seed), [], []
        self.shape, self.last, self.count = shape, "x", 0

    def const(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def op(self, kind, *constants, source=None, **attributes):
        self.count += 1
        inputs = [source or self.last, *constants]
        self.last = f"t{self.count}"
        self.nodes.append(helper.make_node(kind, inputs, [self.last], f"{kind.lower()}{self.count}", **attributes))
        return self

    def conv(self, into, out, kernel=3, pad=1, stride=1, groups=1, bias=0.1, dims=2, source=None):
        weight = self.draw.normal(
            0, 1 / np.sqrt(into // groups * kernel**dims), (out, into // groups, *[kernel] * dims)
        )
        names = [self.const(weight), self.const(self.draw.normal(0, bias, out))]
        pads = [pad] * 2 * dims
        return self.op("Conv", *names, source=source, pads=pads, strides=[stride] * dims, group=groups)

    def linear(self, into, out, bias=0.1):
        weight = self.draw.normal(0, 1 / np.sqrt(into), (out, into))
        return self.op("Gemm", self.const(weight), self.const(self.draw.normal(0, bias, out)), transB=1)

    def norm(self, channels):
        draw = self.draw
        values = [draw.uniform(0.5, 2, channels), draw.normal(0, 0.2, channels), draw.normal(0, 0.2, channels)]
        names = [self.const(v) for v in (*values, draw.uniform(0.5, 2, channels))]
        return self.op("BatchNormalization", *names, epsilon=1e-3)

    def model(self) -> ModelProto:
        values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        outputs = [helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "net", values, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return shape_inference.infer_shapes(model)


def sequential() -> ModelProto:
    """Convolutions, batch norms, a max pool, a mean pool before flattening, two linear layers."""
    net = Net((1, 3, 16, 16)).conv(3, 16).norm(16).op("Relu").op("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.conv(16, 20, pad=0).norm(20).op("Relu").op("AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    return net.op("Flatten").linear(180, 24).op("Relu").linear(24, 10).model()


def wide() -> ModelProto:
    """More channels than processors, a pool in front of them, and an output of eight bits."""
    net = Net((1, 70, 6, 6)).conv(70, 130, 1, 0).op("Relu").op("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    return net.conv(130, 66).op("Relu").model()


def strided() -> ModelProto:
    """Strides, ReLU6 and a mean over all pixels."""
    net = Net((1, 3, 12, 12)).conv(3, 8, stride=2).op("Clip", "zero", "six").conv(8, 16, 1, 0, 2).op("Relu")
    net.constants += [numpy_helper.from_array(np.float32(v), n) for n, v in (("zero", 0.0), ("six", 6.0))]
    return net.op("GlobalAveragePool").op("Flatten").linear(16, 5).model()


def signal() -> ModelProto:
    """A signal: Conv1d, max pool, Conv1d."""
    net = Net((1, 8, 40)).conv(8, 16, 5, 2, dims=1).op("Relu").op("MaxPool", kernel_shape=[2], strides=[2])
    return net.conv(16, 12, 3, 0, dims=1).op("Relu").op("Flatten").linear(216, 6).model()


def residual() -> ModelProto:
    """A block with a shortcut, an activation behind the sum, and another sum without one."""
    net = Net((1, 3, 8, 8)).conv(3, 16).op("Relu")
    first = net.last
    net.conv(16, 16).op("Relu").conv(16, 16)
    net.op("Add", first).op("Relu")
    second = net.last
    net.conv(16, 16).op("Add", second).conv(16, 12, 1, 0)
    return net.model()


def depthwise() -> ModelProto:
    """A depthwise and a pointwise convolution (MAX78002)."""
    return Net((1, 3, 8, 8)).conv(3, 16).op("Relu").conv(16, 16, groups=16).op("Relu").conv(16, 8, 1, 0).model()


def softmax() -> ModelProto:
    """A classifier that ends with a softmax."""
    return Net((1, 32)).linear(32, 16).op("Relu").linear(16, 4).op("Softmax", axis=1).model()


def shifted() -> ModelProto:
    """A constant added behind the last ReLU."""
    net = Net((1, 3, 6, 6)).conv(3, 8).op("Relu")
    return net.op("Add", net.const(1.0)).model()


def sqnr(model, made, samples) -> float:
    """Returns how far what was made of a model is from it on samples, in dB."""
    like = by_name((*model.manifest.inputs, *model.manifest.outputs))
    session, reference = Ai8xSession(made), OrtSession(model)
    noise = power = 0.0
    for sample in samples:
        wanted, got = reference.run(sample), run_real(session, sample, like)
        for name, values in wanted.items():
            noise += float(((got[name] - values) ** 2).sum())
            power += float((values**2).sum())
    return 10 * np.log10(power / noise)

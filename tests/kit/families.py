"""Random nets of ten families as people train them: weights of usual size, biases, normalised inputs, nothing sick."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from sick import Net, samples

Made = tuple[Net, dict[str, np.ndarray]]


def conv(net: Net, x: str, into: int, out: int, size: int = 3, stride: int = 1, group: int = 1) -> str:
    weights = net.weights(out, into // group, size, size) * np.sqrt(2)
    bias = net.normal(out, scale=0.1)
    pads = [size // 2] * 4
    return net("Conv", x, weights, bias, kernel_shape=[size] * 2, pads=pads, strides=[stride] * 2, group=group)


def dense(net: Net, x: str, into: int, out: int) -> str:
    return net("Add", net("MatMul", x, net.weights(into, out) * np.sqrt(2)), net.normal(out, scale=0.1))


def silu(net: Net, x: str) -> str:
    return net("Mul", x, net("Sigmoid", x))


def relu6(net: Net, x: str) -> str:
    return net("Clip", x, np.array(0.0), np.array(6.0))


def gelu(net: Net, x: str) -> str:
    half = net("Add", net("Erf", net("Div", x, np.array(np.sqrt(2)))), np.array(1.0))
    return net("Mul", net("Mul", x, half), np.array(0.5))


def layer_norm(net: Net, x: str, width: int) -> str:
    return net("LayerNormalization", x, 1 + net.normal(width, scale=0.1), net.normal(width, scale=0.1), axis=-1)


def depth(net: Net, least: int, most: int) -> int:
    return int(net.draw.integers(least, most + 1))


def classified(net: Net, x: str, channels: int) -> None:
    net("Gemm", net("Flatten", net("GlobalAveragePool", x)), net.weights(channels, 10), net.normal(10, scale=0.1))


def plain(net: Net) -> Made:
    x, width = "x", 3
    for _ in range(depth(net, 3, 8)):
        x, width = net("Relu", conv(net, x, width, 16)), 16
    classified(net, x, 16)
    return net, samples(net.seed, 3, 12, 12)


def residual(net: Net) -> Made:
    x = net("Relu", conv(net, "x", 3, 16))
    for _ in range(depth(net, 2, 6)):
        y = conv(net, net("Relu", conv(net, x, 16, 16)), 16, 16)
        x = net("Relu", net("Add", y, x))
    classified(net, x, 16)
    return net, samples(net.seed, 3, 12, 12)


def mobile(net: Net) -> Made:
    x = relu6(net, conv(net, "x", 3, 8))
    for _ in range(depth(net, 2, 5)):
        wide = relu6(net, conv(net, x, 8, 24, size=1))
        x = net("Add", conv(net, relu6(net, conv(net, wide, 24, 24, group=24)), 24, 8, size=1), x)
    classified(net, x, 8)
    return net, samples(net.seed, 3, 12, 12)


def detector(net: Net) -> Made:
    x = silu(net, conv(net, "x", 3, 16))
    for _ in range(depth(net, 1, 4)):
        left = silu(net, conv(net, x, 16, 8, size=1))
        right = silu(net, conv(net, left, 8, 8))
        x = silu(net, conv(net, net("Concat", left, right, axis=1), 16, 16, size=1))
    conv(net, x, 16, 12, size=1)
    return net, samples(net.seed, 3, 16, 16)


def hourglass(net: Net) -> Made:
    first = net("Relu", conv(net, "x", 3, 8))
    x = first
    for _ in range(depth(net, 1, 3)):
        x = net("Relu", conv(net, x, 8, 8))
    low = net("Relu", conv(net, net("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 8, 16))
    up = net("Resize", low, "", np.array([1, 1, 2, 2], np.float32), mode="nearest")
    conv(net, net("Relu", conv(net, net("Concat", up, first, axis=1), 24, 8)), 8, 4, size=1)
    return net, samples(net.seed, 3, 12, 12)


def attended(net: Net) -> Made:
    """Squeeze and excitation with hard-swish."""
    x = net("HardSwish", conv(net, "x", 3, 16))
    for _ in range(depth(net, 1, 4)):
        small = net("Relu", conv(net, net("GlobalAveragePool", x), 16, 4, size=1))
        gate = net("HardSigmoid", conv(net, small, 4, 16, size=1), alpha=1 / 6)
        x = net("HardSwish", conv(net, net("Mul", x, gate), 16, 16))
    classified(net, x, 16)
    return net, samples(net.seed, 3, 12, 12)


def perceptron(net: Net) -> Made:
    x, width = "x", 24
    for _ in range(depth(net, 2, 8)):
        x, width = net("Relu" if net.draw.random() < 0.6 else "Tanh", dense(net, x, width, 48)), 48
    dense(net, x, width, 8)
    return net, samples(net.seed, 24)


def autoencoder(net: Net) -> Made:
    x, widths = "x", (64, 48, 16, 8, 16, 48)
    for into, out in itertools.pairwise(widths):
        x = net("Relu", dense(net, x, into, out))
    dense(net, x, 48, 64)
    return net, samples(net.seed, 64)


def transformer(net: Net) -> Made:
    x, width = "x", 32
    for _ in range(depth(net, 1, 3)):
        q, k, v = (dense(net, x, width, width) for _ in range(3))
        scores = net("MatMul", q, net("Transpose", k, perm=[0, 2, 1]))
        shares = net("Softmax", net("Div", scores, np.array(np.sqrt(width))), axis=-1)
        x = layer_norm(net, net("Add", dense(net, net("MatMul", shares, v), width, width), x), width)
        x = layer_norm(net, net("Add", dense(net, gelu(net, dense(net, x, width, 64)), 64, width), x), width)
    dense(net, x, width, 16)
    return net, samples(net.seed, 8, 32)


def keyword(net: Net) -> Made:
    """Convolutions over time, written as pictures of one row."""
    x, width = "x", 10
    for _ in range(depth(net, 2, 5)):
        weights, bias = net.weights(24, width, 1, 3) * np.sqrt(2), net.normal(24, scale=0.1)
        x = net("Conv", x, weights, bias, kernel_shape=[1, 3], pads=[0, 1, 0, 1])
        x, width = net("Relu", x), 24
    net("Softmax", net("Gemm", net("Flatten", net("GlobalAveragePool", x)), net.weights(24, 6) * 3), axis=-1)
    return net, samples(net.seed, 10, 1, 32)


FAMILIES: tuple[Callable[[Net], Made], ...] = (
    *(plain, residual, mobile, detector, hourglass),
    *(attended, perceptron, autoencoder, transformer, keyword),
)


def random_net(seed: int) -> Made:
    """Returns the net of a seed; ten seeds in a row are of ten families."""
    return FAMILIES[seed % len(FAMILIES)](Net(seed))

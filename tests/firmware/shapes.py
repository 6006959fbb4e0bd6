"""Chains of layers whose shapes no kernel is made for: odd channels, few pixels, strides, dilation, paddings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tflite_builder import Builder, schema


@dataclass(frozen=True)
class Conv:
    """A convolution; `depthwise` counts the filters of a channel, 0 is an ordinary convolution to `channels`."""

    channels: int = 0
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    dilation: int = 1
    padding: str = "SAME"
    activation: int = 0
    depthwise: int = 0


@dataclass(frozen=True)
class Pool:
    kind: str
    size: int
    stride: int
    padding: str = "SAME"


@dataclass(frozen=True)
class Plus:
    kind: str = "ADD"
    other: str = "itself"
    """What is added: itself, or a constant as in Times."""


@dataclass(frozen=True)
class Times:
    """A product with another tensor: of the same shape, one value for each channel, or one for all."""

    other: str = "same"


@dataclass(frozen=True)
class Mean:
    axes: tuple[int, ...] = (1, 2)
    kind: str = "MEAN"


@dataclass(frozen=True)
class Curve:
    kind: str


@dataclass(frozen=True)
class Dense:
    units: int


RELU, RELU6 = 1, 3


@dataclass
class Typed(Builder):
    """A builder whose activations have a type; with 16 bits they have no zero point, and a finer scale."""

    activations: str = "int8"

    def __init__(self, activations: str) -> None:
        super().__init__()
        self.activations = activations

    def tensor(self, name, shape, dtype="int8", data=None, scale=0.05, zero_point=0) -> int:
        wide = self.activations == "int16" and dtype == "int8" and (data is None or name.endswith("_other"))
        if not wide:
            return super().tensor(name, shape, dtype, data, scale, zero_point)
        return super().tensor(name, shape, "int16", data, scale / self.finer, 0)

    @property
    def finer(self) -> int:
        """How many times finer scales are than those of 8 bits."""
        return 256 if self.activations == "int16" else 1


SHAPES: dict[str, tuple[tuple[int, int, int], tuple[Conv | Pool | Plus | Times | Mean | Curve | Dense, ...]]] = {
    "every": (
        (9, 8, 3),
        (
            Conv(16, activation=RELU),
            Conv(depthwise=1),
            Conv(24, (1, 1)),
            Conv(8, dilation=2),
            Plus(),
            Conv(depthwise=1, kernel=(5, 2), activation=RELU),
            Pool("MAX", 2, 2),
            Pool("AVERAGE", 2, 1, "VALID"),
            Dense(12),
        ),
    ),
    "odd channels": (
        (7, 6, 5),
        (
            Conv(7, activation=RELU6),
            Conv(depthwise=1, stride=2),
            Conv(11, (1, 1)),
            Conv(13, (2, 3)),
            Plus("SUB"),
            Dense(5),
        ),
    ),
    "few pixels": ((2, 1, 19), (Conv(17, (1, 1), activation=RELU), Conv(depthwise=1), Conv(3, (3, 1)), Dense(1))),
    "one pixel": ((1, 1, 33), (Conv(6, (1, 1)), Conv(5), Conv(depthwise=1), Plus())),
    "strides": (
        (13, 11, 6),
        (Conv(9, (5, 4), stride=3), Conv(depthwise=1, kernel=(3, 3), stride=2, padding="VALID"), Pool("MAX", 3, 2)),
    ),
    "dilation": (
        (11, 12, 10),
        (Conv(4, dilation=2, padding="VALID"), Conv(depthwise=1, dilation=2), Conv(70, (1, 1)), Pool("AVERAGE", 3, 3)),
    ),
    "one channel": ((8, 7, 1), (Conv(2, (4, 3)), Conv(1, (1, 1)), Conv(depthwise=3, kernel=(2, 2)), Plus("SUB"))),
    "values": (
        (5, 6, 11),
        (
            Times(),
            Curve("LOGISTIC"),
            Times("channel"),
            Curve("TANH"),
            Times("one"),
            Plus("SUB", "channel"),
            Curve("SOFTMAX"),
            Mean(),
            Plus("ADD", "one"),
        ),
    ),
    "means": ((4, 3, 9), (Times("channel"), Conv(13, (1, 1)), Mean((1,)), Plus("SUB"), Times("one"), Mean((1, 2)))),
    "rows": ((3, 2, 37), (Curve("HARD_SWISH"), Curve("SOFTMAX"), Mean((3,)), Times(), Mean((1,), "SUM"))),
    "wide": ((5, 3, 64), (Conv(depthwise=1, activation=RELU), Conv(66, (1, 1), activation=RELU), Conv(130, (1, 1)))),
}


WIDE = ("every", "odd channels", "one pixel", "one channel", "dilation", "means")
"""The shapes that are tried with 16-bit activations too."""


def shaped(name: str, path: Path, dtype: str = "int8") -> Path:
    """Writes a model of one of the shapes, with activations of a type."""
    (height, width, channels), layers = SHAPES[name]
    b, rng = Typed(dtype), np.random.default_rng(len(name))
    shape = (1, height, width, channels)
    x = b.input(shape, scale=0.04, zero_point=-5)
    for number, layer in enumerate(layers):
        x, shape = _add(b, rng, f"layer{number}", layer, x, shape)
    return b.write(path)


def _add(b: Typed, rng: np.random.Generator, name: str, layer, x: int, shape: tuple[int, ...]):
    zero = int(rng.integers(-128, 127))
    if isinstance(layer, Plus | Times):
        kind = layer.kind if isinstance(layer, Plus) else "MUL"
        other = x if layer.other == "itself" else _constant(b, rng, name, layer.other, shape)
        out = b.tensor(name, shape, scale=0.06, zero_point=zero)
        return b.operator(kind, [x, other], [out], options=f"{kind.title()}Options"), shape
    if isinstance(layer, Mean):
        made = tuple(1 if axis in layer.axes else size for axis, size in enumerate(shape))
        out = b.tensor(name, made, scale=0.05, zero_point=zero)
        axes = b.constant(f"{name}_axes", list(layer.axes))
        return b.operator(layer.kind, [x, axes], [out], options="ReducerOptions", keepDims=True), made
    if isinstance(layer, Curve):
        scale, at = CURVES.get(layer.kind, (0.03, zero))
        out = b.tensor(name, shape, scale=scale, zero_point=at)
        options = {"options": "SoftmaxOptions", "beta": 1.0} if layer.kind == "SOFTMAX" else {}
        return b.operator(layer.kind, [x], [out], **options), shape
    if isinstance(layer, Pool):
        quantized = b.tensors[x].quantization
        sizes = [_out(s, layer.size, layer.stride, 1, layer.padding) for s in shape[1:3]]
        made = (1, *sizes, shape[3])
        out = b.tensor(name, made, scale=quantized.scale[0] * b.finer, zero_point=quantized.zeroPoint[0])
        fields = {
            "filterHeight": layer.size,
            "filterWidth": layer.size,
            "strideH": layer.stride,
            "strideW": layer.stride,
        }
        padding = getattr(schema.Padding, layer.padding)
        return b.operator(f"{layer.kind}_POOL_2D", [x], [out], options="Pool2DOptions", padding=padding, **fields), made
    if isinstance(layer, Dense):
        length = int(np.prod(shape))
        weights, bias = _filters(b, rng, name, (layer.units, length), layer.units, 0)
        out = b.tensor(name, (1, layer.units), scale=0.3, zero_point=zero)
        return b.operator("FULLY_CONNECTED", [x, weights, bias], [out], options="FullyConnectedOptions"), (
            1,
            layer.units,
        )
    return _convolution(b, rng, name, layer, x, shape, -128 if layer.activation == RELU else zero)


CURVES = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0), "SOFTMAX": (1 / 256, -128)}
"""Scale and zero point that an operator gives its output."""


def _constant(b: Builder, rng: np.random.Generator, name: str, other: str, shape: tuple[int, ...]) -> int:
    made = {"same": shape, "channel": (1, 1, 1, shape[3]), "one": (1, 1, 1, 1)}[other]
    return b.tensor(f"{name}_other", made, data=rng.integers(-128, 128, made), scale=0.03, zero_point=-3)


def _convolution(b: Builder, rng, name: str, layer: Conv, x: int, shape: tuple[int, ...], zero: int):
    channels = layer.channels or layer.depthwise * shape[3]
    sizes = [
        _out(s, k, layer.stride, layer.dilation, layer.padding) for s, k in zip(shape[1:3], layer.kernel, strict=True)
    ]
    made = (1, *sizes, channels)
    kernel = (1, *layer.kernel, channels) if layer.depthwise else (channels, *layer.kernel, shape[3])
    weights, bias = _filters(b, rng, name, kernel, channels, 3 if layer.depthwise else 0)
    out = b.tensor(name, made, scale=0.1, zero_point=zero)
    more = {"depthMultiplier": layer.depthwise} if layer.depthwise else {}
    kind, options = ("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions") if layer.depthwise else ("CONV_2D", "Conv2DOptions")
    made_by = b.operator(
        kind,
        [x, weights, bias],
        [out],
        options=options,
        strideH=layer.stride,
        strideW=layer.stride,
        dilationHFactor=layer.dilation,
        dilationWFactor=layer.dilation,
        padding=getattr(schema.Padding, layer.padding),
        fusedActivationFunction=layer.activation,
        **more,
    )
    return made_by, made


def _filters(b: Typed, rng, name: str, shape: tuple[int, ...], channels: int, axis: int) -> tuple[int, int]:
    """Returns weights of the whole range with a scale for each channel, some channels without any, and a bias."""
    values = rng.integers(-127, 128, shape)
    dead = rng.random(channels) < 0.1
    values = np.where(dead.reshape([-1 if i == axis else 1 for i in range(len(shape))]), 0, values)
    weights = b.tensor(f"{name}_w", shape, data=values)
    quantized = b.tensors[weights].quantization
    quantized.scale = [float(s) for s in np.exp(rng.normal(-5.5, 1.0, channels)).astype(np.float32)]
    quantized.zeroPoint, quantized.quantizedDimension = [0] * channels, axis
    kind = "int64" if b.activations == "int16" else "int32"
    bias = b.tensor(f"{name}_b", (channels,), kind, rng.integers(-4000, 4000, channels), scale=0.001)
    return weights, bias


def _out(size: int, kernel: int, stride: int, dilation: int, padding: str) -> int:
    span = (kernel - 1) * dilation + 1
    return -(-size // stride) if padding == "SAME" else (size - span) // stride + 1

"""CONV_2D, DEPTHWISE_CONV_2D and FULLY_CONNECTED for 8-bit and 16-bit activations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from anynpu.firmware.generator.fixedpoint import RANGES, activation_range, clamp, multiply, quantize_multiplier
from anynpu.firmware.generator.graph import Graph, Node, scale_of, values, zero_of
from anynpu.firmware.generator.layer import Call, Constant, Layer, Scratch, Tensor, Value, require
from anynpu.firmware.generator.windows import is_pointwise, window
from anynpu.tensors import Array

CHANNEL_BYTES = 12
FAST_LIMIT = 1 << 30
"""The fast kernels double the accumulator: it must stay below this."""


@dataclass(frozen=True)
class Filters:
    """Weights as out_channels x y x x x group depth, with what turns accumulators into outputs."""

    weights: Array
    bias: Array
    factors: tuple[tuple[int, int], ...]
    in_zero: int
    out_zero: int
    low: int
    high: int

    @property
    def fast(self) -> bool:
        """Whether the fast kernels' arithmetic holds: factors below one half, accumulators below 2^30."""
        flat = np.abs(self.weights.reshape(len(self.weights), -1).astype(np.int64)).sum(axis=1)
        reach = max(127 - self.in_zero, self.in_zero + 128)
        bounds = (flat * reach + np.abs(self.bias)).tolist()
        # A channel without weights is a constant, whatever its bias and factor.
        alive = [(b, m, s) for b, (m, s), f in zip(bounds, self.factors, flat.tolist(), strict=True) if f]
        return all(b < FAST_LIMIT and (m == 0 or s <= -1) for b, m, s in alive)

    def packed(self, name: str, folded: bool) -> Constant:
        """Returns {bias, multiplier, shift} per channel; folded: as the fast kernels take them."""
        rows = self.folded() if folded else np.array(self._plain, np.int64)
        return Constant(name, "anynpu_channel", rows, CHANNEL_BYTES)

    @property
    def _plain(self) -> list[tuple[int, int, int]]:
        return [(b, m, s) for b, (m, s) in zip(self.bias.tolist(), self.factors, strict=True)]

    def folded(self) -> Array:
        """Returns rows of bias, multiplier and right shift less one, as the fast kernels take them."""
        rows = []
        for weights, (bias, multiplier, shift) in zip(self.weights, self._plain, strict=True):
            if not weights.any():
                # The fast kernels make exactly this constant of 4 * constant * 2^30.
                rows.append((4 * clamp(multiply(bias, multiplier, shift), -256, 256), 1 << 30, 0))
            else:
                # A dead channel, and one whose shift leaves nothing of 30 bits, is zero with any shift.
                fast = (0, 0) if multiplier == 0 or shift < -30 else (multiplier, -shift - 1)
                rows.append((bias - self.in_zero * int(weights.astype(np.int64).sum()), *fast))
        return np.array(rows, np.int64)

    def clamped(self, graph: Graph, node: Node) -> tuple[Call, ...]:
        """Returns the call that applies a fused activation which saturation does not give."""
        if (self.low, self.high) == RANGES["int8"]:
            return ()
        count = math.prod(graph.output(node).shape)
        params: dict[str, Value] = {"count": count, "low": self.low, "high": self.high}
        return (Call("clamp_s8", params, (Tensor(node.outputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"))),)


def filters(graph: Graph, node: Node, weights: Array) -> Filters:
    """Returns the filters of a convolution-like operator; `weights` has the output channels first."""
    image, kernel, bias, out = (
        graph.input(node, 0),
        graph.input(node, 1),
        graph.optional(node, 2),
        graph.output(node),
    )
    count = len(weights)
    require(not any(kernel.zero_point), "takes weights with zero point 0")
    require(bias is None or bias.constant, "takes a constant bias")
    scales = kernel.scale if len(kernel.scale) == count else kernel.scale * count
    require(len(scales) == count, "takes one scale, or one for each output channel")
    factors = tuple(quantize_multiplier(scale_of(image) * s / scale_of(out)) for s in scales)
    low, high = activation_range(out.dtype, node.options.fusedActivationFunction, scale_of(out), zero_of(out))
    biases = np.zeros(count, np.int64) if bias is None else values(bias).reshape(-1).astype(np.int64)
    return Filters(weights, biases, factors, zero_of(image), zero_of(out), low, high)


def types(graph: Graph, node: Node) -> str:
    """Returns "int8" or "int16", the type of the activations; others are refused."""
    image, kernel, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    require(image.dtype == out.dtype, f"turns {image.dtype} into {out.dtype}")
    require(image.dtype in ("int8", "int16"), f"has no kernel for {image.dtype}")
    require(kernel.dtype == "int8", f"has no kernel for {kernel.dtype} weights")
    require(kernel.constant, "takes constant weights")
    return image.dtype


def read_convolution(graph: Graph, node: Node) -> tuple[dict[str, int], Filters, int]:
    """Returns the window, the filters and the number of groups of a CONV_2D."""
    image, kernel, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    options = node.options
    w = window(node, image.shape, out.shape, kernel.shape[1:3], (options.dilationHFactor, options.dilationWFactor))
    require(image.shape[3] % kernel.shape[3] == 0, "has groups of unequal size")
    return w, filters(graph, node, values(kernel)), image.shape[3] // kernel.shape[3]


def conv_2d(graph: Graph, node: Node) -> Layer:
    """CONV_2D."""
    dtype = types(graph, node)
    w, f, groups = read_convolution(graph, node)
    if dtype == "int16":
        return wide(graph, node, w, f, groups)
    if groups > 1 or not f.fast:
        return general(node, w, f, groups)
    if is_pointwise(w):
        return pointwise(graph, node, f, w["batches"] * w["in_height"] * w["in_width"])
    return _conv(graph, node, w, f)


def read_depthwise(graph: Graph, node: Node) -> tuple[dict[str, int], Filters]:
    """Returns the window and the filters of a DEPTHWISE_CONV_2D."""
    image, kernel, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    options = node.options
    w = window(node, image.shape, out.shape, kernel.shape[1:3], (options.dilationHFactor, options.dilationWFactor))
    return w, filters(graph, node, np.moveaxis(values(kernel), 3, 0).transpose(0, 2, 3, 1))


def depthwise_conv_2d(graph: Graph, node: Node) -> Layer:
    """DEPTHWISE_CONV_2D."""
    dtype = types(graph, node)
    image, kernel, out = graph.input(node, 0), graph.input(node, 1), graph.output(node)
    w, f = read_depthwise(graph, node)
    if dtype == "int16":
        return wide(graph, node, w, f, image.shape[3])
    if not f.fast:
        return general(node, w, f, image.shape[3])
    if image.shape[3] == 1:
        return _conv(graph, node, w, f)
    if out.shape[3] != image.shape[3]:
        return general(node, w, f, image.shape[3])
    # Weights of taps x channels in the order that the kernel reads: four channels at a time, then single.
    taps = values(kernel).reshape(-1, out.shape[3])
    even = taps.shape[1] // 4 * 4
    blocks = [taps[:, c : c + 4].reshape(-1) for c in range(0, even, 4)]
    params: dict[str, Value] = {
        "window": w,
        "weights": Constant("weights", "int8_t", np.concatenate([*blocks, taps[:, even:].T.reshape(-1)])),
        "channels": f.packed("channels", folded=True),
        "offset": 2 * (f.out_zero + 128) + 1,
        "in_zero": f.in_zero,
    }
    arguments = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"), Scratch("int8_t"))
    border = w["height"] * w["width"] * w["in_channels"] if has_border(w) else 0
    return Layer(node, (Call("depthwise_s8", params, arguments), *f.clamped(graph, node)), scratch=border)


def read_dense(graph: Graph, node: Node) -> tuple[dict[str, int], Filters]:
    """Returns the window and the filters of a FULLY_CONNECTED: a pixel over a column of pixels."""
    kernel, out = graph.input(node, 1), graph.output(node)
    weights = values(kernel).reshape(-1, kernel.shape[-1])
    rows = int(np.prod(out.shape)) // len(weights)
    window = {
        "batches": 1,
        "in_height": rows,
        "in_width": 1,
        "in_channels": kernel.shape[-1],
        "out_height": rows,
        "out_width": 1,
        "out_channels": len(weights),
        **dict.fromkeys(("height", "width", "stride_y", "stride_x", "step_y", "step_x"), 1),
        "pad_y": 0,
        "pad_x": 0,
    }
    return window, filters(graph, node, weights[:, None, None, :])


def fully_connected(graph: Graph, node: Node) -> Layer:
    """FULLY_CONNECTED."""
    dtype = types(graph, node)
    require(node.options.weightsFormat == 0, "has shuffled weights")
    w, f = read_dense(graph, node)
    if dtype == "int16":
        return wide(graph, node, w, f, 1)
    if not f.fast:
        return general(node, w, f, 1)
    return pointwise(graph, node, f, w["in_height"])


def has_border(w: dict[str, int]) -> bool:
    """Whether some window reaches outside of the image."""
    for axis, short in (("height", "y"), ("width", "x")):
        reach = (w[f"out_{axis}"] - 1) * w[f"stride_{short}"] - w[f"pad_{short}"] + (w[axis] - 1) * w[f"step_{short}"]
        if w[f"pad_{short}"] > 0 or reach >= w[f"in_{axis}"]:
            return True
    return False


def pointwise(graph: Graph, node: Node, f: Filters, rows: int) -> Layer:
    """Returns dot products over contiguous channels, for one vector or for many."""
    rows_of = f.weights.reshape(len(f.weights), -1)
    params: dict[str, Value] = {
        "weights": Constant("weights", "int8_t", rows_of.reshape(-1)),
        "channels": f.packed("channels", folded=True),
        **({"rows": rows} if rows > 1 else {}),
        "length": rows_of.shape[1],
        "out_channels": len(rows_of),
        "offset": 2 * (f.out_zero + 128) + 1,
    }
    kernel = "pointwise_s8" if rows > 1 else "dense_s8"
    call = Call(kernel, params, (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t")))
    return Layer(node, (call, *f.clamped(graph, node)))


def _conv(graph: Graph, node: Node, w: dict[str, int], f: Filters) -> Layer:
    rows = f.weights.reshape(len(f.weights), -1)
    # Rows of a multiple of four spare the kernel its tail; the zeros make what the patch holds there not matter.
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))
    params: dict[str, Value] = {
        "window": w,
        "weights": Constant("weights", "int8_t", rows.reshape(-1)),
        "channels": f.packed("channels", folded=True),
        "length": rows.shape[1],
        "offset": 2 * (f.out_zero + 128) + 1,
        "in_zero": f.in_zero,
    }
    arguments = (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"), Scratch("int8_t"))
    return Layer(node, (Call("conv_s8", params, arguments), *f.clamped(graph, node)), scratch=2 * rows.shape[1])


def general(node: Node, w: dict[str, int], f: Filters, groups: int) -> Layer:
    """Returns the kernel for what the fast ones leave: groups, depth multipliers, large factors."""
    params: dict[str, Value] = {
        "window": w,
        "weights": Constant("weights", "int8_t", f.weights.reshape(-1)),
        "channels": f.packed("channels", folded=False),
        "groups": groups,
        "out_zero": f.out_zero,
        "low": f.low,
        "high": f.high,
        "in_zero": f.in_zero,
    }
    return Layer(
        node, (Call("conv_any_s8", params, (Tensor(node.inputs[0], "int8_t"), Tensor(node.outputs[0], "int8_t"))),)
    )


def wide(graph: Graph, node: Node, w: dict[str, int], f: Filters, groups: int) -> Layer:
    """Returns the kernel for 16-bit activations."""
    image, out = graph.input(node, 0), graph.output(node)
    require(zero_of(image) == 0 and zero_of(out) == 0, "takes 16-bit tensors with zero point 0")
    narrow = is_narrow(graph, node)
    require(narrow or all(s < 8 for _, s in f.factors), "has an output scale far below that of its input")
    rows = [[b, m, s] for b, (m, s) in zip(f.bias.tolist(), f.factors, strict=True)]
    params: dict[str, Value] = {
        "window": w,
        "weights": Constant("weights", "int8_t", f.weights.reshape(-1)),
        "channels": Constant("channels", "anynpu_wide_channel", np.array(rows, np.int64), 16),
        "groups": groups,
        "low": f.low,
        "high": f.high,
        "narrow": int(narrow),
    }
    arguments = (Tensor(node.inputs[0], "int16_t"), Tensor(node.outputs[0], "int16_t"))
    return Layer(node, (Call("conv_s16", params, arguments),))


def is_narrow(graph: Graph, node: Node) -> bool:
    """Whether the accumulator of 16-bit activations has 32 bits: a 32-bit bias says so."""
    bias = graph.optional(node, 2)
    if bias is not None:
        return bias.dtype == "int32"
    return getattr(node.options, "quantizedBiasType", 0) == INT32_TYPE


INT32_TYPE = 2

"""Where Vela 5.2.0 compiles something else than TFLite computes: a small model of each, as docs/ethos-u.md lists them.

A version of Vela that mends one of them fails here: then the row goes from the page and from `emulated.py` or
`excuses.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")


from compiled import compare, compile_model, micro
from emulated import explained
from excuses import excuse, excused_refusal
from random_graphs import Drawer, Ref

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.model import NpuCall, read_model
from anynpu.runtime.ethos_u.twin import Twin

pytestmark = pytest.mark.build


def drawer() -> Drawer:
    return Drawer(np.random.default_rng(7))


def grouped_convolution(d: Drawer) -> None:
    x = d.input((2, 1, 5, 4), "int8", 0.05, 0)
    weights = d.tensor((4, 1, 1, 2), "int8", 0.02, 0, d.rng.integers(-127, 127, (4, 1, 1, 2)))
    bias = d.tensor((4,), "int32", 0.001, 0, [1, 2, 3, 4])
    out = d.new((2, 1, 5, 4), "int8", 0.05, 0)
    options = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    d.operator("CONV_2D", [x.number, weights, bias], [out.number], "Conv2DOptions", **options)


def padded_groups(d: Drawer) -> None:
    x = d.input((2, 4, 3, 4), "int8", 0.05, 0)
    weights = d.tensor((4, 3, 2, 2), "int8", 0.02, 0, d.rng.integers(-127, 127, (4, 3, 2, 2)))
    bias = d.tensor((4,), "int32", 0.001, 0, [1, 2, 3, 4])
    out = d.new((2, 4, 3, 4), "int8", 0.3, 0)
    options = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    d.operator("CONV_2D", [x.number, weights, bias], [out.number], "Conv2DOptions", **options)


def reduction(d: Drawer) -> None:
    x = d.input((1, 5, 2, 1), "int8", 0.05, 0)
    out = d.like(x, (1, 5))
    d.operator("REDUCE_MAX", [x.number, d.ints([2, 3])], [out.number], "ReducerOptions", keepDims=False)


def product_of_a_slice(d: Drawer) -> None:
    x, y = d.input((1, 1, 4), "int8", 0.05, 0), d.input((1, 2, 2), "int8", 0.05, 0)
    halves = [d.like(x, (1, 1, 2)) for _ in range(2)]
    d.operator("SPLIT", [d.ints([2]), x.number], [h.number for h in halves], "SplitOptions", numSplits=2)
    out = d.new((1, 1, 2), "int8", 0.05, 0)
    d.operator("BATCH_MATMUL", [halves[0].number, y.number], [out.number], "BatchMatMulOptions")


def table_behind_a_transpose(d: Drawer) -> None:
    x = d.input((1, 3, 4, 5), "int8", 0.05, 0)
    turned = d.like(x, (1, 4, 3, 5))
    d.operator("TRANSPOSE", [x.number, d.ints([0, 2, 1, 3])], [turned.number], "TransposeOptions")
    d.unary(turned, "LEAKY_RELU")


def nearest_neighbour(d: Drawer) -> None:
    """Rows as an EfficientDet has them, from 3 to 5, and fewer columns."""
    x = d.input((1, 3, 8, 4), "int8", 0.05, 0)
    out = d.like(x, (1, 5, 6, 4))
    options = {"alignCorners": False, "halfPixelCenters": False}
    d.operator(
        "RESIZE_NEAREST_NEIGHBOR",
        [x.number, d.ints([5, 6])],
        [out.number],
        "ResizeNearestNeighborOptions",
        **options,
    )


def narrow_bias(d: Drawer) -> None:
    x = d.input((1, 8), "int16", 0.001, 0)
    weights = d.tensor((4, 8), "int8", 0.0217, 0, d.rng.integers(-127, 127, (4, 8)))
    bias = d.tensor((4,), "int32", 0.0000217, 0, [1, 2, 3, 4])
    out = d.new((1, 4), "int16", 0.003, 0)
    d.operator("FULLY_CONNECTED", [x.number, weights, bias], [out.number], "FullyConnectedOptions")


def twice_rounded_bias(d: Drawer) -> None:
    x = d.input((1, 512, 11), "int16", 0.008089805953204632, 0)
    weights = d.tensor((5, 11), "int8", 0.004363664425909519, 0, d.rng.integers(-127, 127, (5, 11)))
    bias = d.tensor((5,), "int32", 0.00003530120011419058, 0, [-17935, -15625, 3079, 19764, 14598])
    out = d.new((512, 5), "int16", 0.011112663894891739, 0)
    d.operator("FULLY_CONNECTED", [x.number, weights, bias], [out.number], "FullyConnectedOptions")


def comparison_of_scales(d: Drawer) -> None:
    x, y = d.input((1, 4, 4, 8), "int8", 0.05, 0), d.input((1, 4, 4, 8), "int8", 0.02, 9)
    d.operator("GREATER", [x.number, y.number], [d.tensor((1, 4, 4, 8), "bool", 1.0, 0)], "GreaterOptions")


def mirrored_channels(d: Drawer) -> None:
    x = d.input((1, 1, 2), "int8", 0.03, 69)
    out = d.like(x, (1, 1, 4))
    pads = d.ints([[0, 0], [0, 0], [1, 1]])
    d.operator("MIRROR_PAD", [x.number, pads], [out.number], "MirrorPadOptions", mode=0)


def mirrored_and_reshaped(d: Drawer) -> None:
    x = d.input((1, 2, 6, 1), "int8", 0.03, 69)
    padded, out = d.like(x, (1, 2, 9, 1)), d.like(x, (1, 1, 2, 9))
    d.operator(
        "MIRROR_PAD",
        [x.number, d.ints([[0, 0], [0, 0], [1, 2], [0, 0]])],
        [padded.number],
        "MirrorPadOptions",
        mode=0,
    )
    d.operator("RESHAPE", [padded.number, d.ints([1, 1, 2, 9])], [out.number], "ReshapeOptions", newShape=[1, 1, 2, 9])


def smallest_and_reshaped(d: Drawer) -> None:
    x = d.input((1, 4, 5, 8), "int8", 0.05, 3)
    smallest, out = d.like(x, (1, 4, 5, 1)), d.like(x, (1, 1, 4, 5))
    d.operator("REDUCE_MIN", [x.number, d.ints([3])], [smallest.number], "ReducerOptions", keepDims=True)
    d.operator("RESHAPE", [smallest.number, d.ints([1, 1, 4, 5])], [out.number], "ReshapeOptions", newShape=out.shape)


def slice_of_five_axes(d: Drawer) -> None:
    x = d.input((1, 3, 8, 16), "int8", 0.03, 69)
    piece, deep, out = d.like(x, (1, 3, 6, 16)), d.like(x, (1, 1, 3, 6, 16)), d.like(x, (1, 1, 3, 6, 16))
    d.operator("SLICE", [x.number, d.ints([0, 0, 1, 0]), d.ints([1, 3, 6, 16])], [piece.number], "SliceOptions")
    d.operator("RESHAPE", [piece.number, d.ints(deep.shape)], [deep.number], "ReshapeOptions", newShape=deep.shape)
    d.operator("MAXIMUM", [deep.number, deep.number], [out.number], "MaximumMinimumOptions")


def unsigned_transpose(d: Drawer) -> None:
    x = d.input((1, 7, 2, 7), "uint8", 0.03, 86)
    out = d.like(x, (1, 7, 7, 2))
    d.operator("TRANSPOSE", [x.number, d.ints([0, 1, 3, 2])], [out.number], "TransposeOptions")


def depthwise(d: Drawer, x: Ref, multiplier: int) -> Ref:
    count = x.shape[3] * multiplier
    weights = d.tensor((1, 3, 1, count), "int8", 0.0046, 0, d.rng.integers(-127, 127, (1, 3, 1, count)))
    bias = d.tensor((count,), "int32", 0.0046 * x.scale, 0, d.rng.integers(-99, 99, count))
    out = d.new((*x.shape[:3], count), "int8", 0.12, 16)
    options = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1, "depthMultiplier": multiplier}
    given = [x.number, weights, bias]
    d.operator("DEPTHWISE_CONV_2D", given, [out.number], "DepthwiseConv2DOptions", **options)
    return out


def multiplier_of_a_slice(d: Drawer) -> None:
    x = d.input((1, 4, 3, 9), "int8", 0.028, -128)
    parts = [d.like(x, (1, 4, 3, count)) for count in (4, 5)]
    given = [x.number, d.ints([4, 5]), d.ints([3])]
    d.operator("SPLIT_V", given, [p.number for p in parts], "SplitVOptions", numSplits=2)
    depthwise(d, parts[1], 2)


def multiplier_and_padding(d: Drawer) -> None:
    x = depthwise(d, d.input((1, 3, 2, 9), "int8", 0.1, -1), 3)
    out = d.like(x, (1, 5, 2, 27))
    d.operator("PAD", [x.number, d.ints([[0, 0], [2, 0], [0, 0], [0, 0]])], [out.number], "PadOptions")


def product_and_padding(d: Drawer) -> None:
    x, y = d.input((1, 2, 3, 4), "int8", 0.05, 0), d.input((1, 2, 4, 5), "int8", 0.05, 0)
    product = d.new((1, 2, 3, 5), "int8", 0.1, 0)
    d.operator("BATCH_MATMUL", [x.number, y.number], [product.number], "BatchMatMulOptions")
    out = d.like(product, (1, 2, 5, 5))
    d.operator("PAD", [product.number, d.ints([[0, 0], [0, 0], [2, 0], [0, 0]])], [out.number], "PadOptions")


def bounded_logistic(d: Drawer) -> None:
    """One of 256 values: the logistic of 2 / 256 is 128.4999975 / 256."""
    x = d.input((1, 4, 4, 64), "int8", 1 / 256, -128)
    d.operator("LOGISTIC", [x.number], [d.new(x.shape, "int8", 1 / 256, -128).number])


def wide_rectifier(d: Drawer) -> None:
    x = d.input((1, 32, 32, 16), "int16", 0.13382834196090698, 0)
    out = d.new(x.shape, "int16", 0.08646402508020401, 0)
    d.operator("RELU", [x.number], [out.number])


def steep_softmax(d: Drawer) -> None:
    x = d.input((1, 4), "int16", 6000.0, 0)
    out = d.new((1, 4), "int16", 1 / 32768, 0)
    d.operator("SOFTMAX", [x.number], [out.number], "SoftmaxOptions", beta=2.0)


def sparse_transpose_conv(d: Drawer) -> None:
    x = d.input((1, 2, 1, 5), "int8", 0.05, -36)
    weights = d.tensor((6, 1, 2, 5), "int8", 0.006, 0, d.rng.integers(-127, 127, (6, 1, 2, 5)))
    bias = d.tensor((6,), "int32", 0.0003, 0, d.rng.integers(-999, 999, 6))
    out = d.new((1, 6, 2, 6), "int8", 0.02, 0)
    given = [d.ints([1, 6, 2, 6]), weights, x.number, bias]
    d.operator("TRANSPOSE_CONV", given, [out.number], "TransposeConvOptions", strideH=3, strideW=2)


def table_and_transpose(d: Drawer) -> None:
    x = d.input((5, 3, 1), "uint8", 0.07, 10)
    rectified = d.new((5, 3, 1), "uint8", 0.1, 184)
    d.operator("LEAKY_RELU", [x.number], [rectified.number], "LeakyReluOptions", alpha=-0.5)
    turned = d.like(rectified, (5, 1, 3))
    d.operator("TRANSPOSE", [rectified.number, d.ints([0, 2, 1])], [turned.number], "TransposeOptions")
    out = d.new((1, 1, 1), "uint8", 0.07, 8)
    d.operator("MEAN", [turned.number, d.ints([0, 1, 2])], [out.number], "ReducerOptions", keepDims=True)


def sum_of_two_axes(d: Drawer) -> None:
    x = d.input((1, 5, 3, 2), "int8", 0.05, 4)
    out = d.new((1, 2), "int8", 0.1, -3)
    d.operator("SUM", [x.number, d.ints([1, 2])], [out.number], "ReducerOptions", keepDims=False)


def product_of_16_bits(d: Drawer) -> None:
    """The gate of a SiLU in YOLOv8n: some products end just below a half, which a scale of 24 bits puts above it."""
    x, gate = (
        d.input((1, 48, 32, 16), "int16", 0.002137838862836361, 0),
        d.input((1, 48, 32, 16), "int16", 1 / 32768, 0),
    )
    out = d.new(x.shape, "int16", 0.0020707256626337767, 0)
    d.operator("MUL", [x.number, gate.number], [out.number], "MulOptions")


def joined(d: Drawer, part: Ref, axis: int) -> None:
    """Behind a tensor of the same shape."""
    other = d.input(part.shape, "int8", part.scale, part.zero)
    shape = [2 * size if place == axis else size for place, size in enumerate(part.shape)]
    out = d.like(part, shape)
    d.operator("CONCATENATION", [other.number, part.number], [out.number], "ConcatenationOptions", axis=axis)


def resized_and_joined(d: Drawer) -> None:
    x = d.input((1, 4, 5, 8), "int8", 0.05, 3)
    larger = d.like(x, (1, 8, 10, 8))
    options = {"alignCorners": False, "halfPixelCenters": True}
    d.operator("RESIZE_BILINEAR", [x.number, d.ints([8, 10])], [larger.number], "ResizeBilinearOptions", **options)
    joined(d, larger, 3)


def product_and_joined(d: Drawer) -> None:
    x, y = d.input((1, 2, 3, 4), "int8", 0.05, 0), d.input((1, 2, 4, 5), "int8", 0.05, 0)
    product = d.new((1, 2, 3, 5), "int8", 0.1, 0)
    d.operator("BATCH_MATMUL", [x.number, y.number], [product.number], "BatchMatMulOptions")
    joined(d, product, 2)


def largest_and_joined(d: Drawer) -> None:
    """As spatial attention has it: the largest channel beside the mean of all."""
    x = d.input((1, 4, 5, 8), "int8", 0.05, 3)
    largest = d.like(x, (1, 4, 5, 1))
    d.operator("REDUCE_MAX", [x.number, d.ints([3])], [largest.number], "ReducerOptions", keepDims=True)
    joined(d, largest, 3)


def transposed_and_joined(d: Drawer) -> None:
    x = d.input((1, 4, 5, 8), "int8", 0.05, 3)
    weights = d.tensor((6, 2, 2, 8), "int8", 0.006, 0, d.rng.integers(-127, 127, (6, 2, 2, 8)))
    bias = d.tensor((6,), "int32", 0.0003, 0, d.rng.integers(-999, 999, 6))
    larger = d.new((1, 8, 10, 6), "int8", 0.02, 0)
    given = [d.ints([1, 8, 10, 6]), weights, x.number, bias]
    d.operator("TRANSPOSE_CONV", given, [larger.number], "TransposeConvOptions", strideH=2, strideW=2)
    joined(d, larger, 1)


def window_of_every_other_row(d: Drawer) -> None:
    x = d.input((1, 4, 5, 8), "int8", 0.05, 3)
    rows = d.like(x, (1, 2, 5, 8))
    given = [x.number, d.ints([0, 0, 0, 0]), d.ints([1, 4, 5, 8]), d.ints([1, 2, 1, 1])]
    d.operator("STRIDED_SLICE", given, [rows.number], "StridedSliceOptions")
    weights = d.tensor((6, 3, 3, 8), "int8", 0.006, 0, d.rng.integers(-127, 127, (6, 3, 3, 8)))
    bias = d.tensor((6,), "int32", 0.0003, 0, d.rng.integers(-999, 999, 6))
    out = d.new((1, 2, 5, 6), "int8", 0.02, 0)
    options = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    d.operator("CONV_2D", [rows.number, weights, bias], [out.number], "Conv2DOptions", **options)


def the_same_weights_twice(d: Drawer) -> None:
    """Two convolutions whose weights and scales are equal, and whose biases are not."""
    made, stored = d.input((1, 4, 5, 2), "int8", 0.05, 0), d.rng.integers(-127, 127, (2, 1, 1, 2))
    for values in ([100, 200], [5000, -7000]):
        weights, bias = d.tensor((2, 1, 1, 2), "int8", 0.01, 0, stored), d.tensor((2,), "int32", 0.0005, 0, values)
        out = d.new(made.shape, "int8", 0.05, 0)
        options = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
        d.operator("CONV_2D", [made.number, weights, bias], [out.number], "Conv2DOptions", **options)
        made = out


def paired(d: Drawer, kind: str, first: Ref, second: Ref, shape: tuple[int, ...]) -> None:
    out = d.new(shape, "int8", 0.1, 0)
    d.operator(kind, [first.number, second.number], [out.number], f"{kind.title()}Options")


def spread_in_another_shape(d: Drawer) -> None:
    """Both operands of a sum broadcast, and the first is also read in another shape."""
    x = d.input((1, 6, 1, 5), "int8", 0.05, 3)
    rows, whole = d.like(x, x.shape), d.like(x, (1, 1, 1, 30))
    d.operator("MAXIMUM", [x.number, x.number], [rows.number], "MaximumMinimumOptions")
    shape = [1, 1, 1, 30]
    d.operator("RESHAPE", [rows.number, d.ints(shape)], [whole.number], "ReshapeOptions", newShape=shape)
    d.operator("MAXIMUM", [whole.number, whole.number], [d.like(x, whole.shape).number], "MaximumMinimumOptions")
    paired(d, "ADD", rows, d.input((1, 1, 7, 5), "int8", 0.05, 3), (1, 6, 7, 5))


def sum_with_every_other_row(d: Drawer) -> None:
    x = d.input((1, 8, 5, 6), "int8", 0.05, 3)
    rows = d.like(x, (1, 4, 5, 6))
    given = [x.number, d.ints([0, 0, 0, 0]), d.ints([1, 8, 5, 6]), d.ints([1, 2, 1, 1])]
    d.operator("STRIDED_SLICE", given, [rows.number], "StridedSliceOptions")
    paired(d, "ADD", d.input(rows.shape, "int8", 0.05, 3), rows, rows.shape)


def half(d: Drawer) -> Ref:
    """The lower half of an image."""
    x = d.input((1, 8, 5, 6), "int8", 0.05, 3)
    rows = d.like(x, (1, 4, 5, 6))
    d.operator("SLICE", [x.number, d.ints([0, 4, 0, 0]), d.ints([1, 4, 5, 6])], [rows.number], "SliceOptions")
    return rows


def largest_of_a_slice(d: Drawer) -> None:
    rows = half(d)
    largest = d.like(rows, (1, 4, 5, 1))
    d.operator("REDUCE_MAX", [rows.number, d.ints([3])], [largest.number], "ReducerOptions", keepDims=True)


def transposed_slice(d: Drawer) -> None:
    rows = half(d)
    weights = d.tensor((6, 2, 2, 6), "int8", 0.006, 0, d.rng.integers(-127, 127, (6, 2, 2, 6)))
    bias = d.tensor((6,), "int32", 0.0003, 0, d.rng.integers(-999, 999, 6))
    out = d.new((1, 8, 10, 6), "int8", 0.05, 0)
    given = [d.ints([1, 8, 10, 6]), weights, rows.number, bias]
    d.operator("TRANSPOSE_CONV", given, [out.number], "TransposeConvOptions", strideH=2, strideW=2)


BY_VALUE = (
    *(product_of_16_bits, sum_of_two_axes, reduction, comparison_of_scales, unsigned_transpose, nearest_neighbour),
    *(sparse_transpose_conv, grouped_convolution, padded_groups, narrow_bias, mirrored_channels),
    *(multiplier_of_a_slice, multiplier_and_padding, product_and_padding, bounded_logistic, wide_rectifier),
    twice_rounded_bias,
)
"""Where every value is known that the NPU computes instead."""
DEFECTS = [
    (product_of_16_bits, "ethos-u55-128"),
    (product_of_16_bits, "ethos-u85-256"),
    (sum_of_two_axes, "ethos-u55-128"),
    (sum_of_two_axes, "ethos-u85-256"),
    (comparison_of_scales, "ethos-u85-256"),
    (mirrored_channels, "ethos-u55-128"),
    (mirrored_channels, "ethos-u85-256"),
    (mirrored_and_reshaped, "ethos-u55-128"),
    (mirrored_and_reshaped, "ethos-u85-256"),
    (slice_of_five_axes, "ethos-u85-256"),
    (smallest_and_reshaped, "ethos-u55-128"),
    (smallest_and_reshaped, "ethos-u65-256"),
    (unsigned_transpose, "ethos-u55-256"),
    (multiplier_of_a_slice, "ethos-u55-64"),
    (multiplier_of_a_slice, "ethos-u85-128"),
    (multiplier_and_padding, "ethos-u55-128"),
    (multiplier_and_padding, "ethos-u85-128"),
    (sparse_transpose_conv, "ethos-u85-128"),
    (table_and_transpose, "ethos-u85-512"),
    (grouped_convolution, "ethos-u55-128"),
    (grouped_convolution, "ethos-u85-256"),
    (steep_softmax, "ethos-u55-128"),
    (steep_softmax, "ethos-u85-256"),
    (product_and_padding, "ethos-u55-128"),
    (bounded_logistic, "ethos-u55-128"),
    (bounded_logistic, "ethos-u85-256"),
    (wide_rectifier, "ethos-u55-256"),
    (wide_rectifier, "ethos-u85-256"),
    (twice_rounded_bias, "ethos-u65-256"),
    (padded_groups, "ethos-u65-512"),
    (padded_groups, "ethos-u85-128"),
    (reduction, "ethos-u65-256"),
    (product_of_a_slice, "ethos-u55-256"),
    (table_behind_a_transpose, "ethos-u55-64"),
    (nearest_neighbour, "ethos-u85-256"),
    (narrow_bias, "ethos-u85-256"),
    (resized_and_joined, "ethos-u55-256"),
    (product_and_joined, "ethos-u65-256"),
    (largest_and_joined, "ethos-u55-128"),
    (largest_and_joined, "ethos-u85-256"),
    (transposed_and_joined, "ethos-u85-128"),
    (window_of_every_other_row, "ethos-u55-256"),
    (window_of_every_other_row, "ethos-u85-256"),
    (spread_in_another_shape, "ethos-u55-256"),
    (spread_in_another_shape, "ethos-u65-256"),
    (sum_with_every_other_row, "ethos-u55-256"),
    (sum_with_every_other_row, "ethos-u65-256"),
    (largest_of_a_slice, "ethos-u55-256"),
    (largest_of_a_slice, "ethos-u85-256"),
    (transposed_slice, "ethos-u55-256"),
    (transposed_slice, "ethos-u85-256"),
    (the_same_weights_twice, "ethos-u55-256"),
    (the_same_weights_twice, "ethos-u65-256"),
    (the_same_weights_twice, "ethos-u85-256"),
]


@pytest.mark.parametrize(("draw", "chip"), DEFECTS, ids=[f"{draw.__name__}-{chip}" for draw, chip in DEFECTS])
def test_the_twin_shows_what_vela_compiles_differently(draw, chip, tmp_path):
    d = drawer()
    draw(d)
    model = d.write(tmp_path / "net.tflite")
    try:
        comparison = compare(model, chip, tmp_path, count=8)
    except IntegrityError as error:
        assert excused_refusal(model, chip) and "outside of" in error.message, error.message
        return
    assert comparison.differing > 0
    assert explained(model, chip, comparison) if draw in BY_VALUE else excuse(model, chip)


@pytest.mark.parametrize(("chip", "axes"), [("ethos-u55-128", [1, 2]), ("ethos-u85-256", [2, 1])])
def test_the_stream_shows_that_a_sum_takes_one_axis(chip, axes, tmp_path):
    """Ones in 5 rows of 3 columns: their sum is 15, and what comes out is the length of the first axis of the list."""
    d = drawer()
    x = d.input((1, 5, 3, 1), "int8", 1.0, 0)
    out = d.new((1, 1), "int8", 1.0, 0)
    d.operator("SUM", [x.number, d.ints(axes)], [out.number], "ReducerOptions", keepDims=False)
    source = d.write(tmp_path / "net.tflite")
    model = read_model(compile_model(source, chip, tmp_path))
    inputs = [np.ones((1, 1, 5, 3, 1), np.int8)]
    assert micro(source, inputs, 1)[0].item() == 15
    assert Twin(model).run_batch(inputs)[0].item() == (5 if axes[0] == 1 else 3)


@pytest.mark.parametrize("chip", ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"])
def test_pow_and_prod_of_the_public_report_stay_on_the_cpu(chip, tmp_path):
    """And the product that frameworks make of them is unsigned up to 255."""
    for kind in ("POW", "REDUCE_PROD", "MUL"):
        d = drawer()
        x = d.input((1, 2, 8), "uint8", 1.0, 0)
        out = d.new((1, 2, 1) if kind == "REDUCE_PROD" else x.shape, "uint8", 1.0, 0)
        second = {"POW": d.tensor((1,), "uint8", 1.0, 0, [2]), "REDUCE_PROD": d.ints([2]), "MUL": x.number}[kind]
        options = {"POW": "PowOptions", "REDUCE_PROD": "ReducerOptions", "MUL": "MulOptions"}[kind]
        settings = {"keepDims": True} if kind == "REDUCE_PROD" else {}
        d.operator(kind, [x.number, second], [out.number], options, **settings)
        model = read_model(compile_model(d.write(tmp_path / f"{kind}.tflite"), chip, tmp_path))
        assert any(isinstance(call, NpuCall) for call in model.calls) == (kind == "MUL")
    inputs = [np.arange(16, dtype=np.uint8).reshape(1, 1, 2, 8)]
    assert Twin(model).run_batch(inputs)[0].reshape(-1).tolist() == [*(n * n for n in range(16))]
    assert Twin(model).run_batch([value + 240 for value in inputs])[0].min() == 255


def two_tables_of_16_bits(d: Drawer) -> None:
    """Two inverse roots with a sum before each, as the division by a standard deviation has them."""
    made, scale = d.input((1, 1, 1, 8), "int16", 3e-5, 0), 3e-5
    for sum_scale, root_scale in ((6.3e-5, 1e-3), (2e-3, 1e-4)):
        offset = d.tensor((), "int16", 1.1 * scale, 0, np.asarray(32767))
        total, root = d.new(made.shape, "int16", sum_scale, 0), d.new(made.shape, "int16", root_scale, 0)
        options = {"fusedActivationFunction": 0, "potScaleInt16": False}
        d.operator("ADD", [made.number, offset], [total.number], "AddOptions", **options)
        d.operator("RSQRT", [total.number], [root.number])
        made, scale = root, root_scale


def test_two_tables_of_one_chain_are_the_second_on_a_u85(tmp_path):
    """TFLite-Micro has no tables there and is a step off both chips; the U55 loads each where it is read."""
    d = drawer()
    two_tables_of_16_bits(d)
    model = d.write(tmp_path / "net.tflite")
    small, large = (compare(model, f"ethos-{chip}-256", tmp_path) for chip in ("u55", "u85"))
    assert small.worst <= 2 < large.worst
    assert excuse(model, "ethos-u85-256") and not excuse(model, "ethos-u55-256")
    (call,) = (call for call in large.model.calls if isinstance(call, NpuCall))
    loads = [op.registers["DMA0_DST"] for op in call.stream.operations if op.kind == "dma"]
    assert len(loads) == 2 and len(set(loads)) == 1
    assert [op.kind for op in call.stream.operations] == ["dma", "dma", "elementwise", "elementwise"]

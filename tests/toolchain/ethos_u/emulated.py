"""What the NPU computes where Vela 5.2.0 compiles an operator to something else: the values explain a difference.

docs/ethos-u.md has the table. Values that come from memory which nothing of the operator has written are not known:
they are drawn several times, and only what does not depend on them is compared. What is refused has no values:
`excuses.py` has those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from compiled import Comparison, CpuCall, lite, operator_by_operator, taught
from convolved import (
    SAME,
    axes_of,
    grouped_with_batches,
    narrow_bias,
    pictures_of,
    pixel_by_pixel,
    scaled,
    square_picture,
    sums,
    twice_rounded,
)

from anynpu.targets.flatbuffer import TfliteOperator, TfliteTensor, operators

DRAWS = 8
"""How often unknown memory is drawn: a value that is the same every time does not depend on it."""
SLICES = ("SPLIT", "SPLIT_V", "SLICE", "STRIDED_SLICE", "UNPACK")
RECTIFIED = {"RELU": (0, math.inf), "RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}
TABLED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "LOGISTIC": lambda real: 1 / (1 + np.exp(np.minimum(-real, 700))),
    "TANH": np.tanh,
}
COMPARED = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
}


class Unknown:
    """Memory that nothing of an operator has written: the lowest values, then the highest, then random ones."""

    def __init__(self, draw: int) -> None:
        self._draw = draw
        self._rng = np.random.default_rng(draw)
        self.used = False

    def like(self, tensor: TfliteTensor, shape: tuple[int, ...]) -> np.ndarray:
        self.used = True
        limits = np.iinfo(tensor.dtype)
        if self._draw < 2:
            return np.full(shape, (limits.min, limits.max)[self._draw], tensor.dtype)
        return self._rng.integers(limits.min, limits.max, shape, tensor.dtype, endpoint=True)


@dataclass(frozen=True)
class Site:
    """An operator on a chip, and the operator that makes each tensor."""

    op: TfliteOperator
    chip: str
    makers: Mapping[str, TfliteOperator]

    @property
    def maker(self) -> TfliteOperator | None:
        """The operator that makes the first input."""
        return self.makers.get(self.op.inputs[0].name) if self.op.inputs[0] else None


@dataclass(frozen=True)
class Defect:
    """What an operator becomes, where it does, and what then comes out of many samples."""

    what: str
    applies: Callable[[Site], bool]
    compute: Callable[[Site, list[np.ndarray], CpuCall, Unknown], np.ndarray]


def defects_of(graph: Sequence[TfliteOperator], chip: str) -> dict[int, tuple[Site, Defect]]:
    """Returns the operators of a graph that may become something else on the NPU."""
    makers = {made.name: op for op in graph for made in op.outputs}
    sites = (Site(op, chip, makers) for op in graph)
    return {
        number: (site, defect)
        for number, site in enumerate(sites)
        if (defect := next((defect for defect in DEFECTS if defect.applies(site)), None))
    }


def explained(model: Path, chip: str, comparison: Comparison) -> str:
    """Returns the defects that give exactly the twin's values; an empty string where none do."""
    on_npu = comparison.npu_outputs(model)
    found = {
        number: (site, defect)
        for number, (site, defect) in defects_of(operators(model), chip).items()
        if site.op.outputs[0].name in on_npu
    }
    draws: list[list[np.ndarray]] = []
    for draw in range(DRAWS):
        unknown = Unknown(draw)

        def instead(
            number: int, call: CpuCall, values: list[np.ndarray], unknown: Unknown = unknown
        ) -> list[np.ndarray] | None:
            if number not in found:
                return None
            site, defect = found[number]
            return [defect.compute(site, values, call, unknown)]

        draws.append(operator_by_operator(model, comparison.inputs, instead))
        if not unknown.used:
            break
    settled = 0
    for got, *wanted in zip(comparison.got, *draws, strict=True):
        known = np.all([values == wanted[0] for values in wanted], axis=0)
        if (got.reshape(known.shape) != wanted[0])[known].any():
            return ""
        settled += int(known.sum())
    return "; ".join(dict.fromkeys(defect.what for _, defect in found.values())) if settled else ""


def reduced(op: TfliteOperator) -> list[int]:
    """Returns the axes of a reduction in the order of the file."""
    return [int(axis) % len(op.inputs[0].shape) for axis in op.inputs[1].data.reshape(-1)]


def sum_of_one_axis(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    source, out = op.inputs[0], op.outputs[0]
    total = (values[0].astype(np.int64) - source.zero_point[0]).sum(axis=reduced(op)[0] + 1)
    fraction, exponent = math.frexp(source.scale[0] / out.scale[0])
    scale, shift = round(fraction * (1 << 31)), 31 - exponent
    limits = np.iinfo(out.dtype)
    result = np.clip((total * scale + (1 << (shift - 1)) >> shift) + out.zero_point[0], limits.min, limits.max)
    return result.reshape(len(result), -1)[:, : math.prod(out.shape)].astype(out.dtype).reshape(-1, *out.shape)


def last_axes(op: TfliteOperator) -> list[int]:
    """Returns the last of the axes of a reduction that lie behind each other."""
    axes = sorted(reduced(op))
    first = next(i for i in range(len(axes)) if axes[-1] - axes[i] == len(axes) - 1 - i)
    return axes[first:]


def loses_axes(site: Site) -> bool:
    op = site.op
    if op.kind not in ("REDUCE_MAX", "REDUCE_MIN") or op.options.keepDims:
        return False
    return math.prod(op.outputs[0].shape) > math.prod(op.inputs[0].shape[last_axes(op)[-1] + 1 :])


def sliding_extreme(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    source, out = op.inputs[0], op.outputs[0]
    last, lowest, limits = last_axes(op), op.kind == "REDUCE_MIN", np.iinfo(out.dtype)
    extreme, fill = (np.min, limits.max) if lowest else (np.max, limits.min)
    pictures = values[0]
    if others := tuple(axis + 1 for axis in set(reduced(op)) - set(last)):
        pictures = extreme(pictures, axis=others, keepdims=True)
    width, depth = source.shape[last[-1]], math.prod(source.shape[last[-1] + 1 :])
    height = math.prod(source.shape[axis] for axis in last[:-1])
    pictures = pictures.reshape(len(pictures), -1, height, width, depth)
    columns = out.shape[len(out.shape) - len(source.shape[last[-1] + 1 :]) - 1]
    result = np.full((len(pictures), math.prod(out.shape) // depth // columns, columns, depth), fill, out.dtype)
    for row, place in np.ndindex(result.shape[1], min(width, columns)):
        result[:, row, place] = extreme(pictures[:, row, :, place:], axis=(1, 2))
    return result.reshape(-1, *out.shape)


def clipped_transpose(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    order = [0, *(int(axis) + 1 for axis in op.inputs[1].data.reshape(-1))]
    return np.where(values[0] > 127, np.uint8(0), values[0]).transpose(order)


def unscaled_comparison(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    sides = list(values)
    for place, tensor in enumerate(op.inputs):
        if tensor.data is not None:
            sides.insert(place, tensor.data.reshape(1, *tensor.shape))
    first, second = (
        side.astype(np.int64) - tensor.zero_point[0] for side, tensor in zip(sides, op.inputs, strict=True)
    )
    return np.broadcast_to(COMPARED[op.kind](first, second), (len(values[0]), *op.outputs[0].shape))


def at_half_pixels(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    picture, out = values[0], op.outputs[0].shape
    for axis in (1, 2):
        places = (np.arange(out[axis]) * 2 + 1) * picture.shape[axis + 1] // (2 * out[axis])
        picture = picture.take(places, axis=axis + 1)
    return picture


def late_by(op: TfliteOperator) -> tuple[int, int]:
    """Returns by how many rows and columns a transposed convolution begins too late."""
    strides = (op.options.strideH, op.options.strideW)
    return tuple(max(0, stride - side) // 2 for stride, side in zip(strides, op.inputs[1].shape[1:3], strict=True))  # type: ignore[return-value]


def late_transpose_conv(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    (result,) = taught(call, values)
    return np.roll(result, late_by(op), axis=(2, 3))  # what rolls from the end to the front has the bias alone


def product_of_litert(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    return lite(call.model, values, 1)[0]


def rescaled_in_float(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    source, out = op.inputs[0], op.outputs[0]
    fraction, exponent = math.frexp(np.float32(source.scale[0]) / np.float32(out.scale[0]))
    scale, places = np.array(round(fraction * (1 << 31))), np.array(31 - exponent)
    rescaled = twice_rounded(values[0].astype(np.int64) - source.zero_point[0], scale, places) + out.zero_point[0]
    lowest, highest = RECTIFIED[op.kind]
    limits = np.iinfo(out.dtype)
    low = max(limits.min, out.zero_point[0] + round(lowest / out.scale[0]))
    high = limits.max if math.isinf(highest) else min(limits.max, out.zero_point[0] + round(highest / out.scale[0]))
    return np.clip(rescaled, low, high).astype(out.dtype)


def tabled(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    source, out = site.op.inputs[0], site.op.outputs[0]
    real = (values[0].astype(np.float64) - source.zero_point[0]) * source.scale[0]
    limits = np.iinfo(out.dtype)
    result = np.round(TABLED[site.op.kind](real) / out.scale[0]) + out.zero_point[0]
    return np.clip(result, limits.min, limits.max).astype(out.dtype)


def pads_outside_of_pictures(op: TfliteOperator) -> bool:
    """Returns whether MIRROR_PAD pads another axis than the second and the third from the end."""
    if op.kind != "MIRROR_PAD":
        return False
    pads = op.inputs[1].data.reshape(-1, 2)
    return any(pads[axis].any() for axis in range(len(pads)) if axis - len(pads) not in (-2, -3))


def mirrored_pictures(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    """Rows and columns are mirrored; channels and batches lie at the front, and what is behind them is not written."""
    op = site.op
    pads = op.inputs[1].data.reshape(-1, 2)
    mode = "symmetric" if op.options.mode else "reflect"
    around = [tuple(pad) if axis - len(pads) in (-2, -3) else (0, 0) for axis, pad in enumerate(pads)]
    written = np.pad(values[0], [(0, 0), *around], mode)
    result = unknown.like(op.outputs[0], (len(written), *op.outputs[0].shape))
    result[tuple(map(slice, written.shape))] = written
    return result


def multiplies_channels(op: TfliteOperator | None) -> bool:
    return op is not None and op.kind == "DEPTHWISE_CONV_2D" and op.options.depthMultiplier > 1


def in_pieces(site: Site) -> bool:
    """Returns whether several operations of the NPU make the first input: none of them knows where it goes."""
    product = site.maker is not None and site.maker.kind == "BATCH_MATMUL" and "u85" not in site.chip
    return product or multiplies_channels(site.maker)


def padded_over(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    (padded,) = taught(call, values)
    result = unknown.like(site.op.outputs[0], padded.shape)
    result[tuple(map(slice, values[0].shape))] = values[0]
    pads = [(0, 0), *site.op.inputs[1].data.reshape(-1, 2)]
    inside = tuple(slice(before, before + length) for (before, _), length in zip(pads, values[0].shape, strict=True))
    around = np.ones(padded.shape, bool)
    around[inside] = False
    return np.where(around, padded, result)


def in_a_square(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    out = op.outputs[0].shape
    beyond = unknown.like(op.inputs[0], values[0].shape)
    total = sums(op, square_picture(op, values[0], beyond), *axes_of(op))
    return scaled(op, total, site.chip).reshape(-1, *out)


def rounded_twice(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    return scaled(op, sums(op, pictures_of(op, values[0]), *axes_of(op)), site.chip).reshape(-1, *op.outputs[0].shape)


def padded_at_the_end(site: Site, values: list[np.ndarray], call: CpuCall, unknown: Unknown) -> np.ndarray:
    op = site.op
    rows, columns = (replace(axis, before=0, after=axis.before + axis.after) for axis in axes_of(op))
    return scaled(op, sums(op, pictures_of(op, values[0]), rows, columns), site.chip).reshape(-1, *op.outputs[0].shape)


DEFECTS = (
    Defect(
        "CONV_2D of single pixels in groups takes the pixels of all batches for one square picture",
        lambda site: grouped_with_batches(site.op) and pixel_by_pixel(site.op),
        in_a_square,
    ),
    Defect(
        "CONV_2D in groups with batches pads at the end alone",
        lambda site: grouped_with_batches(site.op) and site.op.options.padding == SAME,
        padded_at_the_end,
    ),
    Defect(
        "16-bit inputs with a 32-bit bias are rounded twice, and the U85's scale is cut to 15 bits",
        lambda site: site.op.kind in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED") and narrow_bias(site.op),
        rounded_twice,
    ),
    Defect(
        "DEPTHWISE_CONV_2D with a multiplier pads a slice at its end alone",
        lambda site: (
            multiplies_channels(site.op)
            and site.op.options.padding == SAME
            and site.maker is not None
            and site.maker.kind in SLICES
        ),
        padded_at_the_end,
    ),
    Defect(
        "PAD of DEPTHWISE_CONV_2D with a multiplier or of BATCH_MATMUL lays it into the corner, the padding over it",
        lambda site: site.op.kind in ("PAD", "PADV2") and in_pieces(site),
        padded_over,
    ),
    Defect(
        "MIRROR_PAD leaves channels and batches unpadded",
        lambda site: pads_outside_of_pictures(site.op),
        mirrored_pictures,
    ),
    Defect(
        "MUL of 16 bits has a scale of 24 bits, which LiteRT computes too; TFLite-Micro's has 31",
        lambda site: site.op.kind == "MUL" and site.op.inputs[0].dtype == "int16",
        product_of_litert,
    ),
    Defect(
        "RELU of 16 bits to another scale has the quotient of the scales in 24 bits",
        lambda site: site.op.kind in RECTIFIED and site.op.inputs[0].dtype == "int16",
        rescaled_in_float,
    ),
    Defect(
        "LOGISTIC and TANH of 8 bits are tables of the exact values; TFLite-Micro's fixed point is beside some",
        lambda site: site.op.kind in TABLED and site.op.inputs[0].dtype == "int8",
        tabled,
    ),
    Defect(
        "TRANSPOSE_CONV, SAME, whose kernel is shorter than its stride by two begins one row or column too late",
        lambda site: (
            "u85" in site.chip
            and site.op.kind == "TRANSPOSE_CONV"
            and site.op.options.padding == SAME
            and any(late_by(site.op))
        ),
        late_transpose_conv,
    ),
    Defect(
        "SUM adds along the first of its axes alone, and rounds half up in fixed point",
        lambda site: site.op.kind == "SUM",
        sum_of_one_axis,
    ),
    Defect(
        "REDUCE_MAX and REDUCE_MIN to fewer axes take one window for each row, which slides out of it",
        loses_axes,
        sliding_extreme,
    ),
    Defect(
        "TRANSPOSE of uint8 moves it as int8: values above 127 become 0",
        lambda site: site.op.kind == "TRANSPOSE" and site.op.inputs[0].dtype == "uint8" and "u85" not in site.chip,
        clipped_transpose,
    ),
    Defect(
        "comparisons of tensors with different scales leave the scales out",
        lambda site: site.op.kind in COMPARED and site.op.inputs[0].scale != site.op.inputs[1].scale,
        unscaled_comparison,
    ),
    Defect(
        "RESIZE_NEAREST_NEIGHBOR without half pixel centres is computed with them",
        lambda site: (
            "u85" in site.chip
            and site.op.kind == "RESIZE_NEAREST_NEIGHBOR"
            and not (site.op.options.halfPixelCenters or site.op.options.alignCorners)
        ),
        at_half_pixels,
    ),
)

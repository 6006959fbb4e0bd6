"""What the NPU computes where Vela 5.2.0 compiles an operator to something else: the values explain a difference.

docs/ethos-u.md has the table. What depends on memory that nothing has written, or is refused, has no values to compare
with: `excuses.py` has those.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compiled import Comparison, CpuCall, lite, operator_by_operator, taught

from anynpu.targets.flatbuffer import TfliteOperator, operators

SAME = 0
COMPARED = {
    "EQUAL": np.equal,
    "NOT_EQUAL": np.not_equal,
    "GREATER": np.greater,
    "GREATER_EQUAL": np.greater_equal,
    "LESS": np.less,
    "LESS_EQUAL": np.less_equal,
}


@dataclass(frozen=True)
class Defect:
    """What an operator becomes, where it does, and what then comes out of many samples."""

    what: str
    applies: Callable[[TfliteOperator, str], bool]
    compute: Callable[[TfliteOperator, list[np.ndarray], CpuCall], np.ndarray]


def defect_of(op: TfliteOperator, chip: str) -> Defect | None:
    return next((defect for defect in DEFECTS if defect.applies(op, chip)), None)


def explained(model: Path, chip: str, comparison: Comparison) -> str:
    """Returns the defects that give exactly the twin's values; an empty string where none do."""
    graph, on_npu = operators(model), comparison.npu_outputs(model)
    found = {n: d for n, op in enumerate(graph) if op.outputs[0].name in on_npu and (d := defect_of(op, chip))}

    def instead(number: int, call: CpuCall, values: list[np.ndarray]) -> list[np.ndarray] | None:
        return [found[number].compute(graph[number], values, call)] if number in found else None

    wanted = operator_by_operator(model, comparison.inputs, instead)
    same = all(np.array_equal(g.reshape(w.shape), w) for g, w in zip(comparison.got, wanted, strict=True))
    return "; ".join(dict.fromkeys(defect.what for defect in found.values())) if same else ""


def axes_of(op: TfliteOperator) -> list[int]:
    """Returns the axes of a reduction in the order of the file."""
    return [int(axis) % len(op.inputs[0].shape) for axis in op.inputs[1].data.reshape(-1)]


def sum_of_one_axis(op: TfliteOperator, values: list[np.ndarray], call: CpuCall) -> np.ndarray:
    source, out = op.inputs[0], op.outputs[0]
    total = (values[0].astype(np.int64) - source.zero_point[0]).sum(axis=axes_of(op)[0] + 1)
    fraction, exponent = math.frexp(source.scale[0] / out.scale[0])
    scale, shift = round(fraction * (1 << 31)), 31 - exponent
    limits = np.iinfo(out.dtype)
    result = np.clip((total * scale + (1 << (shift - 1)) >> shift) + out.zero_point[0], limits.min, limits.max)
    return result.reshape(len(result), -1)[:, : math.prod(out.shape)].astype(out.dtype).reshape(-1, *out.shape)


def last_axes(op: TfliteOperator) -> list[int]:
    """Returns the last of the axes of a reduction that lie behind each other."""
    axes = sorted(axes_of(op))
    first = next(i for i in range(len(axes)) if axes[-1] - axes[i] == len(axes) - 1 - i)
    return axes[first:]


def loses_axes(op: TfliteOperator, chip: str) -> bool:
    if op.kind not in ("REDUCE_MAX", "REDUCE_MIN") or op.options.keepDims:
        return False
    return math.prod(op.outputs[0].shape) > math.prod(op.inputs[0].shape[last_axes(op)[-1] + 1 :])


def sliding_extreme(op: TfliteOperator, values: list[np.ndarray], call: CpuCall) -> np.ndarray:
    source, out = op.inputs[0], op.outputs[0]
    last, lowest, limits = last_axes(op), op.kind == "REDUCE_MIN", np.iinfo(out.dtype)
    extreme, fill = (np.min, limits.max) if lowest else (np.max, limits.min)
    pictures = values[0]
    if others := tuple(axis + 1 for axis in set(axes_of(op)) - set(last)):
        pictures = extreme(pictures, axis=others, keepdims=True)
    width, depth = source.shape[last[-1]], math.prod(source.shape[last[-1] + 1 :])
    height = math.prod(source.shape[axis] for axis in last[:-1])
    pictures = pictures.reshape(len(pictures), -1, height, width, depth)
    columns = out.shape[len(out.shape) - len(source.shape[last[-1] + 1 :]) - 1]
    result = np.full((len(pictures), math.prod(out.shape) // depth // columns, columns, depth), fill, out.dtype)
    for row, place in np.ndindex(result.shape[1], min(width, columns)):
        result[:, row, place] = extreme(pictures[:, row, :, place:], axis=(1, 2))
    return result.reshape(-1, *out.shape)


def clipped_transpose(op: TfliteOperator, values: list[np.ndarray], call: CpuCall) -> np.ndarray:
    order = [0, *(int(axis) + 1 for axis in op.inputs[1].data.reshape(-1))]
    return np.where(values[0] > 127, np.uint8(0), values[0]).transpose(order)


def unscaled_comparison(op: TfliteOperator, values: list[np.ndarray], call: CpuCall) -> np.ndarray:
    sides = list(values)
    for place, tensor in enumerate(op.inputs):
        if tensor.data is not None:
            sides.insert(place, tensor.data.reshape(1, *tensor.shape))
    first, second = (
        side.astype(np.int64) - tensor.zero_point[0] for side, tensor in zip(sides, op.inputs, strict=True)
    )
    return np.broadcast_to(COMPARED[op.kind](first, second), (len(values[0]), *op.outputs[0].shape))


def at_half_pixels(op: TfliteOperator, values: list[np.ndarray], call: CpuCall) -> np.ndarray:
    picture, out = values[0], op.outputs[0].shape
    for axis in (1, 2):
        places = (np.arange(out[axis]) * 2 + 1) * picture.shape[axis + 1] // (2 * out[axis])
        picture = picture.take(places, axis=axis + 1)
    return picture


def late_by(op: TfliteOperator) -> tuple[int, int]:
    """Returns by how many rows and columns a transposed convolution begins too late."""
    strides = (op.options.strideH, op.options.strideW)
    return tuple(max(0, stride - side) // 2 for stride, side in zip(strides, op.inputs[1].shape[1:3], strict=True))  # type: ignore[return-value]


def late_transpose_conv(op: TfliteOperator, values: list[np.ndarray], call: CpuCall) -> np.ndarray:
    (result,) = taught(call, values)
    return np.roll(result, late_by(op), axis=(2, 3))  # what rolls from the end to the front has the bias alone


def product_of_litert(op: TfliteOperator, values: list[np.ndarray], call: CpuCall) -> np.ndarray:
    return lite(call.model, values, 1)[0]


DEFECTS = (
    Defect(
        "MUL of 16 bits has a scale of 24 bits, which LiteRT computes too; TFLite-Micro's has 31",
        lambda op, chip: op.kind == "MUL" and op.inputs[0].dtype == "int16",
        product_of_litert,
    ),
    Defect(
        "TRANSPOSE_CONV, SAME, whose kernel is shorter than its stride by two begins one row or column too late",
        lambda op, chip: (
            "u85" in chip and op.kind == "TRANSPOSE_CONV" and op.options.padding == SAME and any(late_by(op))
        ),
        late_transpose_conv,
    ),
    Defect(
        "SUM adds along the first of its axes alone, and rounds half up in fixed point",
        lambda op, chip: op.kind == "SUM",
        sum_of_one_axis,
    ),
    Defect(
        "REDUCE_MAX and REDUCE_MIN to fewer axes take one window for each row, which slides out of it",
        loses_axes,
        sliding_extreme,
    ),
    Defect(
        "TRANSPOSE of uint8 moves it as int8: values above 127 become 0",
        lambda op, chip: op.kind == "TRANSPOSE" and op.inputs[0].dtype == "uint8" and "u85" not in chip,
        clipped_transpose,
    ),
    Defect(
        "comparisons of tensors with different scales leave the scales out",
        lambda op, chip: op.kind in COMPARED and op.inputs[0].scale != op.inputs[1].scale,
        unscaled_comparison,
    ),
    Defect(
        "RESIZE_NEAREST_NEIGHBOR without half pixel centres is computed with them",
        lambda op, chip: (
            "u85" in chip
            and op.kind == "RESIZE_NEAREST_NEIGHBOR"
            and not (op.options.halfPixelCenters or op.options.alignCorners)
        ),
        at_half_pixels,
    ),
)

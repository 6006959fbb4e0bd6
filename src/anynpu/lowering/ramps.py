"""Tables as sums of ramps: an Ethos-U55 or U65 reads no table but those of functions that its compiler knows.

A ramp rises from zero to one between two of the 256 integers and stays there, as a convolution gives it whose result is
cut at both ends. The table is its first entry and the sum of ramps, each times what the table gains along it. Where the
ramps end, the sum has the table's own integers; between them it is rounded as the table is, or to the next integer.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from anynpu.lowering.graph import Operator, Tensor, int32
from anynpu.lowering.options import Conv2D, Reshape
from anynpu.tensors import Array, Quantization

MOST_RAMPS = 1 << 22
"""How many values the ramps of one table may have."""
LONGEST_SIDE = 1 << 16
"""How many rows or columns of pixels an NPU takes."""
_EXACT, _NEAR = 0.45, 1.0
"""How far between its ends a ramp may be away from the table, in integers: rounded to the same, or to the next."""
_TOP = 255
_MOST_GAIN = 127


def ramped(source: Tensor, result: Tensor, table: Array, tensors: dict[str, Tensor]) -> list[Operator] | None:
    """Returns the operators that give the table's entries for 8-bit integers, None where they would be too many."""
    rows, columns = math.prod(source.shape[:-1]), source.shape[-1] if source.shape else 1
    entries = table.astype(np.int64)
    knots = next((k for slack in (_EXACT, _NEAR) if (len(k := _knots(entries, slack)) * source.size) <= MOST_RAMPS), [])
    before, after = source.quantization, result.quantization
    if not knots or max(rows, columns) >= LONGEST_SIDE or before is None or after is None:
        return None
    ramps = list[tuple[int, int, int]]()
    for start, end in pairwise(knots):
        gain = int(entries[end] - entries[start])
        count = -(-abs(gain) // _MOST_GAIN)  # steeper than eight bits hold: several of them
        ramps += [(start, end - start, (gain * (n + 1)) // count - (gain * n) // count) for n in range(count)]
    starts, lengths, gains = np.asarray(ramps or [(0, 1, 0)]).T
    image, stem, (scale,), (point,) = (1, rows, columns, 1), result.name, before.scale, before.zero_point
    (step,), (zero,) = after.scale, after.zero_point
    rising = Quantization(tuple((1 / (127 * scale * lengths)).tolist()), (0,) * len(starts), 0)
    biases = Quantization(tuple((1 / (127 * lengths)).tolist()), (0,) * len(starts), 0)
    parts = {
        "pixels": Tensor("", image, "int8", None, before),
        "rising": Tensor("", (len(starts), 1, 1, 1), "int8", np.full((len(starts), 1, 1, 1), 127, np.int8), rising),
        "starts": Tensor("", starts.shape, "int32", int32(127 * (point - (starts - 128))), biases),
        "ramps": Tensor("", (1, rows, columns, len(starts)), "int8", None, Quantization((1 / _TOP,), (-128,))),
        "gains": Tensor("", (1, 1, 1, len(gains)), "int8", gains.astype(np.int8).reshape(1, 1, 1, -1), _plain(step)),
        "first": Tensor("", (1,), "int32", int32([_TOP * (int(entries[0]) - zero)]), _plain(step / _TOP)),
        "sums": Tensor("", image, "int8", None, after),
        "image": Tensor("", (4,), "int32", int32(image)),
        "shape": Tensor("", (len(result.shape),), "int32", int32(result.shape)),
    }
    names = {key: f"{stem}/{key}" for key in parts}
    for key, tensor in parts.items():
        tensors[names[key]] = Tensor(names[key], tensor.shape, tensor.dtype, tensor.data, tensor.quantization)
    return [
        Operator("RESHAPE", (source.name, names["image"]), (names["pixels"],), Reshape(image)),
        Operator("CONV_2D", (names["pixels"], names["rising"], names["starts"]), (names["ramps"],), Conv2D()),
        Operator("CONV_2D", (names["ramps"], names["gains"], names["first"]), (names["sums"],), Conv2D()),
        Operator("RESHAPE", (names["sums"], names["shape"]), (stem,), Reshape(result.shape)),
    ]


def _plain(scale: float) -> Quantization:
    return Quantization((scale,), (0,))


def _knots(table: Array, slack: float) -> list[int]:
    """Returns where ramps begin and end: each as long as it stays near the table, with what is rounded of its steps."""
    knots, last = [0], len(table) - 1
    while knots[-1] < last:
        start = knots[-1]
        end = start + 1
        while end < last:
            line = np.linspace(table[start], table[end + 1], end - start + 2)
            rounded = abs(table[end + 1] - table[start]) / (2 * _TOP)
            if np.abs(line - table[start : end + 2]).max() + rounded > slack:
                break
            end += 1
        knots.append(end)
    return knots

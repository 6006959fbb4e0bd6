"""Scales of stored weights: symmetric, one for all or one for each output channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anynpu.tensors import Array

if TYPE_CHECKING:
    from anynpu.quantize.plan import QuantPlan

Floats = NDArray[np.float64]
# What the weights of a dead channel shrink to in training; their scales, and those of their biases, leave float32.
_DEAD = 2.0**-90
# Below eight bits the largest weight is better cut off: these shares of it are tried.
_CUTS = np.linspace(1.0, 0.3, 36)
_POWERS = 0.5 ** np.arange(5)


def integer_bits(dtype: str) -> int:
    """Returns the width of an integer type, 4 for "int4"."""
    return int(dtype.lstrip("uint"))


def largest_integer(bits: int) -> int:
    """Returns the largest integer of weights; the smallest is its negative."""
    return int(2 ** (bits - 1)) - 1


def planned_scales(weights: Array, axis: int | None, bits: int, plan: QuantPlan) -> Floats:
    """Returns the scales that a plan gives weights of some bits."""
    return np.asarray(symmetric_scales(weights, axis, bits, plan.power_of_two) * plan.weight_room)


def symmetric_scales(weights: Array, axis: int | None, bits: int, power_of_two: bool = False) -> Floats:
    """Returns the scales of symmetric weights: up to the largest one with eight bits, with the least squared error
    below and of powers of two. A channel of zeros, or of what training has left of a dead one, has the finest scale of
    the others."""
    values = np.asarray(weights, np.float64)
    rows = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    top = np.abs(rows).max(axis=1) if rows.shape[1] else np.zeros(len(rows))
    alive = top > _DEAD
    top = np.where(alive, top, top[alive].min() if alive.any() else 1.0)
    most = largest_integer(bits)
    if bits >= 8 and not power_of_two:
        return np.asarray(top / most)
    widest, cuts = (2.0 ** np.ceil(np.log2(top / most)), _POWERS) if power_of_two else (top / most, _CUTS)
    best, least = widest, np.full(len(rows), np.inf)
    for cut in cuts:
        scale = (widest * cut)[:, None]
        error = ((rows - np.clip(np.rint(rows / scale), -most, most) * scale) ** 2).sum(axis=1)
        best, least = np.where(error < least, scale[:, 0], best), np.minimum(error, least)
    return best

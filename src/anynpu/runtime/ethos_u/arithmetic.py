"""How the NPU scales and rounds: 64-bit integers, exactly as the hardware computes them."""

from __future__ import annotations

from enum import Enum

import numpy as np

from anynpu.tensors import Array

WORD = 31
"""The width of a scale: TFLite's double rounding rounds once behind the multiplication and once behind the shift."""


class Rounding(Enum):
    """What happens to the bits that a shift drops."""

    DOUBLE = "TFLite's: half up behind the multiplication, then half away from zero behind the rest of the shift"
    NATURAL = "half up"
    AWAY = "half away from zero"
    DOWN = "down"
    TO_ZERO = "towards zero"


def shift_natural(values: Array, shift: Array | int) -> Array:
    """Returns the values divided by 2^shift, half rounded up."""
    if isinstance(shift, int):
        return (values + (1 << (shift - 1))) >> shift if shift > 0 else values
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    rounded: Array = (values + half) >> shift
    return rounded


def shift_away(values: Array, shift: Array | int) -> Array:
    """Returns the values divided by 2^shift, half rounded away from zero."""
    if isinstance(shift, int):
        return (values + ((1 << (shift - 1)) - (values < 0))) >> shift if shift > 0 else values
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    rounded: Array = (values + (half - ((values < 0) & (shift > 0)))) >> shift
    return rounded


def shift_to_zero(values: Array, shift: Array | int) -> Array:
    """Returns the values divided by 2^shift without the fraction."""
    return np.asarray(np.sign(values) * (np.abs(values) >> shift))


def shift(values: Array, places: Array | int, rounding: Rounding) -> Array:
    """Returns the values divided by 2^places."""
    if rounding is Rounding.DOWN:
        return values >> places
    if rounding is Rounding.TO_ZERO:
        return shift_to_zero(values, places)
    return shift_natural(values, places) if rounding is Rounding.NATURAL else shift_away(values, places)


def rescale(values: Array, scale: Array | int, places: Array | int, rounding: Rounding) -> Array:
    """Returns values * scale / 2^places."""
    if isinstance(scale, int) and scale == 1 and isinstance(places, int) and places == 0:
        return values
    product = values * scale
    if rounding is not Rounding.DOUBLE:
        return shift(product, places, rounding)
    if isinstance(places, int):
        return shift_away(shift_natural(product, min(places, WORD)), max(places - WORD, 0))
    product = shift_natural(product, np.minimum(places, WORD))
    rest = np.maximum(places - WORD, 0)
    return shift_away(product, rest) if rest.any() else product


def leading_zeros(values: Array) -> Array:
    """Returns how many of 32 bits are zero before the first that is not."""
    bits = values.astype(np.int64) & 0xFFFFFFFF
    return np.asarray(32 - np.frexp(bits.astype(np.float64))[1], np.int64)

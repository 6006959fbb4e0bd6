"""Tables that are interpolated, and the curves that the hardware has for 16 bits."""

from __future__ import annotations

import functools

import numpy as np

from anynpu.tensors import Array

CURVE_ABOVE = 0x800000000000000000000000000000800011009020440005C0467BAEFA7BD110
"""At which steps TFLite's entries are one above what rounding gives."""


def interpolate(table: Array, values: Array) -> Array:
    """Returns what a table of 512 entries gives for 16-bit values: a value in 16 bits, and above it the slope."""
    entry = table[(values >> 7) + 256].astype(np.int64)
    return np.asarray(entry.astype(np.int16) + (((entry >> 16) * (values & 127) + 64) >> 7))


def logistic_steps(count: int) -> Array:
    """Returns TFLite's entries of the logistic curve at 1 / 24 and its multiples, in 16 bits.

    They are rounded but for some that are one above.
    """
    steps = np.arange(count)
    above = np.array([CURVE_ABOVE >> step & 1 for step in range(count)])
    return np.asarray(np.minimum(np.round(65536 / (1 + np.exp(-steps / 24))) + above, 65535), np.int64)


@functools.cache
def curve_table() -> Array:
    """Returns TFLite's curve, which the hardware has: tanh(x / 48) at whole x, and its slope in the upper half."""
    right = logistic_steps(257) - 32768
    points = np.concatenate([-right[:0:-1], right])
    return (np.diff(points) << 16 | points[:-1] & 0xFFFF).astype(np.uint32).view(np.int32)


def curve(table: Array, values: Array, tanh: bool) -> Array:
    """Returns TANH or SIGMOID of values in steps of 1 / 3 of 2^-12, as TFLite computes them at 16 bits."""
    bits = 8 if tanh else 9
    inside = np.clip(values, -(255 << bits), (255 << bits) - 1)
    entry = table[(inside >> bits) + 256].astype(np.int64)
    slope = entry >> 16
    whole = (entry.astype(np.int16).astype(np.int64) << bits) + slope * (inside & ((1 << bits) - 1))
    half = np.where(values < 0, 127, 128) if tanh else np.where(values < 0, 511, 512) + (1 << 24)
    result = (whole + half) >> (8 if tanh else 10)
    far = np.abs(values) >> bits >= 255
    return np.asarray(np.where(far, np.where(values < 0, -32767 if tanh else 1, 32767), result))

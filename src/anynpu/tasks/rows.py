"""Rows of numbers as a model stores them, read only where something is to be found."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from anynpu.errors import AccuracyError
from anynpu.tensors import Array, TensorSpec

_HALF_INFINITY = 0x7C00


@dataclass(frozen=True)
class Rows:
    """Stored numbers [rows, candidates]; `scale` and `zero` hold one number, or one a row, or None for plain floats."""

    stored: Array
    scale: Array | None = None
    zero: Array | None = None

    @classmethod
    def of(cls, spec: TensorSpec, stored: Array, axis: int) -> Rows:
        """Returns one output, its batch taken off, as rows along `axis`; the other axes are the candidates."""
        moved = np.moveaxis(stored[0], axis - 1, 0)
        rows = moved.reshape(len(moved), -1)
        how = spec.quantization
        if how is None:
            return cls(rows)
        if how.axis is not None and how.axis % stored.ndim != axis:
            return cls(np.moveaxis(how.dequantize(stored)[0], axis - 1, 0).reshape(rows.shape))
        return cls(rows, np.asarray(how.scale, np.float64), np.asarray(how.zero_point, np.int64))

    def __getitem__(self, part: slice) -> Rows:
        if self.scale is None or self.zero is None or len(self.scale) == 1:
            return Rows(self.stored[part], self.scale, self.zero)
        return Rows(self.stored[part], self.scale[part], self.zero[part])

    def __len__(self) -> int:
        return len(self.stored)

    def above(self, threshold: float) -> Array:
        """Returns the candidates with a row above `threshold`, found without turning integers into reals.

        Integers that stand for `threshold` itself, but for rounding, may be among them.
        """
        if threshold == math.inf or threshold == -math.inf:
            return np.arange(self.stored.shape[1] if threshold < 0 else 0)
        if self.scale is None or self.zero is None:
            return np.flatnonzero(_floats_above(self.stored, threshold))
        # real > t is stored > t / scale + zero point, and both sides of that are whole numbers after rounding down.
        steps = threshold / self.scale
        least = np.floor(steps - np.abs(steps) * 1e-6) + self.zero
        if len(least) == 1:
            return np.flatnonzero(self.stored.max(0) > least[0])
        return np.flatnonzero((self.stored > least[:, None]).any(0))

    def real(self, candidates: Array) -> Array:
        """Returns what the numbers of some candidates stand for, [rows, candidates]."""
        # A gather along the contiguous axis reads each number of a candidate from its own line of memory, once.
        stored = self.stored.take(candidates, axis=1)
        if self.scale is None or self.zero is None:
            return stored.astype(np.float32)
        return ((stored - self.zero[:, None]) * self.scale[:, None]).astype(np.float32)


def _floats_above(values: Array, threshold: float) -> Array:
    """Returns which columns have a number above `threshold`."""
    if values.dtype == np.float16 and threshold >= 0:
        # Numpy has no fast arithmetic on half floats; the bits of those above zero are in the order of the numbers.
        bits: Array = values.view(np.int16).max(0)
        _refuse_nan(bool((bits > _HALF_INFINITY).any()))
        return bits > _half_below(threshold)
    greatest: Array = values.max(0) if values.dtype != np.float16 else values.astype(np.float32).max(0)
    _refuse_nan(bool(np.isnan(greatest).any()))
    return greatest > threshold


def _half_below(threshold: float) -> int:
    """Returns the bits of the greatest half float that is not above `threshold`."""
    near = np.float16(min(threshold, 65504.0))
    below = np.nextafter(near, np.float16(-1)) if near > threshold else near
    return int(max(below, np.float16(0)).view(np.int16))


def _refuse_nan(found: bool) -> None:
    if found:
        raise AccuracyError(
            "the model gives scores that are not numbers", "finite scores", 0.0, 1.0, hint="look for NaN in its weights"
        )

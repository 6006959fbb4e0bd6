"""Rows of numbers as a model stores them, read only where something is to be found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from anynpu.tensors import Array, TensorSpec

# The integers as wide as a float.
_BITS: dict[Any, Any] = {np.dtype(np.float32): np.dtype(np.int32), np.dtype(np.float16): np.dtype(np.int16)}


@dataclass(slots=True)
class Rows:
    """Stored numbers [rows, candidates]; `scale` and `zero` hold one number, or one a row, or None for plain floats."""

    stored: Array
    scale: Array | None = None
    zero: Array | None = None

    @classmethod
    def of(cls, spec: TensorSpec, stored: Array, axis: int) -> Rows:
        """Returns one output as rows along `axis`, the second or the last; the axes but the first are candidates."""
        count = stored.shape[axis]
        rows = stored.reshape(count, -1) if axis == 1 else stored.reshape(-1, count).T
        how = spec.quantization
        if how is None:
            return cls(rows)
        if how.axis is not None and how.axis % stored.ndim != axis:
            return cls.of(TensorSpec(spec.name, spec.shape), how.dequantize(stored), axis)
        return cls(rows, np.asarray(how.scale, np.float64), np.asarray(how.zero_point, np.int64))

    def __getitem__(self, part: slice) -> Rows:
        if self.scale is None or self.zero is None or len(self.scale) == 1:
            return Rows(self.stored[part], self.scale, self.zero)
        scale, zero = self.scale[part], self.zero[part]
        if (scale == scale[0]).all() and (zero == zero[0]).all():
            scale, zero = scale[:1], zero[:1]
        return Rows(self.stored[part], scale, zero)

    def __len__(self) -> int:
        return len(self.stored)

    def above(self, threshold: float) -> Array:
        """Returns the candidates with a row above `threshold`, found without turning integers into reals.

        Those that equal it, but for rounding, may be among them; those with a row that is not a number are.
        """
        if threshold == math.inf or threshold == -math.inf:
            return np.arange(self.stored.shape[1] if threshold < 0 else 0)
        if self.scale is None or self.zero is None:
            return _floats_above(self.stored, threshold).nonzero()[0]
        # real > t is stored > t / scale + zero point, and both sides of that are whole numbers after rounding down.
        steps = threshold / self.scale
        least = np.floor(steps - np.abs(steps) * 1e-6) + self.zero
        if len(least) == 1:
            return np.flatnonzero(self.stored.max(0) > least[0])
        limits = np.iinfo(self.stored.dtype)
        never = least >= limits.max
        bounds = np.where(never, limits.max, np.maximum(least, limits.min - 1)).astype(np.int64)
        always = bounds < limits.min
        inside = np.maximum(bounds, limits.min).astype(self.stored.dtype)
        return np.flatnonzero(((self.stored > inside[:, None]) | always[:, None]).any(0))

    def real(self, candidates: Array) -> Array:
        """Returns what the numbers of some candidates stand for, [rows, candidates]."""
        return self._real(self.stored.take(candidates, axis=1))

    def columns(self, candidates: Array) -> Array:
        """Returns the same, a candidate's numbers side by side in memory: its best row is found faster."""
        return self._real(self.stored[:, candidates])

    def _real(self, stored: Array) -> Array:
        if self.scale is None or self.zero is None:
            return stored.astype(np.float32, copy=False)
        return ((stored - self.zero[:, None]) * self.scale[:, None]).astype(np.float32)


def _floats_above(values: Array, threshold: float) -> Array:
    """Returns which columns have a number above `threshold` or equal to it, or what is not a number."""
    if values.dtype in _BITS and threshold >= 0:
        # The bits of floats from zero up are in the order of the numbers, and integers compare faster; half floats,
        # for which numpy has no arithmetic, ten times.
        integer = _BITS[values.dtype]
        bits: Array = values.view(integer).max(0)
        return np.asarray(bits >= np.array(threshold, values.dtype).view(integer))
    greatest: Array = values.astype(np.float32, copy=False).max(0)
    return ~(greatest < threshold)

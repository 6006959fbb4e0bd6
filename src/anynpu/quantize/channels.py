"""Channels of a tensor: reductions over all the others of its axes, at the speed of memory."""

from __future__ import annotations

import numpy as np

from anynpu.tensors import Array

_WIDE = 4096
"""How many values numpy adds or compares at a time: rows of a few channels are laid side by side."""


def channel_rows(values: Array, axis: int) -> Array:
    """Returns a tensor as rows of its channels; what stands in this order, or channel by channel, is not copied."""
    if axis % values.ndim == values.ndim - 1:
        return values.reshape(-1, values.shape[-1])
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1).T


def by_channel(reduction: np.ufunc, rows: Array) -> Array:
    """Returns the sum, the smallest or the largest value of each channel of some rows."""
    wide = np.int64 if reduction is np.add and rows.dtype.kind in "iu" else None
    beside = _WIDE // max(rows.shape[1], 1) if rows.flags.c_contiguous else 1
    whole = len(rows) - len(rows) % beside if beside > 1 else 0
    if whole:
        folded = reduction.reduce(rows[:whole].reshape(-1, beside * rows.shape[1]), axis=0, dtype=wide)
        rows = np.concatenate([folded.reshape(beside, -1), rows[whole:]])
    return np.asarray(reduction.reduce(rows, axis=0, dtype=wide))

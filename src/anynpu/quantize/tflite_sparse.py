"""Reads constants of a .tflite file that are stored sparse: dense and compressed axes in any order, and blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.tflite_file import text, type_name
from anynpu.tensors import DTYPES, Array

AGAIN = "convert or download the model again"
COMPRESSED = 1
"""The form of an axis whose coordinates are listed; 0 is one that is walked whole."""
MOST_BYTES = 2**31 - 1
"""What a constant may take with its zeros: a TFLite file cannot hold more."""


def dense_values(model: Any, tensor: Any) -> Array | None:
    """Returns a sparse constant with its zeros, None for a tensor that is not sparse or holds no numbers."""
    form, kind = tensor.sparsity, type_name(tensor.type)
    stored = model.buffers[tensor.buffer].data
    if form is None or stored is None or not len(stored) or kind not in DTYPES:
        return None
    shape = [int(size) for size in tensor.shape]
    order = [] if form.traversalOrder is None else [int(axis) for axis in form.traversalOrder]
    blocks = [] if form.blockMap is None else [int(axis) for axis in form.blockMap]
    levels, values = form.dimMetadata or [], np.asarray(stored, np.uint8).view(kind)
    if len(order) != len(levels) or sorted(order) != list(range(len(shape) + len(blocks))):
        raise IntegrityError(f"tensor '{text(tensor.name)}' is stored sparse along axes that it does not have", AGAIN)
    if (nbytes := math.prod(shape) * values.itemsize) > MOST_BYTES:
        raise IntegrityError(f"tensor '{text(tensor.name)}' takes {nbytes / 2**30:,.0f} GiB with its zeros", AGAIN)
    # One row for each place that is reached so far, one column for each level that was walked
    places, positions = np.zeros((1, 0), np.int64), np.zeros(1, np.int64)
    for level in levels:
        if level.format == COMPRESSED:
            segments, listed = (np.asarray(part.values, np.int64) for part in (level.arraySegments, level.arrayIndices))
            counts = segments[positions + 1] - segments[positions]
        else:
            counts = np.full(len(positions), level.denseSize)
        if counts.min(initial=0) < 0 or counts.sum() > math.prod(shape):
            raise IntegrityError(
                f"tensor '{text(tensor.name)}' is stored sparse and has more values than places", AGAIN
            )
        if level.format == COMPRESSED:
            positions = np.concatenate([np.arange(segments[p], segments[p + 1]) for p in positions] or [positions])
            coordinates = listed[positions]
        else:
            coordinates = np.tile(np.arange(level.denseSize), len(positions))
            positions = np.repeat(positions, counts) * level.denseSize + coordinates
        places = np.column_stack([np.repeat(places, counts, axis=0), coordinates])
    block_sizes = [int(levels[order.index(len(shape) + at)].denseSize) for at in range(len(blocks))]
    axes = [places[:, order.index(axis)] for axis in range(len(order))]
    for at, axis in enumerate(blocks):
        axes[axis] = axes[axis] * block_sizes[at] + axes[len(shape) + at]
    result = np.zeros(shape, kind)
    result[tuple(axes[: len(shape)])] = values[positions]
    return result

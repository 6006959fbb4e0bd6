"""Non-maximum suppression: of boxes that lie on one another, the one with the highest score stays."""

from __future__ import annotations

import numpy as np

from anynpu.tensors import Array

_BLOCK = 256


def keep(boxes: Array, scores: Array, classes: Array, iou: float, most: int) -> Array:
    """Returns which boxes stay, best first: none overlaps a better one of its class by more than `iou`.

    Boxes are (x0, y0, x1, y1). Of equal scores the earlier box goes first. At most `most` stay, so that the work is
    bounded by `most` times the number of boxes.
    """
    order = np.argsort(-scores, kind="stable")
    corners = np.ascontiguousarray(boxes[order].T, np.float64)
    kinds = classes[order]
    kept: list[int] = []
    for start in range(0, len(order), _BLOCK):
        stop = min(start + _BLOCK, len(order))
        alive = ~_covered(corners, kinds, kept, start, stop, iou)
        _settle(corners[:, start:stop], kinds[start:stop], alive, iou)
        kept += (np.flatnonzero(alive) + start).tolist()
        if len(kept) >= most:
            break
    return order[kept[:most]]


def _covered(corners: Array, kinds: Array, kept: list[int], start: int, stop: int, iou: float) -> Array:
    """Returns which boxes of a block overlap one that stays already."""
    if not kept:
        return np.zeros(stop - start, bool)
    over = _overlaps(corners[:, kept], kinds[kept], corners[:, start:stop], kinds[start:stop], iou)
    return np.asarray(over.any(0))


def _settle(corners: Array, kinds: Array, alive: Array, iou: float) -> None:
    """Strikes out of `alive` every box of a block that overlaps a better one that is alive."""
    over = _overlaps(corners, kinds, corners, kinds, iou)
    # Most boxes cover nothing behind them: only the others need their turn.
    for index in np.flatnonzero(np.triu(over, 1).any(1)).tolist():
        if alive[index]:
            alive[index + 1 :] &= ~over[index, index + 1 :]


def _overlaps(a: Array, kinds_a: Array, b: Array, kinds_b: Array, iou: float) -> Array:
    """Returns whether each box of `a` and each of `b` are of one class and overlap by more than `iou`."""
    width = np.minimum(a[2][:, None], b[2]) - np.maximum(a[0][:, None], b[0])
    height = np.minimum(a[3][:, None], b[3]) - np.maximum(a[1][:, None], b[1])
    common = np.maximum(width, 0) * np.maximum(height, 0)
    together = _areas(a)[:, None] + _areas(b) - common
    over: Array = (common > iou * together) & (kinds_a[:, None] == kinds_b)
    return over


def _areas(corners: Array) -> Array:
    return np.asarray(np.maximum(corners[2] - corners[0], 0) * np.maximum(corners[3] - corners[1], 0))

"""Non-maximum suppression: of boxes that lie on one another, the one with the highest score stays."""

from __future__ import annotations

import numpy as np

from anynpu.tensors import Array

# The best of those that wait are settled among themselves, then strike out what lies behind them: fewer and larger
# calls of numpy than box by box.
_BLOCK = 64


def keep(boxes: Array, scores: Array, classes: Array, iou: float, most: int) -> Array:
    """Returns which boxes stay, best first: none overlaps a better one of its class by more than `iou`.

    Boxes are (x0, y0, x1, y1). Of equal scores the earlier box goes first. At most `most` stay, so that the work is
    bounded by `most` times the number of boxes.
    """
    waiting = np.argsort(-scores, kind="stable")
    corners = _apart(boxes, classes)
    kept: list[int] = []
    while len(waiting) and len(kept) < most:
        block, waiting = waiting[:_BLOCK], waiting[_BLOCK:]
        own = corners.take(block, 1)
        stay = _greedy(_overlaps(own, own, iou))
        kept += block.take(stay).tolist()
        if len(waiting):
            waiting = waiting[~_overlaps(own.take(stay, 1), corners.take(waiting, 1), iou).any(0)]
    return np.asarray(kept[:most], np.int64)


def _apart(boxes: Array, classes: Array) -> Array:
    """Returns corners and areas [5, n], each class moved to a place of its own, where it meets no other."""
    corners = np.empty((5, len(boxes)))
    corners[:4] = boxes.T
    sides = corners[2:4] - corners[:2]
    np.maximum(sides, 0, out=sides)
    np.multiply(sides[0], sides[1], out=corners[4])
    if len(classes) and classes.min() != classes.max():
        corners[:4] += classes * (corners[:4].max() - corners[:4].min() + 1)
    return corners


def _greedy(over: Array) -> list[int]:
    """Returns the boxes, sorted by score, that no box before them which stays overlaps."""
    packed = np.packbits(over, axis=1, bitorder="little")
    struck, stay = 0, []
    for index in range(len(over)):
        if not struck >> index & 1:
            stay.append(index)
            struck |= int.from_bytes(packed[index].tobytes(), "little")
    return stay


def _overlaps(a: Array, b: Array, iou: float) -> Array:
    """Returns whether each box of `a` and each of `b` overlap by more than `iou`."""
    width = np.minimum(a[2][:, None], b[2])
    width -= np.maximum(a[0][:, None], b[0])
    np.maximum(width, 0, out=width)
    common = np.minimum(a[3][:, None], b[3])
    common -= np.maximum(a[1][:, None], b[1])
    common *= width  # below zero where only the heights are apart: that is no overlap either
    together = a[4][:, None] + b[4]
    together -= common
    together *= iou
    over: Array = common > together
    return over

"""Non-maximum suppression: of boxes that lie on one another, the one with the highest score stays."""

from __future__ import annotations

import numpy as np

from anynpu.tensors import Array


def keep(boxes: Array, scores: Array, classes: Array, iou: float, most: int) -> Array:
    """Returns which boxes stay, best first: none overlaps a better one of its class by more than `iou`.

    Boxes are (x0, y0, x1, y1). Of equal scores the earlier box goes first. At most `most` stay, so that the work is
    bounded by `most` times the number of boxes.
    """
    waiting = np.argsort(-scores, kind="stable")
    corners = _apart(boxes, classes).take(waiting, 1)
    kept: list[int] = []
    while len(waiting) and len(kept) < most:
        kept.append(int(waiting[0]))
        free = _free(corners, iou)
        corners, waiting = corners.take(free, 1), waiting.take(free)
    return np.asarray(kept, np.int64)


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


def _free(corners: Array, iou: float) -> Array:
    """Returns the boxes that do not overlap the first by more than `iou`, without the first."""
    sides = np.minimum(corners[2:4, 1:], corners[2:4, :1])
    sides -= np.maximum(corners[:2, 1:], corners[:2, :1])
    np.maximum(sides, 0, out=sides)
    common = sides[0] * sides[1]
    most = corners[4, 1:] + corners[4, 0]
    most -= common
    most *= iou
    return np.flatnonzero(common <= most) + 1

"""Non-maximum suppression: of boxes that lie on one another, the one with the highest score stays."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

import numpy as np

from anynpu.tensors import Array

# So few boxes are settled one by one faster than by calls of numpy. Of more, the best this many are settled among
# themselves, then strike out what lies behind them.
_FEW = 100
# From this many classes on, the best box of each strikes out what lies behind it first, all classes at once.
_LEADERS = 4
# Rows of the table of boxes that wait, best first.
_RANK, _AREA, _CLASS, _X0, _Y0, _X1, _Y1 = range(7)


def keep(boxes: Array, scores: Array, classes: Array, iou: float, most: int) -> Array:
    """Returns which boxes stay, best first: none overlaps a better one of its class by more than `iou`.

    Boxes are (x0, y0, x1, y1), classes are numbers from 0. Of equal scores the earlier box goes first. At most `most`
    stay, so that the work is bounded by `most` times the number of boxes.
    """
    if len(scores) <= _FEW:
        rows = zip(range(len(scores)), scores.tolist(), classes.tolist(), *boxes.T.tolist(), strict=True)
        return np.array(_one_by_one(sorted(rows, key=itemgetter(1), reverse=True), iou)[:most], np.intp)
    order = np.argsort(-scores, kind="stable")
    kept: list[float] = []
    # Ranks, areas, classes and corners [7, n], best box first
    table = np.empty((7, len(order)))
    table[_RANK] = np.arange(len(order))
    table[_CLASS] = classes.take(order)
    table[_X0:] = boxes.T.take(order, 1)
    sides = np.maximum(table[_X1:] - table[_X0:_X1], 0)
    np.multiply(sides[0], sides[1], out=table[_AREA])
    waiting = _behind_leaders(table, kept, iou, most)
    # Leaders are not the best of all: as many as are wanted may be among those behind them.
    waiting = _behind_blocks(waiting, kept, iou, len(kept) + most)
    if waiting.shape[1] <= _FEW:
        kept += _one_by_one(zip(*waiting.tolist(), strict=True), iou)
    return order.take(np.array(sorted(kept)[:most], np.intp))


def _one_by_one(rows: Iterable[tuple[float, ...]], iou: float) -> list[float]:
    """Returns the first number of the rows, best box first, that overlap no better one of their class which stays."""
    stay: list[float] = []
    by_class: dict[float, list[tuple[float, ...]]] = {}
    for rank, _, number, left, top, right, bottom in rows:
        better = by_class.setdefault(number, [])
        area = (right - left) * (bottom - top)
        for x0, y0, x1, y1, other in better:
            width = (right if right < x1 else x1) - (left if left > x0 else x0)
            if width <= 0:
                continue
            height = (bottom if bottom < y1 else y1) - (top if top > y0 else y0)
            common = width * height
            if height > 0 and common > (area + other - common) * iou:
                break
        else:
            better.append((left, top, right, bottom, area))
            stay.append(rank)
    return stay


def _behind_leaders(waiting: Array, kept: list[float], iou: float, most: int) -> Array:
    """Adds the best box of each class to `kept`, again and again; returns those that wait when classes are few."""
    while waiting.shape[1] > _FEW and len(kept) < most:
        # Box by box, where the first of its class is
        classes = waiting[_CLASS].astype(np.intp)
        first = np.empty(classes.max() + 1, np.intp)
        first[classes[::-1]] = np.arange(len(classes) - 1, -1, -1)  # of equal indices the last assignment stays
        first = first.take(classes)
        leads = first == np.arange(len(first))
        if np.count_nonzero(leads) < _LEADERS:
            break
        kept += waiting[_RANK, leads].tolist()
        waiting = waiting[:, ~(leads | _overlaps(waiting.take(first, 1), waiting, iou))]
    return waiting


def _behind_blocks(waiting: Array, kept: list[float], iou: float, most: int) -> Array:
    """Adds boxes to `kept`, block by block; returns those that wait when they are few."""
    while waiting.shape[1] > _FEW and len(kept) < most:
        block, waiting = waiting[:, :_FEW], waiting[:, _FEW:]
        # The boxes, sorted by score, that no box before them which stays overlaps
        over = _meeting(block, block, iou)
        packed = np.packbits(over, axis=1, bitorder="little")
        width, rows = packed.shape[1], packed.tobytes()
        alive, stay = (1 << len(over)) - 1, []
        while alive:
            best = (alive & -alive).bit_length() - 1
            stay.append(best)
            alive &= ~(1 << best | int.from_bytes(rows[best * width : (best + 1) * width], "little"))
        block = block.take(stay, 1)
        kept += block[_RANK].tolist()
        waiting = waiting[:, ~_meeting(block, waiting, iou).any(0)]
    return waiting


def _meeting(a: Array, b: Array, iou: float) -> Array:
    """Returns whether each box of `a` and each of `b` are of one class and overlap by more than `iou`."""
    over = _overlaps(a[:, :, None], b, iou)
    over &= a[_CLASS][:, None] == b[_CLASS]
    return over


def _overlaps(a: Array, b: Array, iou: float) -> Array:
    """Returns whether boxes of `a` and `b` overlap by more than `iou`."""
    width = np.minimum(a[_X1], b[_X1])
    width -= np.maximum(a[_X0], b[_X0])
    np.maximum(width, 0, out=width)
    common = np.minimum(a[_Y1], b[_Y1])
    common -= np.maximum(a[_Y0], b[_Y0])
    common *= width  # below zero where only the heights are apart: that is not an overlap either
    together = a[_AREA] + b[_AREA]
    together -= common
    together *= iou
    over: Array = common > together
    return over

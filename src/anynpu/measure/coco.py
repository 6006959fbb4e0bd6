"""Average precision and recall of detections, exactly as pycocotools computes them for boxes.

Ten overlaps from 0.50 to 0.95, 101 recalls, four ranges of area, and the best 1, 10 or 100 detections of an image and
class. Images can be weighted: an image that counts twice is an image that was drawn twice, so a bootstrap over images
matches nothing anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.tensors import Array

OVERLAPS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
AREAS = np.array([[0, 1e10], [0, 32**2], [32**2, 96**2], [96**2, 1e10]])
MOST = (1, 10, 100)
FIGURES = (
    *("map50-95", "map50", "map75", "map-small", "map-medium", "map-large"),
    *("ar1", "ar10", "ar100", "ar-small", "ar-medium", "ar-large"),
)
"""The twelve numbers that pycocotools prints, in its order."""


@dataclass(frozen=True)
class Truth:
    """What is in one image: boxes (left, top, width, height) [n, 4] with their classes and areas.

    A crowd's overlap is measured by the detection alone. Crowds, and boxes that are `ignored`, make detections neither
    right nor wrong, however many of them.
    """

    boxes: Array
    classes: Array
    areas: Array
    crowd: Array
    ignored: Array

    def __len__(self) -> int:
        return len(self.classes)


@dataclass(frozen=True)
class Found:
    """What a detector says of one image: boxes (left, top, width, height) [n, 4], scores and classes."""

    boxes: Array
    scores: Array
    classes: Array


@dataclass(frozen=True)
class OneClass:
    """All detections of one class, best first, and the objects that there are in each image.

    `hits` and `ignored` are [area, overlap, detection]; `rank` is the place of a detection in its own image.
    """

    image: Array
    rank: Array
    hits: Array
    ignored: Array
    objects: Array


@dataclass(frozen=True)
class Matches:
    """Every detection of a data set, matched with the truth."""

    images: int
    classes: tuple[OneClass, ...]

    @property
    def detections(self) -> int:
        return sum(len(each.image) for each in self.classes)


def overlaps(boxes: Array, truth: Array, crowd: Array) -> Array:
    """Returns the overlap of every found box with every true one [found, true]; boxes as in Truth."""
    a, b = boxes[:, None].astype(np.float64), truth[None].astype(np.float64)
    sides = np.minimum(a[..., 2:] + a[..., :2], b[..., 2:] + b[..., :2]) - np.maximum(a[..., :2], b[..., :2])
    shared = np.where((sides > 0).all(axis=-1), sides[..., 0] * sides[..., 1], 0.0)
    areas_a, areas_b = a[..., 2] * a[..., 3], b[..., 2] * b[..., 3]
    whole = np.where(crowd[None], areas_a, areas_a + areas_b - shared)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=shared > 0)


def match(truths: Sequence[Truth], detections: Sequence[Found], classes: int) -> Matches:
    """Returns the detections of every image matched with what is there, class by class."""
    parts: list[list[tuple[Array, ...]]] = [[] for _ in range(classes)]
    objects = np.zeros((classes, len(truths), len(AREAS)), np.int64)
    for image, (truth, seen) in enumerate(zip(truths, detections, strict=True)):
        for number in np.union1d(truth.classes, seen.classes).astype(int):
            if 0 <= number < classes:
                part, objects[number, image] = _matched(truth, seen, number)
                parts[number].append((np.full(len(part[0]), image), *part))
    empty = np.zeros((len(AREAS), len(OVERLAPS), 0), np.bool_)
    nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), empty, empty)
    joined = []
    for of_class, there in zip(parts, objects, strict=True):
        columns = zip(nothing, *of_class, strict=True)
        at, rank, scores, hits, ignored = (np.concatenate(each, axis=-1) for each in columns)
        order = np.argsort(-scores, kind="stable")  # best first; equal scores keep the order of images
        joined.append(OneClass(at[order], rank[order], hits[..., order], ignored[..., order], there))
    return Matches(len(truths), tuple(joined))


def _matched(truth: Truth, detections: Found, number: int) -> tuple[tuple[Array, ...], Array]:
    """Returns rank, score, hits and ignored of one image's detections of a class, and its objects by area."""
    there, seen = truth.classes == number, np.flatnonzero(detections.classes == number)
    seen = seen[np.argsort(-detections.scores[seen], kind="stable")][: MOST[-1]]
    crowd, free_again = truth.crowd[there], (truth.crowd | truth.ignored)[there]
    outside = _outside(truth.areas[there]) | free_again  # [area, object]
    boxes = detections.boxes[seen].astype(np.float64)
    hits = np.zeros((len(AREAS), len(OVERLAPS), len(seen)), np.bool_)
    ignored = np.zeros_like(hits)
    if there.any():
        shares = overlaps(boxes, truth.boxes[there], crowd)
        free = np.ones((*hits.shape[:2], shares.shape[1]), np.bool_)
        minimum = np.minimum(OVERLAPS, 1 - 1e-10)[None, :, None]
        last = shares.shape[1] - 1
        area, overlap = (np.asarray(each) for each in np.indices(hits.shape[:2]))
        for at, row in enumerate(shares):
            if row.max() < minimum[0, 0, 0]:
                continue
            open_ = (free | free_again) & (row >= minimum)
            counted = open_ & ~outside[:, None]
            chosen = np.where(counted.any(axis=2, keepdims=True), counted, open_)
            # Of equal overlaps the last object is taken, so the best is looked for from the end.
            best = last - np.asarray(np.where(chosen, row, -1.0)[:, :, ::-1]).argmax(axis=2, keepdims=True)[:, :, 0]
            hit = chosen.any(axis=2)
            hits[:, :, at] = hit
            ignored[:, :, at] = hit & outside[area, best]
            free[area[hit], overlap[hit], best[hit]] = False
    ignored |= ~hits & _outside(boxes[:, 2] * boxes[:, 3])[:, None]
    return (np.arange(len(seen)), detections.scores[seen], hits, ignored), (~outside).sum(axis=1)


def _outside(areas: Array) -> Array:
    return (areas[None] < AREAS[:, :1]) | (areas[None] > AREAS[:, 1:])


def precision(of: OneClass, area: int, counts: Array) -> Array:
    """Returns the precision, mean over recalls, at every overlap; NaN without an object; image i counts counts[i]."""
    objects = int(counts @ of.objects[:, area])
    if not objects:
        return np.full(len(OVERLAPS), np.nan)
    weight = counts[of.image] * ~of.ignored[area]
    right = np.cumsum(weight * of.hits[area], axis=1, dtype=np.int64)
    seen = np.cumsum(weight, axis=1, dtype=np.int64)
    best = np.zeros((len(OVERLAPS), weight.shape[1] + 1))  # beyond the last detection precision is nought
    best[:, :-1] = np.maximum.accumulate((right / (seen + np.spacing(1)))[:, ::-1], axis=1)[:, ::-1]
    # Where each recall is first reached, in one search: the hits of every overlap are set off by more than all objects.
    wanted = np.searchsorted(np.arange(objects + 1) / objects, RECALLS)
    row = np.arange(len(OVERLAPS))[:, None]
    away = row * (objects + 1)
    at = np.searchsorted((right + away).ravel(), (wanted + away).ravel()).reshape(len(row), -1) - row * weight.shape[1]
    return np.asarray(best[row, at].mean(axis=1))


def recall(of: OneClass, area: int, most: int, counts: Array) -> float:
    """Returns the share of objects found by the best detections of each image, mean over overlaps; NaN without one."""
    objects = int(counts @ of.objects[:, area])
    if not objects:
        return float("nan")
    weight = counts[of.image] * (of.rank < most)
    return float(((weight * (of.hits[area] & ~of.ignored[area])).sum(axis=1) / objects).mean())


def figures(matches: Matches, counts: Array | None = None) -> Array:
    """Returns the twelve numbers of FIGURES, then the AP and then the AP50 of every class; NaN where nothing counts.

    `counts` says how often every image counts; once each by default.
    """
    weights = np.ones(matches.images, np.int64) if counts is None else counts
    if not matches.classes:
        return np.full(len(FIGURES), np.nan)
    by_area = np.array([[precision(c, area, weights) for c in matches.classes] for area in range(len(AREAS))])
    recalls = [[recall(c, 0, most, weights) for c in matches.classes] for most in MOST]
    recalls += [[recall(c, area, MOST[-1], weights) for c in matches.classes] for area in (1, 2, 3)]
    chosen = (by_area[0], by_area[0][:, 0], by_area[0][:, 5], by_area[1], by_area[2], by_area[3], *recalls)
    each = [by_area[0].mean(axis=1), by_area[0][:, 0]]
    counted = [values[~np.isnan(values)] for values in map(np.asarray, chosen)]
    return np.concatenate([[values.mean() if values.size else np.nan for values in counted], *each])

"""Boxes from the map of a one-stage detector, and how good they are.

The map is (count, 5 + classes, rows, columns). Channel 0 is the objectness logit, the next `classes` channels
are class logits, the last four the distances from the centre of the cell to the left, top, right and bottom
side of the box, in cells. Boxes are (x0, y0, x1, y1) as shares of the image. A label row is
(class, x0, y0, x1, y1); class -1 is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
LEAST_SCORE = 0.05
MOST_BOXES = 50
NMS_OVERLAP = 0.45


@dataclass(frozen=True)
class Boxes:
    """Detections of one image, best first."""

    corners: Values
    scores: Values
    classes: npt.NDArray[np.int64]


def decode(image_map: Values) -> Boxes:
    """Returns the boxes of one (channels, rows, columns) map before suppression."""
    channels, rows, columns = image_map.shape
    cells = image_map.reshape(channels, -1)
    y, x = np.divmod(np.arange(rows * columns), columns)
    left, top, right, bottom = cells[-4:]
    corners = np.stack([(x + 0.5 - left) / columns, (y + 0.5 - top) / rows,
                        (x + 0.5 + right) / columns, (y + 0.5 + bottom) / rows], axis=1)  # fmt: skip
    classes = np.argmax(cells[1:-4], axis=0)
    scores = _sigmoid(cells[0]) * _sigmoid(np.max(cells[1:-4], axis=0))
    best = np.argsort(-scores, kind="stable")[:MOST_BOXES]
    best = best[scores[best] >= LEAST_SCORE]
    return Boxes(corners[best], scores[best], classes[best])


def _sigmoid(logits: Values) -> Values:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -60, 60))), np.float64)


def overlaps(first: Values, second: Values) -> Values:
    """Returns the intersection over union of every pair of boxes."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=2)
    area = [np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1) for boxes in (first, second)]
    return np.asarray(shared / np.maximum(area[0][:, None] + area[1][None] - shared, 1e-12), np.float64)


def suppress(boxes: Boxes) -> Boxes:
    """Returns the boxes that no better box of the same class covers."""
    covered = (overlaps(boxes.corners, boxes.corners) > NMS_OVERLAP) & (boxes.classes[:, None] == boxes.classes)
    keep: list[int] = []
    for index in range(len(boxes.scores)):
        if not covered[index, keep].any():
            keep.append(index)
    return Boxes(boxes.corners[keep], boxes.scores[keep], boxes.classes[keep])


def average_precision(scores: Values, hits: npt.NDArray[np.bool_], truths: int) -> float:
    """Returns the area under the precision-recall curve, precision made monotonic."""
    order = np.argsort(-scores, kind="stable")
    right = np.cumsum(hits[order])
    precision = right / np.arange(1, len(order) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(envelope[hits[order]]) / truths)


def mean_average_precision(maps: Values, labels: Values, overlap: float) -> float:
    """Returns the mean average precision over the classes that occur in the labels."""
    detections = [suppress(decode(image_map)) for image_map in maps]
    precisions = []
    for kind in np.unique(labels[labels[..., 0] >= 0][:, 0]):
        scores, hits, count = [], [], 0
        for boxes, rows in zip(detections, labels, strict=True):
            chosen, truths = boxes.classes == kind, rows[rows[:, 0] == kind][:, 1:]
            scores.append(boxes.scores[chosen])
            # Each box, best first, claims a truth that no earlier box has claimed.
            shared, free = overlaps(boxes.corners[chosen], truths), np.ones(len(truths), np.bool_)
            claims = np.zeros(len(shared), np.bool_)
            for index, row in enumerate(shared if len(truths) else ()):
                best = int(np.argmax(np.where(free, row, -1.0)))
                if free[best] and row[best] >= overlap:
                    claims[index], free[best] = True, False
            hits.append(claims)
            count += len(truths)
        precisions.append(average_precision(np.concatenate(scores), np.concatenate(hits), count))
    return float(np.mean(precisions)) if precisions else 0.0

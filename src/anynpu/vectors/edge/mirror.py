"""The vectors of a young layer once more, as one array in memory: numpy compares them in half of the engine's time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anynpu.tensors import Array
from anynpu.vectors.base import PointId

MOST_BYTES = 32 << 20
"""A layer of more vectors has no mirror: points came faster than they can be indexed, and the engine compares them."""


class Mirror:
    """Ids and vectors, compared with a question all at once."""

    def __init__(self, width: int) -> None:
        self._vectors = np.empty((256, width), np.float32)
        self._ids: list[PointId] = []
        self._places: dict[PointId, int] = {}

    def fits(self, more: int) -> bool:
        """Returns whether that many more points may be put in."""
        return (len(self._ids) + more) * self._vectors.shape[1] * 4 <= MOST_BYTES

    def put(self, ids: Sequence[PointId], vectors: Array) -> None:
        """Adds points; one that is there gets its new vector."""
        for id, vector in zip(ids, vectors, strict=True):
            place = self._places.setdefault(id, len(self._ids))
            if place == len(self._ids):
                self._ids.append(id)
                if place == len(self._vectors):
                    self._vectors = np.concatenate([self._vectors, np.empty_like(self._vectors)])
            self._vectors[place] = vector

    def remove(self, ids: Sequence[PointId]) -> None:
        """Takes points out; the last one moves to the place of one that goes."""
        for id in ids:
            place = self._places.pop(id, None)
            if place is not None:
                last = self._ids.pop()
                if last != id:
                    self._ids[place], self._places[last] = last, place
                    self._vectors[place] = self._vectors[len(self._ids)]

    def scores(self, vector: Array, limit: int) -> list[tuple[float, PointId]]:
        """Returns the scores and the ids of the nearest points, in no order; all of those that share the last place."""
        scores = self._vectors[: len(self._ids)] @ vector
        if limit < len(scores):
            last = np.partition(scores, -limit)[-limit]
            return [(float(scores[place]), self._ids[place]) for place in np.flatnonzero(scores >= last)]
        return list(zip(scores.tolist(), self._ids, strict=True))

"""What eight bits cost on the user's own pictures: how many of the ten nearest neighbours stay the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anynpu.apps.search.index import Index
from anynpu.apps.search.models import PictureModel
from anynpu.apps.search.points import IMAGES
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.tasks.picture import Picture, read_image
from anynpu.tasks.space import row_cosines
from anynpu.tensors import Array
from anynpu.vectors.transfer import rows_of

NEIGHBOURS = 10
RESAMPLES = 1000
BATCH = 16


@dataclass(frozen=True)
class Recall:
    """The share of neighbours that both models agree on, with its 95 % interval over pictures, and the mean cosine
    between the two vectors of one picture."""

    pictures: int
    neighbours: int
    recall: float
    low: float
    high: float
    cosine: float
    chance: float
    """What vectors that mean nothing would agree on."""
    unreadable: int


def recall(
    index: Index,
    other: PictureModel,
    samples: int,
    seed: int = 0,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Recall:
    """Returns how far another model (the float one) agrees with the vectors of an index, on pictures drawn from it."""
    collection = index.collection(IMAGES)
    rows = list(rows_of(collection)) if collection is not None else []
    if collection is None or len(rows) <= NEIGHBOURS + 1:
        raise ConfigError(f"{index.folder}: too few pictures are indexed ({len(rows)})", f"{NEIGHBOURS + 2} or more")
    if collection.spec.space.name != other.space.name:
        raise ConfigError(
            f"the pictures are indexed in space {collection.spec.space.name}, the other model's is {other.space.name}",
            "give the float model of the one that the index was made with",
        )
    if collection.spec.space.precision == other.space.precision:
        raise ConfigError(f"both models calculate in {other.space.precision}", "give the other form of the model")
    drawn = random.Random(seed).sample(rows, min(samples, len(rows)))
    ours: list[Array] = []
    theirs: list[Array] = []
    unreadable = 0
    for start in range(0, len(drawn), BATCH):
        named: list[tuple[str, Picture]] = []
        for row in drawn[start : start + BATCH]:
            picture = _first_readable(row.payload.get("paths"))
            if picture is None or row.vector is None:
                unreadable += 1
                continue
            named.append((str(row.id), picture))
            ours.append(row.vector)
        if named:
            theirs += list(other.embed(named))
        tell(min(start + BATCH, len(drawn)), len(drawn))
    if len(theirs) <= NEIGHBOURS + 1:
        raise ConfigError("too few of the indexed pictures can still be read", "index again")
    agreed = agreement(np.asarray(ours), np.asarray(theirs), NEIGHBOURS)
    rng = np.random.default_rng(seed)
    means = rng.choice(agreed, (RESAMPLES, len(agreed))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Recall(
        len(agreed),
        NEIGHBOURS,
        float(agreed.mean()),
        float(low),
        float(high),
        float(row_cosines(np.asarray(ours), np.asarray(theirs)).mean()),
        NEIGHBOURS / (len(agreed) - 1),
        unreadable,
    )


def agreement(ours: Array, theirs: Array, count: int) -> Array:
    """Returns, for every row, the share of its nearest neighbours that are the same in both."""
    shares = []
    for a, b in zip(_neighbours(ours, count), _neighbours(theirs, count), strict=True):
        shares.append(len(set(a.tolist()) & set(b.tolist())) / count)
    return np.asarray(shares)


def _neighbours(rows: Array, count: int) -> Array:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    scores = unit @ unit.T
    np.fill_diagonal(scores, -np.inf)
    return np.argpartition(-scores, count, axis=1)[:, :count]


def _first_readable(paths: object) -> Picture | None:
    from pathlib import Path

    for path in paths if isinstance(paths, list | tuple) else ():
        try:
            return read_image(Path(str(path)))
        except (AnyNpuError, OSError):
            continue
    return None

"""Do two servers say the same? Vectors of one width by their cosine, any vectors by who is whose neighbour."""

from __future__ import annotations

import numpy as np

from anynpu.measure.significance import paired_bootstrap
from anynpu.records.compare import Agreement
from anynpu.tasks.space import row_cosines
from anynpu.tensors import Array

FEWEST = 4
"""With fewer texts there are no neighbourhoods to speak of."""


def agreement(a: Array, b: Array) -> Agreement:
    """Returns how far two matrices of vectors, one row a text, agree."""
    cosines = row_cosines(a, b) if a.shape == b.shape else None
    count = len(a)
    nearest = min(10, max(1, (count - 1) // 3))
    overlap = ranks = None
    if count >= FEWEST:
        near_a, near_b = similarities(a), similarities(b)
        overlap = paired_bootstrap(shared_neighbours(near_a, near_b, nearest).tolist())
        ranks = paired_bootstrap(rank_correlations(near_a, near_b).tolist())
    return Agreement(
        count,
        a.shape[1],
        b.shape[1],
        None if cosines is None else paired_bootstrap(cosines.tolist()),
        None if cosines is None else float(cosines.min()),
        nearest,
        overlap,
        ranks,
    )


def similarities(vectors: Array) -> Array:
    """Returns the cosine of every text with every other [texts, texts - 1]."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors, dtype=np.float64), where=norms > 0)
    whole = unit @ unit.T
    count = len(vectors)
    return np.asarray(whole[~np.eye(count, dtype=bool)].reshape(count, count - 1))


def shared_neighbours(a: Array, b: Array, nearest: int) -> Array:
    """Returns for every text the share of its nearest neighbours that are the same."""
    top_a, top_b = (np.argsort(-each, axis=1, kind="stable")[:, :nearest] for each in (a, b))
    pairs = zip(top_a, top_b, strict=True)
    return np.asarray([len(set(one) & set(other)) / nearest for one, other in pairs])


def rank_correlations(a: Array, b: Array) -> Array:
    """Returns Spearman's correlation of every row."""
    ranks_a, ranks_b = (np.argsort(np.argsort(each, axis=1), axis=1).astype(np.float64) for each in (a, b))
    ranks_a -= ranks_a.mean(axis=1, keepdims=True)
    ranks_b -= ranks_b.mean(axis=1, keepdims=True)
    spread = np.sqrt((ranks_a**2).sum(axis=1) * (ranks_b**2).sum(axis=1))
    return np.asarray(np.divide((ranks_a * ranks_b).sum(axis=1), spread, out=np.ones_like(spread), where=spread > 0))

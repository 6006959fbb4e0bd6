"""A small space and vectors in it."""

from __future__ import annotations

import numpy as np

from anynpu.vectors.base import CollectionSpec, Field, VectorSpace

SPACE = VectorSpace("tiny", "f" * 64, 8)
FIELDS = (Field("taken", "float"), Field("folder", "keyword"), Field("number", "integer"))
SPEC = CollectionSpec("things", SPACE, FIELDS)


def directions(count: int, width: int = 8, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)

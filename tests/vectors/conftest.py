"""Stores to test on."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.vectors.base import CollectionSpec, Field, VectorSpace
from anynpu.vectors.edge.client import EdgeStore

SPACE = VectorSpace("tiny", "f" * 64, 8)
FIELDS = (Field("taken", "float"), Field("folder", "keyword"), Field("number", "integer"))
SPEC = CollectionSpec("things", SPACE, FIELDS)


def directions(count: int, width: int = 8, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="session")
def shared_edge_store(tmp_path_factory):
    with EdgeStore.at(str(tmp_path_factory.mktemp("vectors") / "store")) as store:
        yield store


@pytest.fixture
def edge_store(shared_edge_store):
    yield shared_edge_store
    for name in shared_edge_store.names():
        shared_edge_store.drop(name)

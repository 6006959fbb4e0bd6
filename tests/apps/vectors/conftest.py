"""Stores to test on."""

from __future__ import annotations

import os

import pytest

from anynpu.vectors.edge.client import EdgeStore
from anynpu.vectors.server import ServerStore


@pytest.fixture(scope="session")
def shared_edge_store(tmp_path_factory):
    with EdgeStore.at(str(tmp_path_factory.mktemp("vectors") / "store")) as store:
        yield store


@pytest.fixture
def edge_store(shared_edge_store):
    yield shared_edge_store
    for name in shared_edge_store.names():
        shared_edge_store.drop(name)


@pytest.fixture
def local_store():
    """The server's client on qdrant-client's local mode: Qdrant's answers by an implementation that is not ours."""
    from qdrant_client import QdrantClient

    with ServerStore(QdrantClient(":memory:"), ":memory:") as store:
        yield store


@pytest.fixture
def url_store():
    """A real server; what the suite makes there is dropped again."""
    url = os.environ.get("QDRANT_URL")
    if not url:
        pytest.skip("QDRANT_URL is not given: no Qdrant server to test on")
    with ServerStore.at(url, os.environ.get("QDRANT_API_KEY", "")) as store:
        before = set(store.names())
        yield store
        for name in set(store.names()) - before:
            store.drop(name)

"""The method of the first description: what it says, and that no sample is left out of the vector store."""

from __future__ import annotations

import hashlib
import os
import signal

import numpy as np
import pytest

from anynpu.apps.watch.registry import Registry
from anynpu.apps.watch.seed_method import LAST, SeedDetector, collection_spec
from anynpu.apps.watch.trace import HostTrace, Trace
from anynpu.errors import ConfigError
from anynpu.vectors.edge.client import EdgeStore

SPEC = collection_spec("watch", "f" * 64, 8, normalized=True)


def embed(lines):
    """Vectors that are alike for lines with the same CPU, and of a direction of their own otherwise."""
    rows = []
    for text in lines:
        digest = hashlib.sha256(text.split("cpu ")[1].encode()).digest()
        rows.append(np.random.default_rng(list(digest[:4])).standard_normal(8))
    vectors = np.array(rows, np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class OftenAway:
    """A collection of which every second write fails, as those of a server that restarts do."""

    def __init__(self, collection):
        self.collection, self.writes = collection, 0

    def __getattr__(self, name):
        return getattr(self.collection, name)

    def upsert(self, points):
        self.writes += 1
        if self.writes % 2:
            raise ConfigError("the store is away")
        self.collection.upsert(points)


def two_hosts(samples):
    time_s = 1_767_571_200.0 + np.arange(samples) * 30.0
    values = np.full((samples, 1), 20.0)
    values[-3] = 90.0
    return Trace(("cpu_percent",), [HostTrace(name, time_s, time_s, values) for name in ("a", "b")])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with EdgeStore.at(str(tmp_path_factory.mktemp("seed") / "store")) as store:
        yield store


@pytest.fixture
def collection(store):
    yield store.create(SPEC)
    store.drop(SPEC.name)


def test_a_sample_whose_vector_could_not_be_written_is_written_and_judged_when_it_comes_again(collection):
    registry, changes = Registry(), []
    detector = SeedDetector(registry, embed, OftenAway(collection))
    trace = two_hosts(40)
    for batch in trace.batches(registry):
        with pytest.raises(ConfigError, match="the store is away"):
            detector.update(batch)
        changes += detector.update(batch)
    assert collection.count() == 80
    assert [(change.host, change.test) for change in changes if change.ended_s is None] == [
        (0, "unlike"),
        (1, "unlike"),
    ]


def test_a_store_that_is_killed_between_samples_loses_none_and_the_last_20_are_found_again(store, collection):
    registry, trace = Registry(), two_hosts(60)
    batches = list(trace.batches(registry))
    detector = SeedDetector(registry, embed, collection)
    detector.update(batches[0])
    os.kill(store.process_id(), signal.SIGKILL)
    detector.update(batches[1])
    assert collection.count() == 120
    # A detector that starts anew sees the second batch again: it compares it with what came before, not with itself.
    other = SeedDetector(registry, embed, collection)
    changes = other.update(batches[1])
    assert collection.count() == 120
    assert len(other.recent[0]) == LAST and {change.test for change in changes} == {"unlike"}

"""The copy of a young layer's vectors in memory answers as a plain dictionary of them would."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_space import SPEC, directions

from anynpu.vectors.base import Filter, Match, Point
from anynpu.vectors.edge.client import EdgeStore
from anynpu.vectors.edge.mirror import MOST_BYTES, Mirror


@pytest.mark.parametrize("seed", range(5))
def test_a_mirror_follows_every_write(seed: int) -> None:
    chance = np.random.default_rng(seed)
    mirror, truth = Mirror(8), {}
    for _ in range(300):
        ids = [int(id) for id in chance.choice(600, chance.integers(1, 9), replace=False)]
        if chance.random() < 0.3:
            mirror.remove(ids)
            for id in ids:
                truth.pop(id, None)
        else:
            vectors = chance.standard_normal((len(ids), 8)).astype(np.float32)
            mirror.put(ids, vectors)
            truth |= dict(zip(ids, vectors, strict=True))
        question = chance.standard_normal(8).astype(np.float32)
        expected = sorted(((float(row @ question), id) for id, row in truth.items()), reverse=True)[:10]
        answer = sorted(mirror.scores(question, 10), reverse=True)
        assert [id for _, id in answer] == [id for _, id in expected]
        np.testing.assert_allclose([s for s, _ in answer], [s for s, _ in expected], rtol=1e-4, atol=1e-5)


def test_points_that_are_equally_near_are_all_returned() -> None:
    mirror = Mirror(4)
    mirror.put(list(range(20)), np.tile(np.float32([1, 0, 0, 0]), (20, 1)))
    assert {id for _, id in mirror.scores(np.float32([1, 0, 0, 0]), 5)} == set(range(20))


def test_a_mirror_has_a_limit() -> None:
    mirror = Mirror(1024)
    assert mirror.fits(MOST_BYTES // 4096)
    assert not mirror.fits(MOST_BYTES // 4096 + 1)


def test_layers_with_and_without_an_index_answer_as_one(tmp_path) -> None:
    truth: dict[int, np.ndarray] = {}

    def write(things, ids, seed) -> None:
        vectors = directions(len(ids), seed=seed)
        things.upsert([Point(id, row, {"number": id % 3}) for id, row in zip(ids, vectors, strict=True)])
        truth.update(zip(ids, vectors, strict=True))

    def compare(things) -> None:
        for question in directions(20, seed=9):
            for where, ids in (
                (None, list(truth)),
                (Filter(must=(Match("number", 1),)), [i for i in truth if i % 3 == 1]),
            ):
                best = sorted(ids, key=lambda id: -float(truth[id] @ question))[:10]
                hits = things.query(question, 10, where=where, with_vector=True)
                assert [hit.id for hit in hits] == best
                assert all(hit.payload == {"number": hit.id % 3} for hit in hits)
                np.testing.assert_allclose([hit.vector for hit in hits], [truth[id] for id in best], atol=1e-6)

    with EdgeStore.at(str(tmp_path / "s")) as store:
        things = store.create(SPEC)
        write(things, list(range(300)), 1)
        things.optimize()
        write(things, list(range(200, 400)), 2)
        things.delete(list(range(150, 250)))
        for id in range(150, 250):
            del truth[id]
        compare(things)
    with EdgeStore.at(str(tmp_path / "s")) as store:
        things = store.open("things")
        compare(things)
        write(things, [151, 399, 500], 3)
        compare(things)

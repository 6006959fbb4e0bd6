"""One suite for every store: whatever answers behind the interface, it answers the same."""

from __future__ import annotations

import uuid

import numpy as np
import pytest
from tiny_space import FIELDS, SPACE, SPEC, directions

from anynpu.errors import ConfigError
from anynpu.vectors.base import (
    AnyOf,
    CollectionSpec,
    Field,
    Filter,
    HasId,
    Match,
    Point,
    Range,
    VectorSpace,
)

ROWS = directions(60)
UUIDS = [str(uuid.UUID(int=number * 7919 + 2**100)) for number in range(20)]


def points():
    """40 points with numbers and 20 with UUIDs; every payload is of another form."""
    ids = [*range(40), *UUIDS]
    folders = [["a"], ["a", "a/b"], "c"]
    return [
        Point(
            id, row, {"taken": float(at), "folder": folders[at % 3], "number": at % 5, "note": {"é": [at, None, "x"]}}
        )
        for at, (id, row) in enumerate(zip(ids, ROWS, strict=True))
    ]


@pytest.fixture(params=["edge", "local", "url"])
def store(request):
    return request.getfixturevalue(f"{request.param}_store")


@pytest.fixture
def things(store):
    collection = store.create(SPEC)
    collection.upsert(points())
    return collection


def brute(vector, keep=lambda at: True):
    """Returns the places of the nearest rows by comparing with all."""
    order = np.argsort(-(ROWS @ vector), kind="stable")
    return [at for at in order if keep(at)]


def id_of(at):
    return at if at < 40 else UUIDS[at - 40]


def ids(found):
    return [each.id for each in found]


def test_a_new_store_is_empty(store):
    assert store.names() == []
    collection = store.create(SPEC)
    assert store.names() == ["things"]
    assert collection.count() == 0
    assert collection.query(ROWS[0]) == []
    assert collection.scroll().rows == ()
    assert collection.info().points == 0


def test_nearest_with_scores_and_payload(things):
    for vector in directions(20, seed=1):
        hits = things.query(vector, 5)
        assert ids(hits) == [id_of(at) for at in brute(vector)[:5]]
        assert np.allclose([hit.score for hit in hits], np.sort(ROWS @ vector)[::-1][:5], atol=1e-5)
    assert things.query(ROWS[3], 1)[0].payload == points()[3].payload


def test_vectors_only_when_asked_for(things):
    assert things.query(ROWS[50], 1)[0].vector is None
    hit = things.query(ROWS[50], 1, with_vector=True)[0]
    assert hit.id == UUIDS[10]
    assert np.allclose(hit.vector, ROWS[50], atol=1e-6)


def test_offset_goes_on_where_the_last_answer_ended(things):
    vector = directions(1, seed=2)[0]
    assert ids(things.query(vector, 3, offset=4)) == ids(things.query(vector, 7))[4:]


@pytest.mark.parametrize(
    ("where", "keep"),
    [
        (Filter(must=(Match("folder", "a"),)), lambda at: at % 3 < 2),
        (Filter(must=(Match("folder", "a/b"),)), lambda at: at % 3 == 1),
        (Filter(must=(Range("taken", gte=10, lt=20),)), lambda at: 10 <= at < 20),
        (Filter(must=(Range("taken", gt=10, lte=20),)), lambda at: 10 < at <= 20),
        (Filter(must_not=(Match("number", 2),)), lambda at: at % 5 != 2),
        (Filter(must=(AnyOf("number", (1, 4)),)), lambda at: at % 5 in (1, 4)),
        (Filter(should=(Match("folder", "c"), Match("number", 0))), lambda at: at % 3 == 2 or at % 5 == 0),
        (Filter(must=(HasId((3, UUIDS[2], 999)),)), lambda at: at in (3, 42)),
        (Filter(must=(Match("folder", "nowhere"),)), lambda at: False),
        (Filter(must=(Match("folder", "c"), Range("taken", gte=50))), lambda at: at % 3 == 2 and at >= 50),
    ],
)
def test_filters(things, where, keep):
    vector = directions(1, seed=3)[0]
    expected = [id_of(at) for at in brute(vector, keep)]
    assert ids(things.query(vector, 60, where=where)) == expected
    assert things.count(where) == len(expected)
    assert sorted(map(str, ids(things.scroll(where=where).rows))) == sorted(map(str, expected))


def test_scroll_gives_every_point_once_in_order(things):
    seen, after = [], None
    while True:
        page = things.scroll(after=after, limit=7, with_vector=True)
        seen += page.rows
        after = page.after
        if after is None:
            break
    assert ids(seen) == [*range(40), *sorted(UUIDS)]
    assert np.allclose(seen[3].vector, ROWS[3], atol=1e-6)
    assert seen[41].payload["note"] == {"é": [41, None, "x"]}


def test_retrieve_keeps_the_order_that_is_asked_for(things):
    assert ids(things.retrieve([UUIDS[1], 5, 777, 0, 5])) == [UUIDS[1], 5, 0]


def test_newest_by_a_field(things):
    assert [row.payload["taken"] for row in things.newest("taken", 4)] == [59, 58, 57, 56]
    found = things.newest("taken", 3, where=Filter(must=(Match("folder", "c"),)), with_vector=True)
    assert [row.payload["taken"] for row in found] == [59, 56, 53]
    assert np.allclose(found[0].vector, ROWS[59], atol=1e-6)
    with pytest.raises(ConfigError, match="no index of numbers"):
        things.newest("folder", 3)


def test_an_upsert_replaces_vector_and_payload(things):
    things.upsert([Point(3, -ROWS[3], {"taken": 1e9})])
    assert things.count() == 60
    row = things.retrieve([3], with_vector=True)[0]
    assert row.payload == {"taken": 1e9}
    assert np.allclose(row.vector, -ROWS[3], atol=1e-6)
    assert things.query(ROWS[3], 1)[0].id != 3
    assert things.newest("taken", 1)[0].id == 3


def test_the_last_of_two_points_with_one_id_counts(things):
    things.upsert([Point(500, ROWS[0], {"number": 1}), Point(500, ROWS[1], {"number": 2})])
    assert things.count() == 61
    assert things.retrieve([500])[0].payload == {"number": 2}


def test_deletion(things):
    things.delete([0, UUIDS[0], 12345])
    assert things.count() == 58
    assert things.retrieve([0, UUIDS[0]]) == []
    assert 0 not in ids(things.query(ROWS[0], 60))
    things.delete_where(Filter(must=(Range("taken", gte=30),)))
    assert things.count() == 29
    things.delete([])
    things.upsert([])
    assert things.count() == 29


def test_an_index_changes_no_answer(things):
    queries = directions(10, seed=4)
    before = [ids(things.query(vector, 8)) for vector in queries]
    things.optimize()
    things.flush()
    assert [ids(things.query(vector, 8)) for vector in queries] == before
    assert [ids(things.query(vector, 8, exact=True)) for vector in queries] == before


@pytest.mark.parametrize(
    "vector",
    [np.zeros(8, np.float32), np.full(8, np.nan), np.ones(7, np.float32), np.ones(8, np.float32)],
    ids=["zero", "nan", "width", "length"],
)
def test_what_is_no_vector_is_refused_and_nothing_is_written(things, vector):
    with pytest.raises(ConfigError):
        things.upsert([Point(100, ROWS[0]), Point(101, vector)])
    with pytest.raises(ConfigError):
        things.query(vector)
    assert things.count() == 60


def test_bad_ids_payloads_and_limits_are_refused(things):
    for bad in (Point(-1, ROWS[0]), Point("x", ROWS[0]), Point(1, ROWS[0], {"a": float("nan")})):
        with pytest.raises(ConfigError):
            things.upsert([bad])
    for limit in (0, -1, 10_001):
        with pytest.raises(ConfigError, match="limit"):
            things.query(ROWS[0], limit)
    assert things.count() == 60


def test_a_space_that_is_not_normalised_keeps_lengths(store):
    space = VectorSpace("long", "e" * 64, 8, normalized=False, precision="int8")
    collection = store.create(CollectionSpec("long", space))
    collection.upsert([Point(at, row * (at + 1), {"at": at}) for at, row in enumerate(ROWS)])
    hit = collection.query(ROWS[7] * 3, 1, with_vector=True)[0]
    assert hit.id == 7
    assert abs(hit.score - 1) < 1e-5
    assert np.allclose(hit.vector, ROWS[7] * 8, atol=1e-5)
    assert hit.payload == {"at": 7}
    assert collection.scroll(limit=1).rows[0].payload == {"at": 0}


def test_a_collection_knows_its_space(store, things):
    assert store.open("things").spec == things.spec == SPEC
    assert store.open("things", SPACE).count() == 60
    other = VectorSpace("tiny", "0" * 64, 8)
    with pytest.raises(ConfigError, match="another space: fingerprint"):
        store.open("things", other)
    with pytest.raises(ConfigError, match="another space: fingerprint"):
        store.create(CollectionSpec("things", other, FIELDS))
    with pytest.raises(ConfigError, match="other fields"):
        store.create(CollectionSpec("things", SPACE, (Field("taken", "float"),)))
    assert store.create(SPEC).count() == 60


def test_collections_are_apart(store, things):
    other = store.create(CollectionSpec("others", SPACE))
    other.upsert([Point(1, ROWS[0])])
    assert (things.count(), other.count()) == (60, 1)
    store.drop("things")
    assert store.names() == ["others"]
    with pytest.raises(ConfigError, match="no collection 'things'"):
        store.open("things")
    assert store.create(SPEC).count() == 0

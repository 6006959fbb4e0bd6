"""What no store takes: vectors that are none, ids that are none, filters that let nobody tell what is meant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anynpu.errors import ConfigError
from anynpu.vectors.base import CollectionSpec, Field, Filter, HasId, Range, VectorSpace, checked_id
from anynpu.vectors.checks import checked_key, checked_payload, checked_vector, checked_vectors

SPACE = VectorSpace("tiny", "f" * 64, 4)
SPEC = CollectionSpec("things", SPACE, (Field("taken", "float"), Field("folder", "keyword")))
GOOD = np.array([0.5, 0.5, 0.5, 0.5], np.float32)


@pytest.mark.parametrize(
    ("vector", "why"),
    [
        (np.array([1.0, 0, 0], np.float32), "4 numbers"),
        (np.array([[1.0, 0, 0, 0]], np.float32), "4 numbers"),
        (np.array([np.nan, 0, 0, 0], np.float32), "NaN"),
        (np.array([np.inf, 0, 0, 0], np.float32), "NaN or infinite"),
        (np.array([1e300, 0, 0, 0]), "NaN or infinite"),
        (np.zeros(4, np.float32), "zeros"),
        (np.array([2.0, 0, 0, 0], np.float32), "length 1, not of length 2"),
        (np.array(["a", "b", "c", "d"]), "something that is not a number"),
        ([1.0, 0, 0, None], "NaN|something else"),
    ],
)
def test_what_is_no_vector_of_the_space_is_refused(vector, why):
    with pytest.raises(ConfigError, match=why):
        checked_vectors(SPEC, [GOOD, vector])
    with pytest.raises(ConfigError, match=why):
        checked_vector(SPEC, vector)


def test_directions_of_a_space_that_is_not_normalised():
    spec = CollectionSpec("long", VectorSpace("tiny", "f" * 64, 4, normalized=False))
    rows, lengths = checked_vectors(spec, [GOOD * 6])
    assert np.allclose(rows, GOOD)
    assert np.allclose(lengths, 6)
    assert np.allclose(checked_vector(spec, GOOD * 6), GOOD)


@pytest.mark.parametrize("kind", [np.float32, np.float64, list])
def test_one_vector_is_checked_as_many_are(kind):
    vector = GOOD.tolist() if kind is list else GOOD.astype(kind)
    rows, _ = checked_vectors(SPEC, [vector])
    assert checked_vector(SPEC, vector).dtype == np.float32
    assert np.array_equal(checked_vector(SPEC, vector), rows)


@pytest.mark.parametrize("id", [-1, 2**64, 1.0, True, None, "photo-1", "", b"x"])
def test_what_is_no_id_is_refused(id):
    with pytest.raises(ConfigError, match="not the id of a point"):
        checked_id(id)


@given(st.integers(0, 2**64 - 1))
def test_numbers_of_64_bits_are_ids(id):
    assert checked_id(id) == id


@given(st.uuids())
def test_a_uuid_has_one_form(id):
    assert checked_id(id.hex.upper()) == checked_id(f"{{{id}}}") == str(id)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (VectorSpace("tiny", "e" * 64, 4), "fingerprint"),
        (VectorSpace("tiny", "f" * 64, 5), "width"),
        (VectorSpace("other", "f" * 64, 4), "name"),
        (VectorSpace("tiny", "f" * 64, 4, normalized=False), "normalized"),
        (VectorSpace("tiny", "f" * 64, 4, precision="int8"), "precision"),
    ],
)
def test_another_space_is_named_by_what_differs(other, what):
    with pytest.raises(ConfigError, match=f"another space: {what}"):
        SPACE.require(other, "things")


@pytest.mark.parametrize("name", ["", "Photos", "../x", "a/b", ".hidden", "x" * 64, "a b"])
def test_names_that_no_folder_and_no_server_takes(name):
    with pytest.raises(ConfigError, match="cannot be called"):
        CollectionSpec(name, SPACE)


@pytest.mark.parametrize("bad", [Range("taken"), Range("taken", gte=float("nan")), HasId((-1,))])
def test_filters_that_say_nothing(bad):
    with pytest.raises(ConfigError):
        Filter(must=(bad,))


def test_only_a_field_of_numbers_is_sorted_by():
    assert checked_key(SPEC, "taken") == "taken"
    with pytest.raises(ConfigError, match="did you mean 'taken'"):
        checked_key(SPEC, "takn")
    with pytest.raises(ConfigError, match="no index of numbers"):
        checked_key(SPEC, "folder")


@pytest.mark.parametrize(
    "payload",
    [
        {"a": float("nan")},
        {"a": [1, {"b": float("inf")}]},
        {"a": 2**63},
        {"a": b"x"},
        {"a": np.float32(1)},
        {1: "x"},
        {"a": "\ud800"},
        {"\udfff": 1},
        {"~length": 2.0},
    ],
)
def test_payloads_that_a_store_would_give_back_changed(payload):
    with pytest.raises(ConfigError, match="payload"):
        checked_payload(payload)


def test_a_payload_without_end_is_refused():
    endless: dict = {}
    endless["again"] = endless
    with pytest.raises(ConfigError, match="levels deep"):
        checked_payload(endless)

"""What a store refuses: ids, vectors, payloads, keys and limits that it could not keep or find again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from anynpu.errors import ConfigError
from anynpu.schema import Json as Json
from anynpu.schema import near
from anynpu.tensors import Array
from anynpu.vectors.base import LENGTH, CollectionSpec, Payload, Point, PointId, checked_id

MOST_LIMIT = 10_000
UNIT_TOLERANCE = 1e-3
DEEPEST = 32


def checked_vectors(spec: CollectionSpec, vectors: Sequence[Array]) -> tuple[Array, Array]:
    """Returns the directions of vectors as float32 rows, and their lengths; a vector of another space raises."""
    width = spec.space.width
    for row in vectors:
        if np.shape(row) != (width,):
            raise ConfigError(f"{spec.name} takes vectors of {width} numbers, not of shape {list(np.shape(row))}")
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as such
            rows = np.asarray(vectors, np.float32).reshape(len(vectors), width)
    except (TypeError, ValueError):
        raise ConfigError(f"{spec.name}: a vector holds something that is not a number") from None
    if not np.isfinite(rows).all():
        raise ConfigError(f"{spec.name}: a vector holds NaN or infinite numbers", "a model that gives them is broken")
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    if not lengths.all():
        raise ConfigError(f"{spec.name}: a vector of zeros has no direction", "a model that gives them is broken")
    if not spec.space.normalized:
        return (rows / lengths[:, None]).astype(np.float32), lengths
    if len(lengths) and np.abs(lengths - 1).max() > UNIT_TOLERANCE:
        odd = float(lengths[np.abs(lengths - 1).argmax()])
        raise ConfigError(
            f"{spec.name} takes vectors of length 1, not of length {odd:.4g}", "its space is normalised: divide by it"
        )
    return rows, lengths


def checked_points(spec: CollectionSpec, points: Sequence[Point]) -> tuple[list[PointId], Array, list[dict[str, Json]]]:
    """Returns ids, directions and payloads as a store keeps them: where lengths differ, the payload has the length."""
    ids = [checked_id(point.id) for point in points]
    rows, lengths = checked_vectors(spec, [point.vector for point in points])
    payloads = [checked_payload(point.payload) for point in points]
    if not spec.space.normalized:
        payloads = [{**each, LENGTH: float(length)} for each, length in zip(payloads, lengths, strict=True)]
    return ids, rows, payloads


def checked_vector(spec: CollectionSpec, vector: Array) -> Array:
    """Returns the direction of one vector as a row of float32, as `checked_vectors` does."""
    if isinstance(vector, np.ndarray) and vector.dtype == np.float32 and vector.shape == (spec.space.width,):
        wide = vector.astype(np.float64)
        # Most queries, in a third of the time: nothing else has a length of 1.
        if spec.space.normalized and abs(math.sqrt(wide @ wide) - 1) <= UNIT_TOLERANCE:
            return vector[None]
    return checked_vectors(spec, [vector])[0]


def checked_payload(payload: Payload) -> dict[str, Json]:
    """Returns a payload if every store gives it back as it is: JSON with finite numbers and keys that are not ours."""
    if LENGTH in payload:
        raise ConfigError(f"the payload entry {LENGTH} belongs to the store")
    _check_json(payload, 0)
    return dict(payload)


def _check_json(value: object, depth: int) -> None:
    if depth > DEEPEST:
        raise ConfigError(f"a payload is nested more than {DEEPEST} levels deep")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ConfigError("a payload holds text that is not Unicode (half a character)")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError("a payload holds NaN or an infinite number", "leave the entry out, or give None")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ConfigError(f"a payload holds {value}", "whole numbers have 64 bits")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"the payload key {key!r} is not text")
            _check_json(key, depth)
            _check_json(each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_json(each, depth + 1)
    else:
        raise ConfigError(f"a payload holds a {type(value).__name__}", "text, numbers, true, false, null, lists, maps")


def checked_key(spec: CollectionSpec, key: str) -> str:
    """Returns the key of a field with an index of numbers."""
    kinds = {each.key: each.kind for each in spec.fields}
    if kinds.get(key) not in ("integer", "float"):
        raise ConfigError(
            f"{spec.name} has no index of numbers for {key!r}{near(key, kinds)}", "list it among the fields"
        )
    return key


def checked_limit(limit: int) -> int:
    if not 1 <= limit <= MOST_LIMIT:
        raise ConfigError(f"a limit of {limit}", f"1 to {MOST_LIMIT:,}")
    return limit

"""Seals: the digest of all that a record says, by which a later change of it is noticed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import (
    Any,
    ClassVar,
    Protocol,
    TypeVar,
)

from anynpu.errors import IntegrityError
from anynpu.schema import plain_json, to_dict

SEAL = "seal"


def sealed(record: Mapping[str, object]) -> dict[str, object]:
    """Returns a record with the digest of all else that it says, as its last entry."""
    plain = json.loads(json.dumps(record))  # tuples are lists for whoever reads it
    return {**{k: v for k, v in record.items() if k != SEAL}, SEAL: _seal(plain)}


class Sealed(Protocol):
    """A form that holds the digest of all else that it says."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def seal(self) -> str: ...


S = TypeVar("S", bound=Sealed)


def with_seal(record: S) -> S:
    """Returns a form with the digest of all else that it says."""
    return dataclasses.replace(record, seal=_seal(to_dict(record)))


def check_seal(record: Any, place: str) -> str:
    """Raises IntegrityError for a record that has changed since it was sealed; returns a note, or an empty
    string, where it has no seal."""
    if not isinstance(record, Mapping) or SEAL not in record:
        return f"{place}: has no seal, so a change of it would not be noticed"
    if record[SEAL] != _seal(record):
        raise IntegrityError(
            f"{place}: has changed since it was made", "its seal does not fit what it says; measure or build again"
        )
    return ""


def _seal(record: Mapping[str, object]) -> str:
    """Returns the digest of the values of a record, however the JSON is laid out: 1.0 is 1, in any order."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items() if k != SEAL or value is not record}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value

    try:
        return hashlib.sha256(plain_json(plain(record)).encode()).hexdigest()
    except ValueError:  # NaN or Infinity, which is not JSON
        return ""

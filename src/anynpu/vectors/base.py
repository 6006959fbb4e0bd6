"""Vectors with their payload in named collections: what every store does, whether embedded or a server.

    with open_store("~/photos.store") as store:              # vectors/places.py; or "http://qdrant:6333"
        photos = store.create(CollectionSpec("photos", space, (Field("taken", "float"),)))
        photos.upsert([Point(7, vector, {"path": "a.jpg", "taken": 1.7e9})])
        hits = photos.query(vector, 10, where=Filter(must=(Range("taken", gte=1.6e9),)))

A write that has returned is acknowledged: the death of any process does not lose it (docs/vectors.md says what a loss
of power may cost). A collection takes vectors of its own space only.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, TypeAlias

from anynpu.errors import ConfigError
from anynpu.schema import Json as Json
from anynpu.tensors import Array

PointId: TypeAlias = int | str
"""An unsigned number of 64 bits, or a UUID as text."""
Payload: TypeAlias = Mapping[str, Json]
Precision = Literal["float", "int8"]
FieldKind = Literal["keyword", "integer", "float", "bool"]
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
LENGTH = "~length"
"""The payload entry that keeps the length of a vector of a space that is not normalised: stores keep directions."""
MOST_WIDTH = 65_536


@dataclass(frozen=True)
class VectorSpace:
    """What vectors must share to be comparable: the very model that made them, and the form of its output.

    `fingerprint` is that of the model (its artifact's manifest), `name` the space of its card: two towers that were
    trained together have one name and two fingerprints. `precision` is what the model calculated in.
    """

    name: str
    fingerprint: str
    width: int
    normalized: bool = True
    precision: Precision = "float"

    def __post_init__(self) -> None:
        if not self.name or not self.fingerprint:
            raise ConfigError("a space of vectors needs a name and the fingerprint of its model")
        if not 1 <= self.width <= MOST_WIDTH:
            raise ConfigError(f"space {self.name}: a width of {self.width}", f"1 to {MOST_WIDTH:,} numbers")
        if self.precision not in ("float", "int8"):
            raise ConfigError(f"space {self.name}: precision {self.precision!r}", "known: float, int8")

    def require(self, other: VectorSpace, where: str) -> None:
        """Raises if vectors of the other space mean nothing among those of this one."""
        for what in ("name", "fingerprint", "width", "normalized", "precision"):
            ours, theirs = getattr(self, what), getattr(other, what)
            if ours != theirs:
                raise ConfigError(
                    f"{where} holds vectors of another space: {what} {ours}, not {theirs}",
                    "use the model that the collection was made with, or make another collection",
                )


@dataclass(frozen=True)
class Field:
    """An entry of the payload that is filtered or sorted by; the store keeps an index of it."""

    key: str
    kind: FieldKind

    def __post_init__(self) -> None:
        if self.kind not in ("keyword", "integer", "float", "bool"):
            raise ConfigError(f"field {self.key}: kind {self.kind!r}", "known: keyword, integer, float, bool")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", self.key):
            raise ConfigError(f"a field cannot be called {self.key!r}", "letters, digits and _")


@dataclass(frozen=True)
class CollectionSpec:
    """A collection as it is made: its name, the space of its vectors, and the fields with an index."""

    name: str
    space: VectorSpace
    fields: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                f"a collection cannot be called {self.name!r}", "small letters, digits, '.', '_' and '-'; at most 63"
            )
        keys = [each.key for each in self.fields]
        if len(set(keys)) != len(keys):
            raise ConfigError(f"collection {self.name}: a field is listed twice")


@dataclass(frozen=True)
class Point:
    """A vector with its id and whatever is to be remembered of it."""

    id: PointId
    vector: Array
    payload: Payload = field(default_factory=dict)


@dataclass(frozen=True)
class Hit:
    """A point that a query found, with its cosine to the query; `vector` only if it was asked for."""

    id: PointId
    score: float
    payload: Payload
    vector: Array | None = None


@dataclass(frozen=True)
class Row:
    """A point as it is read back; `vector` only if it was asked for."""

    id: PointId
    payload: Payload
    vector: Array | None = None


@dataclass(frozen=True)
class Page:
    """Rows in the order of their ids, and the id to go on after; None at the end."""

    rows: tuple[Row, ...]
    after: PointId | None


@dataclass(frozen=True)
class Match:
    """The entry is this value; of a list, one of its members is."""

    key: str
    value: str | int | bool


@dataclass(frozen=True)
class AnyOf:
    """The entry is one of these values."""

    key: str
    values: tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True)
class Range:
    """The entry is a number between the bounds that are given."""

    key: str
    gte: float | None = None
    gt: float | None = None
    lte: float | None = None
    lt: float | None = None


@dataclass(frozen=True)
class HasId:
    """The point has one of these ids."""

    ids: tuple[PointId, ...]


Condition: TypeAlias = Match | AnyOf | Range | HasId


@dataclass(frozen=True)
class Filter:
    """Points for which all of `must`, none of `must_not`, and one of `should` (if there is any) hold."""

    must: tuple[Condition, ...] = ()
    should: tuple[Condition, ...] = ()
    must_not: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        for condition in (*self.must, *self.should, *self.must_not):
            if isinstance(condition, Range):
                bounds = (condition.gte, condition.gt, condition.lte, condition.lt)
                if all(bound is None for bound in bounds):
                    raise ConfigError(f"the range of {condition.key} has no bound")
                if not all(math.isfinite(bound) for bound in bounds if bound is not None):
                    raise ConfigError(f"the range of {condition.key} has a bound that is not a number")
            if isinstance(condition, HasId):
                for id in condition.ids:
                    checked_id(id)


@dataclass(frozen=True)
class Info:
    """How a collection stands: its points, and how many an index covers; the others are compared one by one."""

    points: int
    indexed: int
    indexing: bool


class Collection(Protocol):
    """Points of one space. Safe to use from several threads."""

    @property
    def spec(self) -> CollectionSpec: ...

    def upsert(self, points: Sequence[Point]) -> None:
        """Writes points; one that is there under the same id is replaced. On return they are acknowledged."""

    def delete(self, ids: Sequence[PointId]) -> None:
        """Removes points; an id that is not there is not an error. On return that is acknowledged."""

    def delete_where(self, where: Filter) -> None:
        """Removes the points that a filter lets through."""

    def query(
        self,
        vector: Array,
        limit: int = 10,
        *,
        where: Filter | None = None,
        offset: int = 0,
        with_vector: bool = False,
        exact: bool = False,
    ) -> list[Hit]:
        """Returns the points nearest to a vector, best first; `exact` compares with every point."""

    def retrieve(self, ids: Sequence[PointId], *, with_vector: bool = False) -> list[Row]:
        """Returns the points with these ids, in the order given; those that are not there are left out."""

    def scroll(
        self,
        *,
        where: Filter | None = None,
        after: PointId | None = None,
        limit: int = 256,
        with_vector: bool = False,
    ) -> Page:
        """Returns the next page of points in the order of their ids."""

    def newest(self, key: str, limit: int, *, where: Filter | None = None, with_vector: bool = False) -> list[Row]:
        """Returns the points with the highest values of a numeric field, highest first."""

    def count(self, where: Filter | None = None) -> int:
        """Returns how many points there are, or how many a filter lets through."""

    def info(self) -> Info:
        """Returns how the collection stands."""

    def flush(self) -> None:
        """Returns once everything acknowledged would survive a loss of power."""

    def optimize(self) -> None:
        """Returns once an index covers all points that are there now."""


class Store(Protocol):
    """Collections in one place: a folder or a server."""

    @property
    def where(self) -> str: ...

    def names(self) -> list[str]:
        """Returns the names of the collections that were made here."""

    def create(self, spec: CollectionSpec) -> Collection:
        """Makes a collection and returns it; one that is there with the same space and fields is opened."""

    def open(self, name: str, space: VectorSpace | None = None) -> Collection:
        """Returns a collection; with a space, only if it is the collection's."""

    def drop(self, name: str) -> None:
        """Removes a collection with all its points."""

    def close(self) -> None: ...

    def __enter__(self) -> Store: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def checked_id(id: PointId) -> PointId:
    """Returns an id in its one form, if it is one: an unsigned number of 64 bits or a UUID."""
    if isinstance(id, bool) or not isinstance(id, int | str):
        raise ConfigError(f"{id!r} is not the id of a point", "an unsigned number or a UUID")
    if isinstance(id, int):
        if not 0 <= id < 2**64:
            raise ConfigError(f"{id} is not the id of a point", "an unsigned number of 64 bits, or a UUID")
        return id
    try:
        return str(uuid.UUID(id))
    except ValueError:
        raise ConfigError(f"{id!r} is not the id of a point", "an unsigned number or a UUID") from None

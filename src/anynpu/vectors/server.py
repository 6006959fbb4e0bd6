"""Collections in a Qdrant server or cluster, through qdrant-client: the only module that touches it.

The server's collection carries its space in its metadata (Qdrant 1.16 and later). Writes return when the server has
written and applied them; when they reach its disk is the server's own setting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from anynpu import schema
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, ToolMissing, first_line
from anynpu.tensors import Array
from anynpu.vectors.base import (
    LENGTH,
    AnyOf,
    CollectionSpec,
    Condition,
    Filter,
    HasId,
    Hit,
    Info,
    Json,
    Match,
    Page,
    Point,
    PointId,
    Row,
    VectorSpace,
    checked_id,
)
from anynpu.vectors.checks import checked_key, checked_limit, checked_points, checked_vector

METADATA = "anynpu"
BATCH = 256
TIMEOUT_S = 60
INDEX_S = 24 * 3600.0
SEARCH_BREADTH = 64


class ServerStore:
    """The collections of a server that were made by anynpu."""

    def __init__(self, client: Any, where: str) -> None:
        self.client, self._where = client, where

    @classmethod
    def at(cls, url: str, token: str = "") -> ServerStore:
        """Connects to the server at a URL."""
        store = cls(_client(url=url, api_key=token or None, timeout=TIMEOUT_S, check_compatibility=False), url)
        store.names()  # a wrong address or token is reported now, not in the midst of the work
        return store

    @property
    def where(self) -> str:
        return self._where

    def names(self) -> list[str]:
        with self._errors():
            listed = [each.name for each in self.client.get_collections().collections]
            return sorted(name for name in listed if self._record(name) is not None)

    def _record(self, name: str) -> Any:
        """Returns what a collection's metadata says of it, or None if anynpu did not make it."""
        metadata = self.client.get_collection(name).config.metadata
        return (metadata or {}).get(METADATA)

    def create(self, spec: CollectionSpec) -> ServerCollection:
        models = _models()
        with self._errors():
            if not self.client.collection_exists(spec.name):
                self.client.create_collection(
                    spec.name,
                    vectors_config=models.VectorParams(size=spec.space.width, distance=models.Distance.DOT),
                    metadata={METADATA: schema.to_dict(spec, whole=True)},
                )
                for field in spec.fields:
                    self.client.create_payload_index(spec.name, field.key, field_schema=field.kind, wait=True)
                if self._record(spec.name) is None:
                    self.client.delete_collection(spec.name)
                    raise ConfigError(
                        f"{self._where}: the server keeps no metadata of a collection", "it needs Qdrant 1.16 or later"
                    )
        collection = self.open(spec.name, spec.space)
        if set(collection.spec.fields) != set(spec.fields):
            raise ConfigError(
                f"{spec.name} is there with other fields: {', '.join(sorted(f.key for f in collection.spec.fields))}",
                "drop it, or choose another name",
            )
        return collection

    def open(self, name: str, space: VectorSpace | None = None) -> ServerCollection:
        with self._errors():
            if not self.client.collection_exists(name):
                raise ConfigError(
                    f"{self._where} holds no collection {name!r}", "there are: " + (", ".join(self.names()) or "none")
                )
            record = self._record(name)
        if record is None:
            raise ConfigError(
                f"{self._where}: the collection {name!r} does not say which space its vectors are of",
                "it was not made by anynpu: choose another name",
            )
        spec = schema.from_dict(CollectionSpec, record, f"{self._where}: {name}")
        if space is not None:
            spec.space.require(space, name)
        return ServerCollection(self, spec)

    def drop(self, name: str) -> None:
        self.open(name)  # never one that somebody else made
        with self._errors():
            self.client.delete_collection(name)

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> ServerStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns what the client raises into a sentence about the server."""
        from qdrant_client.http.exceptions import ApiException, UnexpectedResponse

        try:
            yield
        except AnyNpuError:
            raise
        except UnexpectedResponse as error:
            if error.status_code in (401, 403):
                raise ConfigError(f"{self._where}: the server refuses the token", "give the right one") from error
            reason = first_line(Exception((error.content or b"").decode("utf-8", "replace")))
            raise IntegrityError(f"{self._where}: the server answers {error.status_code}: {reason}") from error
        except (ApiException, OSError, RuntimeError) as error:
            raise ConfigError(
                f"{self._where}: the server cannot be reached ({first_line(error)})", "check the URL, and that it runs"
            ) from error
        except ValueError as error:
            raise IntegrityError(f"{self._where}: the server's answer is not Qdrant's: {first_line(error)}") from error


class ServerCollection:
    """A collection of a server."""

    def __init__(self, store: ServerStore, spec: CollectionSpec) -> None:
        self._store, self._spec, self._client = store, spec, store.client

    @property
    def spec(self) -> CollectionSpec:
        return self._spec

    def upsert(self, points: Sequence[Point]) -> None:
        models = _models()
        ids, rows, payloads = checked_points(self._spec, points)
        structs = [
            models.PointStruct(id=id, vector=row, payload=payload)
            for id, row, payload in zip(ids, rows.tolist(), payloads, strict=True)
        ]
        with self._store._errors():
            for start in range(0, len(structs), BATCH):
                self._client.upsert(self._spec.name, structs[start : start + BATCH], wait=True)

    def delete(self, ids: Sequence[PointId]) -> None:
        checked = [checked_id(id) for id in ids]
        with self._store._errors():
            for start in range(0, len(checked), BATCH):
                listed = _models().PointIdsList(points=checked[start : start + BATCH])
                self._client.delete(self._spec.name, listed, wait=True)

    def delete_where(self, where: Filter) -> None:
        with self._store._errors():
            self._client.delete(self._spec.name, _models().FilterSelector(filter=_filter(where)), wait=True)

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
        direction = checked_vector(self._spec, vector)
        wanted = checked_limit(limit + offset)
        with self._store._errors():
            answer = self._client.query_points(
                self._spec.name,
                query=direction[0].tolist(),
                limit=wanted,
                query_filter=_filter(where),
                search_params=_models().SearchParams(hnsw_ef=max(SEARCH_BREADTH, 2 * wanted), exact=exact),
                with_payload=True,
                with_vectors=with_vector,
            )
        rows = [(self._row(point), float(point.score)) for point in answer.points]
        return [Hit(row.id, score, row.payload, row.vector) for row, score in rows][offset:]

    def retrieve(self, ids: Sequence[PointId], *, with_vector: bool = False) -> list[Row]:
        checked = list(dict.fromkeys(checked_id(id) for id in ids))
        if not checked:
            return []
        with self._store._errors():
            records = self._client.retrieve(self._spec.name, checked, with_payload=True, with_vectors=with_vector)
        rows = {row.id: row for row in map(self._row, records)}
        return [rows[id] for id in checked if id in rows]

    def scroll(
        self,
        *,
        where: Filter | None = None,
        after: PointId | None = None,
        limit: int = 256,
        with_vector: bool = False,
    ) -> Page:
        start = None if after is None else checked_id(after)
        with self._store._errors():
            records, _ = self._client.scroll(
                self._spec.name,
                scroll_filter=_filter(where),
                limit=checked_limit(limit) + 2,  # the server begins with `start` itself
                offset=start,
                with_payload=True,
                with_vectors=with_vector,
            )
        rows = [row for row in map(self._row, records) if row.id != start]
        return Page(tuple(rows[:limit]), rows[limit - 1].id if len(rows) > limit else None)

    def newest(self, key: str, limit: int, *, where: Filter | None = None, with_vector: bool = False) -> list[Row]:
        models = _models()
        with self._store._errors():
            records, _ = self._client.scroll(
                self._spec.name,
                scroll_filter=_filter(where),
                limit=checked_limit(limit),
                order_by=models.OrderBy(key=checked_key(self._spec, key), direction=models.Direction.DESC),
                with_payload=True,
                with_vectors=with_vector,
            )
        return [self._row(record) for record in records]

    def count(self, where: Filter | None = None) -> int:
        with self._store._errors():
            return int(self._client.count(self._spec.name, count_filter=_filter(where), exact=True).count)

    def info(self) -> Info:
        with self._store._errors():
            info = self._client.get_collection(self._spec.name)
        return Info(self.count(), int(info.indexed_vectors_count or 0), str(info.status.value) != "green")

    def flush(self) -> None:
        """Nothing to do: a write that has returned is in the server's log, whose flushing is the server's setting."""

    def optimize(self) -> None:
        """Waits until the server, which indexes by itself, has nothing left to do."""
        until = time.monotonic() + INDEX_S
        while self.info().indexing and time.monotonic() < until:
            time.sleep(0.5)

    def _row(self, record: Any) -> Row:
        payload: dict[str, Json] = dict(record.payload or {})
        length = 1.0 if self._spec.space.normalized else float(payload.pop(LENGTH))  # type: ignore[arg-type]
        vector = None if record.vector is None else np.asarray(record.vector, np.float32) * np.float32(length)
        return Row(record.id if isinstance(record.id, int) else str(record.id), payload, vector)


def _client(**settings: Any) -> Any:
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise ToolMissing("qdrant-client is not installed", "pip install 'anynpu[vectors]'") from error
    try:
        return QdrantClient(**settings)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{settings.get('url')}: is not the URL of a server ({first_line(error)})") from error


def _models() -> Any:
    from qdrant_client import models

    return models


def _filter(where: Filter | None) -> Any:
    if where is None:
        return None
    parts = {part: [_condition(each) for each in getattr(where, part)] for part in ("must", "should", "must_not")}
    return _models().Filter(**{part: conditions for part, conditions in parts.items() if conditions})


def _condition(condition: Condition) -> Any:
    models = _models()
    if isinstance(condition, Match):
        return models.FieldCondition(key=condition.key, match=models.MatchValue(value=condition.value))
    if isinstance(condition, AnyOf):
        return models.FieldCondition(key=condition.key, match=models.MatchAny(any=list(condition.values)))
    if isinstance(condition, HasId):
        return models.HasIdCondition(has_id=list(condition.ids))
    bounds = models.Range(gte=condition.gte, gt=condition.gt, lte=condition.lte, lt=condition.lt)
    return models.FieldCondition(key=condition.key, range=bounds)

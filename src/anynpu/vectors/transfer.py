"""Collections from one store to another, and to a file that any store takes.

A file is JSON lines, compressed with gzip if its name ends in .gz: first what the collection is, then a line a point,
and last how many there were and the sha256 of all lines before, so that a file cut short or changed is noticed.
Vectors are base64 of little-endian float32.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import schema
from anynpu.errors import ConfigError, IntegrityError
from anynpu.files import writing
from anynpu.vectors.base import Collection, CollectionSpec, Json, Point, PointId, Row, Store

KIND, FORMAT = "anynpu-vectors", 1
BATCH = 256
LONGEST_LINE = 64 << 20
Progress = Callable[[int], None]


@dataclass(frozen=True)
class FileHead:
    """The first line of a file."""

    kind: str
    format: int
    collection: CollectionSpec


def rows_of(collection: Collection) -> Iterator[Row]:
    """Yields all points with their vectors, in the order of their ids."""
    after: PointId | None = None
    while True:
        page = collection.scroll(after=after, limit=BATCH, with_vector=True)
        yield from page.rows
        after = page.after
        if after is None:
            return


def export(collection: Collection, path: Path, progress: Progress = lambda done: None) -> int:
    """Writes a collection into a file, which appears only when it is whole; returns the number of points."""
    import orjson

    count, digest = 0, hashlib.sha256()
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no such folder", "make it, or choose another file")
    with writing(path):
        handle, part = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
        try:
            with (
                os.fdopen(handle, "wb") as raw,
                gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.suffix == ".gz" else raw as stream,
            ):

                def put(line: bytes) -> None:
                    digest.update(line)
                    stream.write(line)

                head = schema.to_dict(FileHead(KIND, FORMAT, collection.spec), whole=True)
                put(orjson.dumps(head) + b"\n")
                for row in rows_of(collection):
                    vector = base64.b64encode(np.asarray(row.vector, "<f4").tobytes()).decode()
                    put(orjson.dumps({"id": row.id, "vector": vector, "payload": row.payload}) + b"\n")
                    count += 1
                    if count % BATCH == 0:
                        progress(count)
                stream.write(orjson.dumps({"points": count, "sha256": digest.hexdigest()}) + b"\n")
                stream.flush()
                if stream is not raw:
                    stream.close()
                raw.flush()
                os.fsync(raw.fileno())
            Path(part).replace(path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    return count


def restore(path: Path, store: Store, name: str = "", progress: Progress = lambda done: None) -> Collection:
    """Makes a collection of a file; one of that name must not be there. A file that is not whole leaves none behind."""
    lines = _lines(path)
    first = next(lines, b"")
    data = _json(path, 1, first)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise IntegrityError(f"{path}: is not a file of exported vectors")
    if data.get("format") != FORMAT:
        raise IntegrityError(f"{path}: has format {data.get('format')}, this version reads {FORMAT}")
    head = schema.from_dict(FileHead, data, str(path))
    spec = replace(head.collection, name=name) if name else head.collection
    if spec.name in store.names():
        raise ConfigError(f"{store.where} holds a collection {spec.name!r} already", "give another name, or drop it")
    collection = store.create(spec)
    try:
        count = 0
        batch: list[Point] = []
        for point in _points(path, lines):
            batch.append(point)
            if len(batch) == BATCH:
                collection.upsert(batch)
                count += len(batch)
                progress(count)
                batch = []
        collection.upsert(batch)
    except BaseException:
        store.drop(spec.name)
        raise
    return collection


def copy(collection: Collection, store: Store, name: str = "", progress: Progress = lambda done: None) -> Collection:
    """Copies a collection into another store, with the same ids; what is there of an earlier attempt is written again.

    Returns the copy when both count the same points.
    """
    spec = replace(collection.spec, name=name) if name else collection.spec
    target = store.create(spec)
    batch: list[Point] = []
    count = 0
    for row in rows_of(collection):
        assert row.vector is not None
        batch.append(Point(row.id, row.vector, row.payload))
        count += 1
        if len(batch) == BATCH:
            target.upsert(batch)
            progress(count)
            batch = []
    target.upsert(batch)
    if target.count() != count:
        raise IntegrityError(
            f"{store.where}: {spec.name} has {target.count()} points after {count} were copied",
            "it held others before, or somebody writes to it: drop it and copy again",
        )
    return target


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, each with its end."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            while line := stream.readline(LONGEST_LINE):
                yield line
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise IntegrityError(f"{path}: is cut short or damaged ({error})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None


def _points(path: Path, lines: Iterator[bytes]) -> Iterator[Point]:
    """Yields the points of the lines after the first; raises at the end if they are not all, or not as written."""
    first = next(_lines(path))
    digest = hashlib.sha256(first)
    count = 0
    for number, line in enumerate(lines, 2):
        data = _json(path, number, line)
        if isinstance(data, dict) and "points" in data:
            if data["points"] != count or data.get("sha256") != digest.hexdigest():
                raise IntegrityError(f"{path}: is not as it was written: its checksum differs")
            return
        digest.update(line)
        count += 1
        try:
            id, packed, payload = data["id"], data["vector"], data["payload"]
            vector = np.frombuffer(base64.b64decode(packed, validate=True), "<f4")
        except (KeyError, TypeError, ValueError):
            raise IntegrityError(f"{path}: line {number} is not a point") from None
        if not isinstance(payload, dict) or not isinstance(id, int | str):
            raise IntegrityError(f"{path}: line {number} is not a point")
        plain: dict[str, Json] = payload
        yield Point(id, vector, plain)
    raise IntegrityError(f"{path}: is cut short after {count} points")


def _json(path: Path, number: int, line: bytes) -> Any:
    import orjson

    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        raise IntegrityError(f"{path}: line {number} is not JSON") from None

"""One shard of Qdrant Edge: the only module that touches qdrant_edge, and the place where its errors become ours.

Facts that shape it: update() writes the log but does not fsync; flush() does, and takes 0.1 s and more; optimize()
alone builds an index, and reuses the graph that is there; a shard copied without its log ignores deletions, because
the numbers of its operations start again below those of its points; ids come back as uuid.UUID.

Of 100,000 x 384, on a quiet machine: the graph is walked in 0.23 ms on 8-bit copies of the vectors, in 0.42 ms on the
vectors; recall is the same if three times as many candidates are scored by the vectors. With links for every indexed
field it is 1.1 ms. Of 20,000, such links make the build four times as long, and of what a filter lets through 62 to
97 % are found; ACORN without them finds 99.7 %.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, ToolMissing, first_line
from anynpu.tensors import Array
from anynpu.tool import version_of
from anynpu.vectors.base import AnyOf, CollectionSpec, Condition, Filter, HasId, Json, Match, PointId, Row
from anynpu.vectors.edge.mirror import Mirror

LINKS, BUILD_BREADTH, SEARCH_BREADTH = 16, 100, 48
SMALL, SMALL_BREADTH = 32_000, 160
"""Up to this many points are searched more broadly, in the time that more points take anyway. Where a query's own group
holds fewer points than are wanted, the others lie far apart: of 20,000 in groups of ten, 97.5 % are found at 48 (all
that are missed are of rank 4 to 10), 99.2 % at 160."""
FILTERED_BREADTH, ACORN_UP_TO = 128, 0.8
"""A filter that lets a larger share of the points through leaves the graph whole enough."""
CANDIDATES = 3.0
"""This many times as many points as are wanted are found by their 8-bit copies and scored by their vectors."""
INDEX_FROM_KIB = 256
"""Below this a segment is compared one by one, which is as fast."""
COMPARE_UP_TO_KIB = 2048
"""Fewer points than this, all of a segment or those that a filter lets through, are compared one by one as well."""
READ_AHEAD = 128 << 10
FULL_DISK = ("no space left", "os error 28", "os error 27", "os error 122", "file too large")


@contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Turns what the engine raises, plain Exception whatever happened, into a sentence about `what`."""
    try:
        yield
    except (AnyNpuError, KeyboardInterrupt):
        raise
    except Exception as error:
        text = first_line(error)
        if any(sign in str(error).lower() for sign in FULL_DISK):
            raise ConfigError(f"{what}: no space left on the disk", "free some, or choose another folder") from error
        raise IntegrityError(f"{what}: Qdrant Edge: {text}") from error


def engine_version() -> str:
    return version_of("qdrant-edge-py", "vectors")


class Shard:
    """Points in a folder, opened; one process at a time."""

    def __init__(self, path: Path, shard: Any) -> None:
        self.path, self._shard = path, shard
        self.dirty = False
        self.log_bytes = 0
        self.points = self.count(None)
        """An upper bound: those written again are counted again, and none that was deleted is taken off."""
        self.mirror: Mirror | None = None

    @classmethod
    def create(cls, path: Path, spec: CollectionSpec) -> Shard:
        """Makes an empty shard."""
        edge = _edge()
        with engine_errors(str(path)):
            path.mkdir(parents=True)
            config = edge.EdgeConfig(
                vectors=edge.EdgeVectorParams(size=spec.space.width, distance=edge.Distance.Dot),
                hnsw_config=edge.HnswIndexConfig(
                    LINKS, BUILD_BREADTH, COMPARE_UP_TO_KIB, max_indexing_threads=1, payload_m=0
                ),
                quantization_config=edge.ScalarQuantizationConfig(type=edge.ScalarType.Int8, always_ram=True),
                optimizers=edge.EdgeOptimizersConfig(indexing_threshold=INDEX_FROM_KIB, default_segment_number=1),
                max_search_threads=1,
                wal_enabled=True,
            )
            shard = cls(path, edge.EdgeShard.create(str(path), config))
            shard.mirror = Mirror(spec.space.width)
            kinds = edge.PayloadSchemaType
            types = {"keyword": kinds.Keyword, "integer": kinds.Integer, "float": kinds.Float, "bool": kinds.Bool}
            for each in spec.fields:
                shard._update(edge.UpdateOperation.create_field_index(each.key, types[each.kind]))
        return shard

    @classmethod
    def load(cls, path: Path) -> Shard:
        """Opens a shard that is there."""
        if not (path / "segments").is_dir():
            raise IntegrityError(f"{path} is not a shard of Qdrant Edge: it has no segments")
        with engine_errors(str(path)):
            shard = cls(path, _edge().EdgeShard.load(str(path)))
        read_ahead(path / "segments")
        return shard

    @property
    def empty(self) -> bool:
        """Nothing was ever written: queries need not ask it."""
        return self.points == 0

    def _update(self, operation: Any) -> None:
        self._shard.update(operation)
        self.dirty = True

    def upsert(self, ids: Sequence[PointId], vectors: Array, payloads: Sequence[Any]) -> None:
        """Writes points into the log and the shard."""
        edge = _edge()
        with engine_errors(str(self.path)):
            points = [
                edge.Point(id, row, payload) for id, row, payload in zip(ids, vectors.tolist(), payloads, strict=True)
            ]
            self._update(edge.UpdateOperation.upsert_points(points))
        self.points += len(points)
        self.log_bytes += vectors.nbytes * 2
        if self.mirror is not None and self.mirror.fits(len(points)):
            self.mirror.put(ids, vectors)
        else:
            self.mirror = None

    def delete(self, ids: Sequence[PointId]) -> None:
        with engine_errors(str(self.path)):
            self._update(_edge().UpdateOperation.delete_points(list(ids)))
        if self.mirror is not None:
            self.mirror.remove(ids)
        self.log_bytes += 64 * len(ids)

    def mirrored(self, width: int) -> None:
        """Reads its vectors into memory, if there is room for them."""
        mirror = Mirror(width)
        if not mirror.fits(self.points):
            return
        rows = self.scroll(None, None, self.points, with_vector=True) if self.points else []
        for row in rows:
            if row.vector is not None:
                mirror.put([row.id], row.vector[None])
        self.mirror = mirror

    def existing(self, ids: Sequence[PointId]) -> list[PointId]:
        """Returns those of the ids that have a point here."""
        with engine_errors(str(self.path)):
            return [_id(record.id) for record in self._shard.retrieve(list(ids), False, False)]

    def retrieve(self, ids: Sequence[PointId], with_vector: bool) -> list[Row]:
        with engine_errors(str(self.path)):
            return [_row(record) for record in self._shard.retrieve(list(ids), True, with_vector)]

    def scroll(self, where: Filter | None, start: PointId | None, limit: int, with_vector: bool) -> list[Row]:
        """Returns points in the order of their ids from `start` on, including it."""
        edge = _edge()
        with engine_errors(str(self.path)):
            request = edge.ScrollRequest(
                offset=start, limit=limit, filter=_filter(where), with_payload=True, with_vector=with_vector
            )
            return [_row(record) for record in self._shard.scroll(request)[0]]

    def ids(self, where: Filter | None = None) -> list[PointId]:
        """Returns the ids of all points, or of those that a filter lets through."""
        edge = _edge()
        ids: list[PointId] = []
        start: PointId | None = None
        with engine_errors(str(self.path)):
            while True:
                request = edge.ScrollRequest(
                    offset=start, limit=1024, filter=_filter(where), with_payload=False, with_vector=False
                )
                records, following = self._shard.scroll(request)
                ids += [_id(record.id) for record in records]
                if following is None:
                    return ids
                start = _id(following)

    def newest(self, key: str, limit: int, where: Filter | None, with_vector: bool) -> list[tuple[float, Row]]:
        """Returns points by the value of a field, highest first."""
        edge = _edge()
        with engine_errors(str(self.path)):
            order = edge.OrderBy(key, edge.Direction.Desc)
            request = edge.ScrollRequest(
                limit=limit, filter=_filter(where), order_by=order, with_payload=True, with_vector=with_vector
            )
            return [(float(record.order_value), _row(record)) for record in self._shard.scroll(request)[0]]

    def count(self, where: Filter | None) -> int:
        with engine_errors(str(self.path)):
            return int(self._shard.count(_edge().CountRequest(filter=_filter(where), exact=True)))

    def indexed(self) -> int:
        with engine_errors(str(self.path)):
            return int(self._shard.info().indexed_vectors_count)

    def query(self, request: Any) -> list[tuple[float, Row]]:
        """Returns what a request of `nearest` finds, with scores."""
        with engine_errors(str(self.path)):
            return [(point.score, _row(point)) for point in self._shard.query(request)]

    def scores(self, request: Any) -> list[tuple[float, PointId]]:
        """Returns the score and the id of what a request of `nearest` finds."""
        with engine_errors(str(self.path)):
            return [(point.score, _id(point.id)) for point in self._shard.query(request)]

    def optimize(self) -> None:
        with engine_errors(str(self.path)):
            self._shard.optimize()

    def flush(self) -> None:
        """Writes everything to the disk and lets the log be cut."""
        if self.dirty:
            with engine_errors(str(self.path)):
                self._shard.flush()
            self.dirty, self.log_bytes = False, 0

    def sync_log(self) -> None:
        """Makes the log durable, without the engine: another thread may do this while it answers queries."""
        with suppress(FileNotFoundError):  # the shard has been replaced: its points are in the new one
            for file in (*(self.path / "wal").iterdir(), self.path / "wal"):
                with suppress(FileNotFoundError):  # the engine has cut it: its points are in the segments
                    sync(file)

    def close(self) -> None:
        with engine_errors(str(self.path)):
            self._shard.close()


def sync(path: Path) -> None:
    """Makes the content of a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_ahead(folder: Path) -> None:
    """Has the kernel read files in the background, where they fit into the memory that is free.

    The engine lets go of the pages of a shard when it loads it: the first thousand queries would wait for the disk.
    """
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if sum(sizes.values()) > _available_bytes() // 2:
        return
    for path, size in sizes.items():
        handle = os.open(path, os.O_RDONLY)
        try:
            for start in range(0, size, READ_AHEAD):  # of more at a time the kernel reads only the beginning
                os.posix_fadvise(handle, start, READ_AHEAD, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(handle)


def _available_bytes() -> int:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def nearest(
    vector: Array,
    limit: int,
    where: Filter | None,
    exact: bool,
    points: int,
    *,
    rows: bool,
    with_vector: bool = False,
) -> Any:
    """Returns a request for those of `points` points that are nearest to a vector: `rows`, or ids and scores alone."""
    edge = _edge()
    breadth = SMALL_BREADTH if points <= SMALL else SEARCH_BREADTH if where is None else FILTERED_BREADTH
    breadth = max(breadth, 2 * limit)
    params = edge.SearchParams(
        hnsw_ef=breadth,
        exact=exact,
        quantization=edge.QuantizationSearchParams(ignore=exact, rescore=True, oversampling=CANDIDATES),
        acorn=None if where is None else edge.AcornSearchParams(enable=True, max_selectivity=ACORN_UP_TO),
    )
    return edge.QueryRequest(
        limit=limit,
        query=edge.Query.Nearest(vector.tolist()),
        params=params,
        filter=_filter(where),
        with_payload=rows,
        with_vector=with_vector,
    )


def _edge() -> Any:
    try:
        import qdrant_edge
    except ImportError as error:
        raise ToolMissing("qdrant-edge-py is not installed", "pip install 'anynpu[vectors]'") from error
    return qdrant_edge


def _filter(where: Filter | None) -> Any:
    if where is None:
        return None
    parts = {part: [_condition(each) for each in getattr(where, part)] for part in ("must", "should", "must_not")}
    return _edge().Filter(**{part: conditions for part, conditions in parts.items() if conditions})


def _condition(condition: Condition) -> Any:
    edge = _edge()
    if isinstance(condition, Match):
        return edge.FieldCondition(key=condition.key, match=edge.MatchValue(condition.value))
    if isinstance(condition, AnyOf):
        return edge.FieldCondition(key=condition.key, match=edge.MatchAny(list(condition.values)))
    if isinstance(condition, HasId):
        return edge.HasIdCondition(set(condition.ids))
    bounds = {"gte": condition.gte, "gt": condition.gt, "lte": condition.lte, "lt": condition.lt}
    return edge.FieldCondition(key=condition.key, range=edge.RangeFloat(**bounds))


def _id(id: Any) -> PointId:
    return id if isinstance(id, int) else str(id)


def _row(record: Any) -> Row:
    payload: dict[str, Json] = record.payload or {}
    vector = record.vector
    return Row(_id(record.id), payload, None if vector is None else np.asarray(vector, np.float32))

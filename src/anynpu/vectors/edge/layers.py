"""A collection in layers, so that an index can be built without a query waiting for it.

    tail      takes every write; small, compared one by one
    sealed    the tail before it, while a process builds an index of it
    middle    indexed points that are not worth a new base yet
    base      indexed points

A point is in one layer: writing it to the tail deletes it from the older ones. `layout.json` names the folders; it is
replaced in one move, and what it does not name is left over from a death and removed. A build works on copies; what was
deleted in the meantime is deleted from its result before it takes its place.
"""

from __future__ import annotations

import heapq
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anynpu import schema, tool
from anynpu.errors import AnyNpuError, IntegrityError
from anynpu.files import write_whole
from anynpu.tensors import Array
from anynpu.vectors.base import CollectionSpec, Filter, PointId, Row
from anynpu.vectors.edge.build import DONE
from anynpu.vectors.edge.copying import copy_folder
from anynpu.vectors.edge.engine import Shard, nearest, sync
from anynpu.vectors.edge.wire import id_order

SPEC, LAYOUT, BUILDING = "collection.json", "layout.json", "building"
SLICE, MOST_SLICE, SLICE_RATIO = 1000, 2000, 32
"""A tail of this many points is worth an index of its own: more where the base has 32 times as many, up to a limit."""
IDLE_S, IDLE_SLICE = 5.0, 100
"""This many points are worth one when nothing has been written for a while."""
RETRY_S = 60.0
"""An index that could not be built (a full disk) is tried again after this time."""
BASE_RATIO = 8
"""The middle goes into the base when it has an eighth of its points."""
MOST_LOG_BYTES = 128 << 20
STEP, IDLE_STEP = 8, 64
"""Points written at a time: between two steps queries are answered. 8 points take about 0.3 ms."""


@dataclass(frozen=True)
class Layout:
    """The folders of the layers, and the number of the next one."""

    tail: str
    next: int
    sealed: str = ""
    middle: str = ""
    base: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The newest first."""
        return tuple(name for name in (self.tail, self.sealed, self.middle, self.base) if name)


@dataclass
class Build:
    """An index in the making: which layers go into it, and what was deleted since it began."""

    parts: tuple[str, ...]
    target: str
    folder: Path
    deleted: set[PointId]
    copying: threading.Thread
    failure: list[BaseException]
    wanted: bool
    process: tool.Process | None = None


class Layers:
    """A collection, opened in the store's process; one thread at a time."""

    def __init__(self, folder: Path, log: int) -> None:
        self.folder, self._log = folder, log
        self.spec = schema.from_dict(CollectionSpec, schema.read_json(folder / SPEC), str(folder / SPEC))
        self.layout = schema.from_dict(Layout, schema.read_json(folder / LAYOUT), str(folder / LAYOUT))
        self._shards: dict[str, Shard] = {}
        self._build: Build | None = None
        self.wanted = False
        self.trouble = ""
        self._retry_at = 0.0
        self.written_at = time.monotonic()
        # What the layout does not name is left of a death
        for entry in self.folder.iterdir():
            if entry.is_dir() and entry.name not in self.layout.names:
                shutil.rmtree(entry, ignore_errors=True)
        try:
            for name in self.layout.names:
                self._shards[name] = Shard.load(folder / name)
            # What is also in a newer layer: a death came between writing it there and deleting it here
            for newer in (self.layout.tail, self.layout.sealed):
                if newer:
                    older = self.layout.names[self.layout.names.index(newer) + 1 :]
                    ids = self._shards[newer].ids() if older else []
                    for start in range(0, len(ids), 1024):
                        self._delete_from(older, ids[start : start + 1024])
            for name in (self.layout.tail, self.layout.sealed):
                if name:
                    self._shards[name].mirrored(self.spec.space.width)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, folder: Path, spec: CollectionSpec) -> None:
        """Makes the files of an empty collection; the layout, written last, makes it one."""
        shutil.rmtree(folder, ignore_errors=True)  # what a death left of an earlier attempt
        folder.mkdir(parents=True)
        write_whole(folder / SPEC, schema.canonical_json(schema.to_dict(spec, whole=True)))
        tail = Shard.create(folder / "s1", spec)
        tail.flush()
        tail.close()
        write_whole(folder / LAYOUT, schema.canonical_json(Layout("s1", 2)))
        sync(folder)

    @property
    def shards(self) -> list[Shard]:
        """The layers, the newest first."""
        return [self._shards[name] for name in self.layout.names]

    def _delete_from(self, names: Sequence[str], ids: Sequence[PointId]) -> None:
        for name in names:
            present = self._shards[name].existing(ids)
            if present:
                self._shards[name].delete(present)

    @property
    def _copying(self) -> bool:
        return self._build is not None and self._build.process is None

    def upsert(
        self, ids: Sequence[PointId], vectors: Array, payloads: Sequence[Any], step: Callable[[], int]
    ) -> Iterator[None]:
        """Writes points a few at a time; yields between, and while older layers must not change."""
        start = 0
        while start < len(ids):
            end = start + step()
            some = list(ids[start:end])
            while self._copying and self._in_older(some):
                yield
            self._shards[self.layout.tail].upsert(some, vectors[start:end], payloads[start:end])
            self._gone(some)
            self._delete_from(self.layout.names[1:], some)
            self.written_at = time.monotonic()
            start = end
            if start < len(ids):
                yield
        self._limit_logs()

    def delete(self, ids: Sequence[PointId], step: Callable[[], int]) -> Iterator[None]:
        """Deletes points a few at a time, as `upsert` writes them."""
        start = 0
        while start < len(ids):
            end = start + step()
            some = list(ids[start:end])
            while self._copying and self._in_older(some):
                yield
            self._delete_from(self.layout.names, some)
            self._gone(some)
            self.written_at = time.monotonic()
            start = end
            if start < len(ids):
                yield
        self._limit_logs()

    def _in_older(self, ids: Sequence[PointId]) -> bool:
        return any(self._shards[name].existing(ids) for name in self.layout.names[1:])

    def _gone(self, ids: Sequence[PointId]) -> None:
        if self._build is not None:
            self._build.deleted.update(ids)

    def _limit_logs(self) -> None:
        for shard in self.shards:
            if shard.log_bytes > MOST_LOG_BYTES and not self._copying:
                shard.flush()

    def ids_where(self, where: Filter) -> list[PointId]:
        return [id for shard in self.shards for id in shard.ids(where)]

    def query(
        self, vector: Array, limit: int, where: Filter | None, with_vector: bool, exact: bool
    ) -> list[tuple[float, Row]]:
        """Returns the nearest points of all layers, best first."""
        shards = [shard for shard in self.shards if not shard.empty]
        points = sum(shard.points for shard in shards)
        if len(shards) == 1:
            return shards[0].query(nearest(vector, limit, where, exact, points, rows=True, with_vector=with_vector))
        request = nearest(vector, limit, where, exact, points, rows=False)
        scored = [
            (score, id, shard)
            for shard in shards
            for score, id in (
                shard.mirror.scores(vector, limit) if shard.mirror and where is None else shard.scores(request)
            )
        ]
        best = sorted(scored, key=lambda each: (-each[0], id_order(each[1])))[:limit]
        # Rows are read of the best alone: of every layer's best that would take longer than to find them.
        rows: dict[PointId, Row] = {}
        for shard in shards:
            if ids := [id for _, id, holder in best if holder is shard]:
                rows |= {row.id: row for row in shard.retrieve(ids, with_vector)}
        return [(score, rows[id]) for score, id, _ in best]

    def retrieve(self, ids: Sequence[PointId], with_vector: bool) -> list[Row]:
        rows = {row.id: row for shard in self.shards for row in shard.retrieve(ids, with_vector)}
        return [rows[id] for id in dict.fromkeys(ids) if id in rows]

    def scroll(self, where: Filter | None, after: PointId | None, limit: int, with_vector: bool) -> list[Row]:
        """Returns up to limit + 1 points that follow `after`: one more than wanted says that there are more."""
        rows = [row for shard in self.shards for row in shard.scroll(where, after, limit + 2, with_vector)]
        return heapq.nsmallest(limit + 1, (row for row in rows if row.id != after), key=lambda row: id_order(row.id))

    def newest(self, key: str, limit: int, where: Filter | None, with_vector: bool) -> list[Row]:
        pairs = [pair for shard in self.shards for pair in shard.newest(key, limit, where, with_vector)]
        best = heapq.nsmallest(limit, pairs, key=lambda pair: (-pair[0], id_order(pair[1].id)))
        return [row for _, row in best]

    def count(self, where: Filter | None) -> int:
        return sum(shard.count(where) for shard in self.shards)

    def indexed(self) -> int:
        indexed = [name for name in (self.layout.base, self.layout.middle) if name]
        return sum(self._shards[name].count(None) for name in indexed)

    @property
    def building(self) -> bool:
        return self._build is not None

    def dirty_shards(self) -> list[Shard]:
        return [shard for shard in self.shards if shard.dirty]

    # Building

    def want_index(self) -> None:
        """Asks for one base of all that is there."""
        self.wanted = True
        self.trouble, self._retry_at = "", 0.0

    def tend(self) -> None:
        """Goes on with building: begins, looks after the copies, starts the process, takes its result."""
        try:
            if self._build is None:
                self._begin()
            elif self._build.process is None:
                if not self._build.copying.is_alive():
                    if self._build.failure:
                        raise IntegrityError(f"{self.folder}: the index cannot be built: {self._build.failure[0]}")
                    self._build.process = tool.attend(
                        "anynpu.vectors.edge.build",
                        str(self._build.folder),
                        str(os.getpid()),
                        descriptors=(),
                        output=self._log,
                    )
            elif self._build.process.poll() is not None:
                self._finish(self._build)
        except (AnyNpuError, OSError) as error:
            # The points stay in the layers that they are in, where they are found one by one
            self.trouble, self._retry_at, self.wanted = str(error), time.monotonic() + RETRY_S, False
            self._end_build()

    def _begin(self) -> None:
        layout = self.layout
        tail = self._shards[layout.tail]
        idle = time.monotonic() - self.written_at > IDLE_S
        enough = min(max(SLICE, self._shards[layout.base].points // SLICE_RATIO if layout.base else 0), MOST_SLICE)
        if tail.points < enough and not (idle or self.wanted or layout.sealed):
            return
        points = tail.count(None)
        due = points >= enough or (idle and points >= IDLE_SLICE)
        if self.wanted and not points and not layout.sealed and not layout.middle:
            self.wanted = False
        if time.monotonic() < self._retry_at or not (due or self.wanted or layout.sealed):
            return
        if points and not layout.sealed:  # a new tail; the old one takes no more points
            name = f"s{layout.next}"
            tail = Shard.create(self.folder / name, self.spec)
            tail.flush()
            sync(self.folder)
            layout = replace(layout, tail=name, sealed=layout.tail, next=layout.next + 1)
            write_whole(self.folder / LAYOUT, schema.canonical_json(layout))
            self._shards[name], self.layout = tail, layout
        counts = {name: self._shards[name].count(None) for name in layout.names if name != layout.tail}
        if not counts:
            return
        young = counts.get(layout.sealed, 0) + counts.get(layout.middle, 0)
        whole = self.wanted or not layout.base or young * BASE_RATIO >= counts[layout.base]
        parts = tuple(name for name in counts if whole or name != layout.base)
        for name in parts:
            self._shards[name].flush()
        folder = self.folder / BUILDING
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        # The graph of the largest part is reused; the others are added from the oldest to the newest.
        largest = max(parts, key=lambda name: counts[name])
        others = [name for name in reversed(parts) if name != largest]
        copies = [(largest, "into"), *((name, f"more{at}") for at, name in enumerate(others))]
        failure: list[BaseException] = []

        def copy() -> None:
            try:
                for name, copied in copies:
                    copy_folder(self.folder / name, folder / copied)
            except BaseException as error:  # the thread that tends to it reports it
                failure.append(error)

        thread = threading.Thread(target=copy, daemon=True)
        self._build = Build(parts, "base" if whole else "middle", folder, set(), thread, failure, self.wanted)
        thread.start()

    def _finish(self, build: Build) -> None:
        status = build.process.returncode if build.process is not None else None
        if status != 0 or not (build.folder / DONE).exists():
            raise IntegrityError(f"{self.folder}: the process that builds the index ended with status {status}")
        name = f"s{self.layout.next}"
        (build.folder / "into").rename(self.folder / name)
        merged = Shard.load(self.folder / name)
        gone = merged.existing(list(build.deleted)) if build.deleted else []
        if gone:
            merged.delete(gone)
            merged.flush()
        sync(self.folder)
        kept = {layer: getattr(self.layout, layer) for layer in ("sealed", "middle", "base")}
        kept = {layer: "" if held in build.parts else held for layer, held in kept.items()}
        layout = Layout(self.layout.tail, self.layout.next + 1, **{**kept, build.target: name})
        write_whole(self.folder / LAYOUT, schema.canonical_json(layout))
        self._shards[name] = merged
        self.layout = layout
        self._build, self.trouble = None, ""
        self.wanted &= not build.wanted  # what came in since is not what was asked for
        for part in build.parts:
            self._shards.pop(part).close()
        folders = [build.folder, *(self.folder / part for part in build.parts)]
        threading.Thread(target=_remove, args=(folders,), daemon=True).start()

    def _end_build(self) -> None:
        if self._build is not None:
            self._build.copying.join()
            if self._build.process is not None:
                tool.end(self._build.process)
            shutil.rmtree(self._build.folder, ignore_errors=True)
            self._build = None

    def close(self) -> None:
        """Puts everything on the disk and lets go of it."""
        self._end_build()
        for shard in self._shards.values():
            with suppress(AnyNpuError):  # what the log holds is not lost
                shard.flush()
            with suppress(AnyNpuError):
                shard.close()
        self._shards.clear()


def _remove(folders: Sequence[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)

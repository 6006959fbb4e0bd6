"""What a store does with its collections: every operation that a client may ask for, by name."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from anynpu import schema
from anynpu.errors import ConfigError
from anynpu.vectors.base import CollectionSpec
from anynpu.vectors.edge.engine import engine_version, sync
from anynpu.vectors.edge.layers import IDLE_STEP, LAYOUT, SPEC, STEP, Layers
from anynpu.vectors.edge.wire import PROTOCOL, Frame, read_filter, rows_frame

BUSY_S = 0.05
"""Writes go in small steps for this long after the last read."""


class Operations:
    """The collections of a folder; those that were used are open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.layers: dict[str, Layers] = {}
        self.read_at, self.wrote_at = time.monotonic(), 0.0

    def building(self) -> bool:
        return any(collection.building for collection in self.layers.values())

    def opened(self, frame: Frame) -> Layers:
        name = str(frame.head.get("collection"))
        if name not in self.layers:
            if name not in self.every():
                raise ConfigError(
                    f"{self.folder} holds no collection {name!r}", "there are: " + (", ".join(self.every()) or "none")
                )
            self.layers[name] = Layers(self.folder / name, sys.stderr.fileno())
        return self.layers[name]

    def every(self) -> list[str]:
        return sorted(entry.parent.name for entry in self.folder.glob(f"*/{LAYOUT}"))

    def hello(self, frame: Frame) -> Frame:
        if frame.head.get("protocol") != PROTOCOL:
            raise ConfigError(
                f"{self.folder}: a process of another version has this store open", "end it, or use the same version"
            )
        return Frame({"protocol": PROTOCOL, "engine": engine_version(), "process": os.getpid()})

    def names(self, frame: Frame) -> Frame:
        return Frame({"names": self.every()})

    def spec(self, frame: Frame) -> Frame:
        return Frame({"spec": schema.to_dict(self.opened(frame).spec, whole=True)})

    def query(self, frame: Frame) -> Frame:
        head = frame.head
        where = read_filter(head["where"])
        pairs = self.opened(frame).query(frame.vectors, head["limit"], where, head["with_vector"], head["exact"])
        rows = [row for _, row in pairs]
        scores = [score for score, _ in pairs]
        # Busy: others need the cores as well, because points come in or an index is built
        return rows_frame(
            rows, {"scores": scores, "busy": time.monotonic() - self.wrote_at < BUSY_S or self.building()}
        )

    def retrieve(self, frame: Frame) -> Frame:
        return rows_frame(self.opened(frame).retrieve(frame.head["ids"], frame.head["with_vector"]))

    def scroll(self, frame: Frame) -> Frame:
        head = frame.head
        where = read_filter(head["where"])
        return rows_frame(self.opened(frame).scroll(where, head["after"], head["limit"], head["with_vector"]))

    def newest(self, frame: Frame) -> Frame:
        head = frame.head
        where = read_filter(head["where"])
        return rows_frame(self.opened(frame).newest(head["key"], head["limit"], where, head["with_vector"]))

    def count(self, frame: Frame) -> Frame:
        return Frame({"count": self.opened(frame).count(read_filter(frame.head["where"]))})

    def info(self, frame: Frame) -> Frame:
        layers = self.opened(frame)
        return Frame({"points": layers.count(None), "indexed": layers.indexed(), "indexing": layers.building})

    def create(self, frame: Frame) -> Iterator[None]:
        spec = schema.from_dict(CollectionSpec, frame.head["spec"], SPEC)
        if spec.name not in self.every():
            Layers.create(self.folder / spec.name, spec)
            sync(self.folder)
        yield

    def drop(self, frame: Frame) -> Iterator[None]:
        name = self.opened(frame).spec.name
        self.layers.pop(name).close()
        (self.folder / name / LAYOUT).unlink()  # without it, it is none
        sync(self.folder / name)
        shutil.rmtree(self.folder / name, ignore_errors=True)
        yield

    def _step(self) -> int:
        return STEP if time.monotonic() - self.read_at < BUSY_S else IDLE_STEP

    def upsert(self, frame: Frame) -> Iterator[None]:
        layers = self.opened(frame)
        head = frame.head
        rows = frame.rows(layers.spec.space.width)
        return layers.upsert(head["ids"], rows, head["payloads"], self._step)

    def delete(self, frame: Frame) -> Iterator[None]:
        return self.opened(frame).delete(frame.head["ids"], self._step)

    def delete_where(self, frame: Frame) -> Iterator[None]:
        layers = self.opened(frame)
        where = read_filter(frame.head["where"])
        if where is not None:
            yield from layers.delete(layers.ids_where(where), self._step)


READS: dict[str, Callable[[Operations, Frame], Frame]] = {
    "hello": Operations.hello,
    "names": Operations.names,
    "spec": Operations.spec,
    "query": Operations.query,
    "retrieve": Operations.retrieve,
    "scroll": Operations.scroll,
    "newest": Operations.newest,
    "count": Operations.count,
    "info": Operations.info,
}
WRITES: dict[str, Callable[[Operations, Frame], Iterator[None]]] = {
    "create": Operations.create,
    "drop": Operations.drop,
    "upsert": Operations.upsert,
    "delete": Operations.delete,
    "delete_where": Operations.delete_where,
}

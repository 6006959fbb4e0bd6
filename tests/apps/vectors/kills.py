"""Kills a store or its client at random moments and looks whether an acknowledged write is gone.

    python tests/apps/vectors/kills.py 100 [FOLDER]

A writer in a process of its own writes points, writes some again and deletes some, and prints a line for each write
that was acknowledged. After every kill the store is opened and compared with what was acknowledged; the write that was
under way may be there or not, whole or in part, but nothing else may differ.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from anynpu.vectors.base import CollectionSpec, Field, Point, VectorSpace
from anynpu.vectors.edge.client import EdgeStore

SPEC = CollectionSpec("things", VectorSpace("tiny", "f" * 64, 32), (Field("version", "integer"),))


def direction(id: int, version: int) -> np.ndarray:
    row = np.random.default_rng([id, version]).standard_normal(32).astype(np.float32)
    return row / np.linalg.norm(row)


def write(folder: str, seed: int, first: int) -> None:
    """Writes until it is killed; says before each write what it is to be, and after it that it is acknowledged."""
    chance = random.Random(seed)
    with EdgeStore.at(folder) as store:
        things = store.create(SPEC)
        print(json.dumps({"process": store.process_id()}), flush=True)
        version, known = first, list(range(max(0, first - 500), first))
        while True:
            version += 1
            size = chance.choice((1, 3, 20, 100))
            if known and chance.random() < 0.2:
                operation, ids = "delete", chance.sample(known, min(size, len(known)))
            else:
                again = chance.sample(known, min(size // 4, len(known)))
                ids = [*again, *range(version * 1000, version * 1000 + size - len(again))]
                operation = "upsert"
            print(json.dumps({"begin": operation, "version": version, "ids": ids}), flush=True)
            if operation == "delete":
                things.delete(ids)
                known = [id for id in known if id not in set(ids)]
            else:
                things.upsert([Point(id, direction(id, version), {"version": version}) for id in ids])
                known = (known + ids)[-2000:]
            print(json.dumps({"done": version}), flush=True)


class Truth:
    """What the store must hold, and what it may hold."""

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        self.under_way: dict | None = None
        self.acknowledged = 0

    def hear(self, line: dict) -> None:
        if "begin" in line:
            self.under_way = line
        elif "done" in line and self.under_way is not None:
            for id in self.under_way["ids"]:
                if self.under_way["begin"] == "delete":
                    self.versions.pop(id, None)
                else:
                    self.versions[id] = self.under_way["version"]
            self.acknowledged += len(self.under_way["ids"])
            self.under_way = None

    def compare(self, folder: str) -> list[str]:
        """Returns what is wrong with the store; what the write under way did becomes the truth."""
        found: dict[int, int] = {}
        wrong = []
        with EdgeStore.at(folder) as store:
            things = store.create(SPEC)
            after = None
            while True:
                page = things.scroll(after=after, limit=5000, with_vector=True)
                for row in page.rows:
                    if row.id in found:
                        wrong.append(f"{row.id} is there twice")
                    found[row.id] = row.payload["version"]
                    # To draw a vector again is slow: every point of the last write, and every 20th other one.
                    recent = self.under_way is not None and row.id in self.under_way["ids"]
                    looked_at = recent or row.id % 20 == 0
                    if looked_at and not np.allclose(row.vector, direction(row.id, row.payload["version"]), atol=1e-6):
                        wrong.append(f"{row.id} has the vector of another version")
                after = page.after
                if after is None:
                    break
            if things.count() != len(found):
                wrong.append(f"{things.count()} points are counted, {len(found)} listed")
        open_ids = set(self.under_way["ids"]) if self.under_way else set()
        for id in self.versions.keys() | found.keys():
            if found.get(id) == self.versions.get(id):
                continue
            new = None if self.under_way is None or self.under_way["begin"] == "delete" else self.under_way["version"]
            if id not in open_ids or found.get(id) != new:
                wrong.append(f"{id}: version {found.get(id)}, acknowledged was {self.versions.get(id)}")
        self.versions, self.under_way = found, None
        return wrong


def campaign(
    folder: Path, kills: int, seed: int = 0, longest_s: float = 2.0, tell: Callable[[str], None] = lambda line: None
) -> tuple[list[str], int, int]:
    """Returns what went wrong, how many points were acknowledged, and how many there are at the end."""
    chance = random.Random(seed)
    truth, wrong = Truth(), []
    for kill in itertools.count():
        if kill >= kills and (truth.acknowledged or kill >= 10 * kills):
            break
        first = max(truth.versions.values(), default=0)
        argv = [sys.executable, __file__, "--write", str(folder), str(seed * 1000 + kill), str(first)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
            process = json.loads(writer.stdout.readline())["process"]
            victim, name = (process, "store") if kill % 2 == 0 else (writer.pid, "client")
            timer = threading.Timer(chance.uniform(0.0, longest_s), os.kill, (victim, signal.SIGKILL))
            timer.start()
            started = time.monotonic()
            for line in writer.stdout:
                if not line.endswith("\n"):
                    break
                heard = json.loads(line)
                truth.hear(heard)
                # After the store's death the client starts another one and goes on: its own end comes later.
                if name == "store" and time.monotonic() - started > longest_s + 0.5:
                    writer.kill()
            timer.join()
        wrong += [f"kill {kill} ({name}): {each}" for each in truth.compare(str(folder))[:5]]
        tell(f"kill {kill} ({name}): {len(truth.versions)} points, {len(wrong)} wrong")
    return wrong, truth.acknowledged, len(truth.versions)


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        place = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp()) / "store"
        began = time.monotonic()
        trouble, points, kept = campaign(place, int(sys.argv[1]), int(time.time()), tell=print)
        for each in trouble:
            print(each)
        print(
            f"{sys.argv[1]} kills in {time.monotonic() - began:.0f} s: {points} writes of a point acknowledged, "
            f"{kept} points at the end, {len(trouble)} wrong"
        )
        sys.exit(bool(trouble))

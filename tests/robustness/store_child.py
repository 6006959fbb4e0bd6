"""A process that builds steps slowly, for tests that kill it or start it several times: CACHE STEPS [COUNT_FILE]."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from anynpu import artifact, store
from anynpu.artifact import Manifest, Step
from anynpu.store import Store

FILES = 12
PAUSE_S = 0.002


def steps(count: int) -> list[Step]:
    return [Step("slow", {"number": str(number)}) for number in range(count)]


def make(out: Path, log: Path) -> Manifest:
    for number in range(FILES):
        with (out / f"part{number}").open("wb") as stream:
            for _ in range(4):
                stream.write(os.urandom(4096))
                stream.flush()
                time.sleep(PAUSE_S)
    return Manifest("parts", "part0")


def widen() -> None:
    """Slows hashing and flushing, so that a kill often falls into sealing and publishing."""
    hash_file, sync = artifact.hash_file, store._sync

    def slow_hash(path: Path) -> str:
        time.sleep(PAUSE_S)
        return hash_file(path)

    def slow_sync(path: Path) -> None:
        time.sleep(PAUSE_S)
        sync(path)

    artifact.hash_file, store._sync = slow_hash, slow_sync


def main() -> None:
    cache, count = Path(sys.argv[1]), int(sys.argv[2])
    counter = Path(sys.argv[3]) if len(sys.argv) > 3 else None

    def counted(out: Path, log: Path) -> Manifest:
        if counter is not None:
            with counter.open("a") as stream:
                stream.write("built\n")
        return make(out, log)

    widen()
    print("ready", flush=True)
    for step in steps(count):
        Store(cache).build(step, counted)


if __name__ == "__main__":
    main()

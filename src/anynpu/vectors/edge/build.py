"""Builds an index in a process apart from the store's: `python -m anynpu.vectors.edge.build FOLDER`.

FOLDER holds copies of shards: `into`, whose graph is reused, and `more0`, `more1`..., whose points are added to it, the
later ones over the earlier. When everything is indexed and on the disk, the file `done` appears. The process ends with
the one that started it, whatever it is doing: the engine does not let go of Python while it builds.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from anynpu.files import replace_file
from anynpu.vectors.base import PointId
from anynpu.vectors.edge.engine import Shard

DONE = "done"
BATCH = 256
PR_SET_PDEATHSIG = 1


def build(folder: Path) -> None:
    """Adds all points to `into` and indexes them."""
    into = Shard.load(folder / "into")
    for more in sorted(folder.glob("more*"), key=lambda path: int(path.name[4:])):
        shard = Shard.load(more)
        start: PointId | None = None
        while True:
            rows = shard.scroll(None, start, BATCH + 1, with_vector=True)
            batch = rows[:BATCH]
            if batch:
                vectors = np.stack([row.vector for row in batch if row.vector is not None])
                into.upsert([row.id for row in batch], vectors, [row.payload for row in batch])
            if len(rows) <= BATCH:
                break
            start = rows[BATCH].id
        shard.close()
        shutil.rmtree(more)
    into.optimize()
    into.dirty = True  # what the optimiser made is to be on the disk too
    into.flush()
    into.close()
    replace_file(folder / DONE, "")


def main(folder: str, parent: str) -> None:
    """Builds at a lower priority than queries have, as long as the parent lives."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return  # it died before we were listening
    with suppress(OSError):
        os.nice(10)  # at 19 it would hardly end while a client asks without a pause
    build(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])

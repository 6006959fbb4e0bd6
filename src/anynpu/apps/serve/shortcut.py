"""When a request may be computed in the event loop itself, which saves the two ways between threads.

Only where that holds up nobody: on this computer's CPU, in a server of one model, for an input of a size that the
owner's thread has measured to be quick, and while requests come one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from anynpu.apps.serve.program import Row
from anynpu.runtime.abilities import on_hardware
from anynpu.runtime.base import Session
from anynpu.runtime.ort import OrtSession

LONGEST_S = 0.010
"""So long the event loop may stand still: for /health, for signals, and for whoever else comes."""
CROWDED_S = 1.0
"""After two requests at once, all go to the owner's thread for so long."""
SMOOTH = 0.2
"""The weight of the newest run in the mean time of a size."""
Size = tuple[int | str, int]


class Shortcut:
    """How long one row of each size takes in the sessions of one version."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        # A device may hang, and a child process too: only what computes in this process is let into the loop.
        self._allowed = all(isinstance(each, OrtSession) and not on_hardware(each) for each in sessions)
        self._mean_s: dict[Size, float] = {}

    def ran(self, rows: Sequence[Row], took_s: float) -> None:
        """Notes a run."""
        if self._allowed and len(rows) == 1:
            size = _size(rows[0])
            mean_s = self._mean_s.get(size, took_s)
            self._mean_s[size] = (1 - SMOOTH) * mean_s + SMOOTH * took_s

    def takes(self, rows: Sequence[Row]) -> bool:
        """Returns whether the rows of a request are quick enough."""
        return self._allowed and len(rows) == 1 and self._mean_s.get(_size(rows[0]), math.inf) <= LONGEST_S


def _size(row: Row) -> Size:
    """Returns what the time of a row depends on: the length of a text, or the bytes of arrays."""
    return row.group, sum([array.nbytes for array in row.arrays.values()])

"""Memory that is free goes back to the system."""

import sys
from pathlib import Path

import pytest

from anynpu.memory import give_back

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process holds")
PIECES, SIZE = 4000, 16 << 10


def held_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024


def test_what_is_free_between_what_is_not_goes_back():
    pieces = [bytearray(SIZE) for _ in range(PIECES)]
    kept = pieces[::100]
    full = held_mib()
    del pieces
    give_back()
    assert held_mib() < full - 0.7 * PIECES * SIZE / 2**20
    assert len(kept) == PIECES // 100

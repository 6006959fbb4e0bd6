"""Two thousand damaged .cix files; tests/robustness/fuzz_cix.py reads a hundred thousand."""

from __future__ import annotations

import fuzz_cix


def test_no_damaged_file_crashes_hangs_or_takes_much_memory():
    figures = fuzz_cix.fuzz(2000, seed=7)
    assert figures.failures == []
    assert figures.refused > 1000 and figures.accepted > 100 and len(figures.sentences) > 40


def test_a_file_is_found_again_by_its_number():
    assert fuzz_cix.damaged(123, 7) == fuzz_cix.damaged(123, 7) != fuzz_cix.damaged(123, 8)
    assert len({fuzz_cix.damaged(n, 7)[1] for n in range(500)}) > 450


def test_a_reader_that_fails_is_seen(monkeypatch):
    def broken(data: bytes) -> None:
        raise IndexError("beyond the end")

    monkeypatch.setattr(fuzz_cix, "read_cix", broken)
    assert len(fuzz_cix.fuzz(10, seed=7).failures) == 10
    monkeypatch.setattr(fuzz_cix, "read_cix", lambda data: bytearray(64 << 20))
    assert any("more than twice" in line for line in fuzz_cix.fuzz(1, seed=7).failures)

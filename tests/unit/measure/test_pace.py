"""8 bits that are slower than float on this CPU are said, and only those."""

from __future__ import annotations

import pytest

from anynpu.measure.pace import slower_than_float


class Clock:
    """Time that passes only when something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def running(self, *seconds: float):
        """Returns a function that takes so long, call by call."""
        left = list(seconds)

        def run() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.mark.parametrize(
    ("real", "int8", "said"),
    [
        ((0.010,), (0.015,), True),
        ((0.010,), (0.011,), False),
        ((0.010,), (0.005,), False),
        ((0.0005,), (0.005,), False),
        ((0.010,), (0.900, 0.009), False),
    ],
    ids=["slower", "about as fast", "faster", "too short to matter", "one stall"],
)
def test_what_is_clearly_slower_is_said(real: tuple[float, ...], int8: tuple[float, ...], said: bool) -> None:
    clock = Clock()
    notes = slower_than_float(clock.running(*real), clock.running(*int8), clock)
    assert bool(notes) == said
    if said:
        assert "15 ms against 10 ms (medians of 9 runs in turn)" in notes[0] and "compare --time" in notes[0]


def test_long_runs_are_few() -> None:
    clock = Clock()
    (note,) = slower_than_float(clock.running(1.0), clock.running(3.0), clock)
    assert "3e+03 ms against 1e+03 ms (medians of 3 runs in turn)" in note

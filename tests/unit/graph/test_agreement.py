"""When two computations of the same outputs agree: by variation over the samples, not by magnitude."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.graph.agreement import Disagreement, disagreement, spread

RNG = np.random.default_rng(0)
FEEDS = [{"x": RNG.standard_normal((1, 4)).astype(np.float32)} for _ in range(32)]


def found(reference, candidate, feeds=FEEDS) -> Disagreement | None:
    return disagreement(["y"], lambda feed: [reference(feed["x"])], lambda feed: [candidate(feed["x"])], feeds)


@pytest.mark.parametrize(
    ("reference", "candidate", "differing"),
    [
        (lambda x: x, lambda x: x * np.float32(1 + 1e-5), 0),
        (lambda x: x, lambda x: np.where(x[:, :1] > 1.2, -x, x), sum(f["x"][0, 0] > 1.2 for f in FEEDS)),
        (lambda x: 1000 + x, lambda x: 1000 + np.float32(1.1) * x, 32),
        (lambda x: x * 1e-6, lambda x: np.abs(x * 1e-6), sum((f["x"] < 0).any() for f in FEEDS)),
        (lambda x: np.exp(-100 - 10 * abs(x)) + x[:, :1], lambda x: np.float32(0) * x + x[:, :1], 0),
        (lambda x: x * 0, lambda x: x * 0 + np.float32(1e-38), 32),
        (lambda x: np.concatenate([x * 0, x]), lambda x: np.concatenate([x * 0 + np.float32(1e-12), x]), 0),
        (lambda x: x, lambda x: x.reshape(4), 32),
        (lambda x: np.full_like(x, np.nan), lambda x: np.full_like(x, np.nan), 0),
        (lambda x: x, lambda x: np.where(x > 2, np.nan, x), sum((f["x"] > 2).any() for f in FEEDS)),
        (lambda x: x.argmax(1), lambda x: x.argmin(1), 32),
        # A network that magnifies rounding: its own answers move as much when the last bits of its input do.
        (lambda x: np.sin(1e6 * x), lambda x: np.sin(1e6 * np.nextafter(x, np.float32(9))), 0),
    ],
    ids=[
        "rounding", "some-samples", "small-on-large", "small-output", "tail-far-below", "zeros-only", "zeros-beside",
        "shape", "nan-alike", "nan-alone", "class-numbers", "ill-conditioned",
    ],
)  # fmt: skip
def test_differences_are_judged_by_variation(reference, candidate, differing):
    answer = found(reference, candidate)
    assert (answer.differing if answer else 0) == differing
    assert answer is None or (answer.samples == 32 and "of 32 samples" in str(answer))


def test_a_tie_that_rounding_turns_over_is_no_difference():
    tie = np.float32([[1.0, 1.0]])
    assert found(lambda x: x.argmax(1), lambda x: 1 - x.argmax(1), [{"x": tie}]) is None


def test_samples_are_spread_evenly():
    assert spread(5, 5) == [0, 1, 2, 3, 4] and spread(100, 3) == [0, 50, 99]

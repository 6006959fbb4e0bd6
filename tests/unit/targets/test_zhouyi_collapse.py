"""Two samples that the float model tells apart must come apart in the compiled one."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.errors import AccuracyError
from anynpu.targets.zhouyi.collapse import cosine, farthest, judge

APART = [np.eye(4)[i] + 0.1 for i in range(3)]
NEAR = [np.ones(4), np.ones(4) * 1.001]


def test_one_vector_for_all_is_an_accuracy_error():
    with pytest.raises(AccuracyError, match="runs, and its results mean nothing") as garbage:
        judge("out", APART, [np.ones(4)] * 3)
    assert garbage.value.got == pytest.approx(1.0)
    assert "float_nodes" in garbage.value.hint


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_zeros_and_nan_are_garbage_too(value):
    with pytest.raises(AccuracyError):
        judge("out", APART, [np.full(4, value)] * 3)


def test_vectors_that_stay_apart_pass_and_near_ones_are_not_judged():
    assert judge("out", APART, [v + 0.05 for v in APART]) == ""
    assert "nearly the same" in judge("out", NEAR, [np.ones(4)] * 2)


def test_the_pair_that_differs_most_counts():
    values = [np.array([1.0, 0]), np.array([1.0, 0.1]), np.array([0.0, 1])]
    assert farthest(values) == (0, 2, 0.0)
    assert cosine(np.zeros(2), np.zeros(2)) == 1.0
    assert cosine(np.zeros(2), np.ones(2)) == 0.0

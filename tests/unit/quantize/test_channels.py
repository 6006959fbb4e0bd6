"""Reductions by channel are those of numpy, in whichever order a tensor stands and however its rows are laid out."""

import numpy as np
import pytest

from anynpu.quantize.bias import channel_mean
from anynpu.quantize.channels import by_channel, channel_rows

DRAW = np.random.default_rng(3)
CASES = [((1, 37, 41, 3), -1), ((1, 37, 41, 3), 3), ((1, 3, 37, 41), 1), ((2, 5, 300, 3), 1), ((7, 5000), -1)]
CASES += [((6,), 0), ((1, 64, 64, 16), 3), ((1, 3, 256, 256), 1), ((1, 1, 1, 8), -1), ((3, 2, 2), 0)]


def others(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return tuple(each for each in range(len(shape)) if each != axis % len(shape))


@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int16, np.uint8])
def test_reductions_are_those_of_numpy(shape, axis, dtype):
    values = (DRAW.normal(20, 30, shape)).astype(dtype)
    rows = channel_rows(values, axis)
    np.testing.assert_array_equal(by_channel(np.minimum, rows), values.min(axis=others(shape, axis)))
    np.testing.assert_array_equal(by_channel(np.maximum, rows), values.max(axis=others(shape, axis)))
    exact = values.astype(np.float64)
    np.testing.assert_allclose(channel_mean(values, axis), exact.mean(axis=others(shape, axis)), rtol=2e-6, atol=1e-5)
    halves = channel_mean(values.astype(np.float32), axis, lambda piece: piece / 2 + 1)
    np.testing.assert_allclose(halves, exact.mean(axis=others(shape, axis)) / 2 + 1, rtol=2e-6, atol=1e-5)


def test_sums_of_integers_do_not_overflow():
    values = np.full((1, 512, 512, 4), -32768, np.int16)
    np.testing.assert_array_equal(channel_mean(values, -1), [-32768.0] * 4)

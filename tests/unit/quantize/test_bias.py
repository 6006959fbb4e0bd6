import numpy as np
import pytest

from anynpu.quantize.bias import ChannelMeans, expected_shift, rounding_error

RNG = np.random.default_rng(11)


def test_rounding_error_is_at_most_half_a_step():
    weights = RNG.normal(size=(4, 3, 3, 5))
    weights[1] *= 100
    weights[2] = 0
    error = rounding_error(weights, 0)
    step = np.abs(weights).max(axis=(1, 2, 3)) / 127
    assert (np.abs(error).max(axis=(1, 2, 3)) <= step / 2 + 1e-12).all()
    assert np.abs(rounding_error(weights, None)[0]).max() > step[0] / 2


def test_means_are_per_channel():
    means = ChannelMeans({"x": 1})
    values = RNG.normal(size=(6, 3, 4, 4))
    for value in values:
        means.observe({"x": value[None], "other": value})
    np.testing.assert_allclose(means.mean("x"), values.mean(axis=(0, 2, 3)))


def test_shift_of_a_dense_layer():
    error, mean = RNG.normal(size=(7, 5)), RNG.normal(size=5)
    np.testing.assert_allclose(expected_shift(error[:, None], mean), error @ mean)


@pytest.mark.parametrize("groups", [1, 2])
def test_shift_of_a_convolution_is_the_mean_it_loses(groups):
    error, mean = RNG.normal(size=(6, 9, 4 // groups)), RNG.normal(size=4)
    constant = np.broadcast_to(mean, (9, 4))
    for output in range(6):
        first = (output // (6 // groups)) * (4 // groups)
        seen = constant[:, first : first + 4 // groups]
        assert expected_shift(error, mean)[output] == pytest.approx(float(np.sum(error[output] * seen)))


def test_shift_of_a_depthwise_layer_with_multiplier():
    error, mean = RNG.normal(size=(4, 9)), np.array([2.0, 3.0])
    np.testing.assert_allclose(expected_shift(error, mean, True), error.sum(axis=1) * [2, 2, 3, 3])

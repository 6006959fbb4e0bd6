import numpy as np
import pytest

from anynpu.quantize.bias import ChannelMeans, kept, output_mean, rounding_error, steps
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range, quantization_for
from anynpu.quantize.sketch import Sketch

RNG = np.random.default_rng(11)


def test_rounding_error_is_at_most_half_a_step():
    weights = RNG.normal(size=(4, 3, 3, 5))
    weights[1] *= 100
    weights[2] = 0
    error = rounding_error(weights, 0, 8, QuantPlan())
    step = np.abs(weights).max(axis=(1, 2, 3)) / 127
    assert (np.abs(error).max(axis=(1, 2, 3)) <= step / 2 + 1e-12).all()
    assert np.abs(rounding_error(weights, None, 8, QuantPlan())[0]).max() > step[0] / 2


def test_means_are_per_channel():
    values = RNG.normal(size=(6, 3, 4, 4))
    sketch = Sketch({"x": 1}, {})
    for at, value in enumerate(values):
        sketch.observe({"x": value[None], "other": value}, at, len(values))
    means = ChannelMeans(sketch, {"x": Range(-5.0, 5.0)}, QuantPlan())
    np.testing.assert_allclose(means.exact("x"), values.mean(axis=(0, 2, 3)), atol=1e-6)
    form = quantization_for(Range(-5.0, 5.0), "int8", False)
    rounded = form.dequantize(form.quantize(values, "int8"))
    np.testing.assert_allclose(means.rounded("x"), rounded.mean(axis=(0, 2, 3)), atol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_integers_stand_for_what_the_quantisation_says(dtype):
    form = quantization_for(Range(-2.0, 3.0), dtype, dtype == "int16")
    values = RNG.normal(0, 2, 1000).astype(np.float32)
    assert np.abs(steps(values, form, dtype) - form.quantize(values, dtype)).max() <= 1
    np.testing.assert_array_equal(steps(values, form, dtype)[::7] % 1, 0)
    inside = np.clip(values, -1.9, 2.9)
    assert np.abs(kept(inside, form, dtype) - inside).max() <= 0.51 * form.scale[0]


def test_shift_of_a_dense_layer():
    error, mean = RNG.normal(size=(7, 5)), RNG.normal(size=5)
    np.testing.assert_allclose(output_mean(error[:, None], mean), error @ mean)


@pytest.mark.parametrize("groups", [1, 2])
def test_shift_of_a_convolution_is_the_mean_it_loses(groups):
    error, mean = RNG.normal(size=(6, 9, 4 // groups)), RNG.normal(size=4)
    constant = np.broadcast_to(mean, (9, 4))
    for output in range(6):
        first = (output // (6 // groups)) * (4 // groups)
        seen = constant[:, first : first + 4 // groups]
        assert output_mean(error, mean)[output] == pytest.approx(float(np.sum(error[output] * seen)))


def test_shift_of_a_depthwise_layer_with_multiplier():
    error, mean = RNG.normal(size=(4, 9, 1)), np.array([2.0, 3.0])
    np.testing.assert_allclose(output_mean(error, mean), error[:, :, 0].sum(axis=1) * [2, 2, 3, 3])


def test_mean_of_a_flattened_input():
    weights, mean = RNG.normal(size=(3, 1, 6)), np.array([1.0, 2.0])
    np.testing.assert_allclose(output_mean(weights, mean), weights[:, 0] @ [1, 2, 1, 2, 1, 2])

"""Scales that are powers of two, of ranges and of weights, against all powers that could be tried."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anynpu.quantize.bias import rounding_error
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fixed import Stated
from anynpu.quantize.ranges import Range, collect, planned_form, quantization_for
from anynpu.quantize.weights import symmetric_scales
from anynpu.records.quantisation import Quantisation, TensorForm
from anynpu.targets.vitisai.quantise import QuarkPlan

DRAW = np.random.default_rng(7)
PLAN = QuarkPlan(activations="uint8", weights="per-tensor")
VALUES = {
    "normal": DRAW.normal(size=4000),
    "heavy": DRAW.standard_t(2, size=4000),
    "one-sided": np.abs(DRAW.normal(size=4000)) * 37,
    "unit": DRAW.uniform(-1, 1, size=4000),
    "tiny": DRAW.normal(size=4000) * 1e-6,
}


def loss(values: np.ndarray, scale: float, low: int, high: int) -> float:
    return float(np.square(values - np.clip(np.rint(values / scale), low, high) * scale).sum())


@pytest.mark.parametrize("kind", VALUES)
def test_a_range_has_the_power_with_the_least_error(kind: str) -> None:
    values = VALUES[kind]
    data = Dataset({"x": values.reshape(8, 500)}, None, "test")
    limits = collect(lambda s: {"y": s["x"]}, data, "mse", symmetric=True, power_of_two=True)["y"]
    form = planned_form(limits, "uint8", PLAN)
    assert form.zero_point == (128,) and math.frexp(form.scale[0])[0] == 0.5
    best = min(loss(values, 2.0**power, -128, 127) for power in range(-40, 12))
    assert loss(values, form.scale[0], -128, 127) <= best * 1.02


@pytest.mark.parametrize(
    ("limits", "scale"),
    [((-1.0, 127 / 128), 2.0**-7), ((-1.0, 1.0), 2.0**-6), ((0.0, 6.0), 2.0**-4), ((0.0, 0.0), 1.0)],
)
def test_a_range_is_covered_on_both_sides(limits: tuple[float, float], scale: float) -> None:
    form = quantization_for(Range(*limits), "uint8", True, True)
    assert form.scale == (scale,) and form.zero_point == (128,)


@pytest.mark.parametrize("kind", VALUES)
def test_weights_have_the_power_with_the_least_error_and_keep_it(kind: str) -> None:
    values = VALUES[kind]
    (scale,) = symmetric_scales(values, None, 8, power_of_two=True)
    assert math.frexp(scale)[0] == 0.5
    best = min(loss(values, 2.0**power, -127, 127) for power in range(-40, 12))
    assert loss(values, scale, -127, 127) <= best * (1 + 1e-9)
    kept = values - rounding_error(values.reshape(1, -1), None, 8, PLAN).ravel()
    np.testing.assert_allclose(rounding_error(kept.reshape(1, -1), None, 8, PLAN), 0, atol=1e-12 * np.abs(values).max())


@pytest.mark.parametrize("scale", [0.125, 2.0])
def test_a_stated_scale_is_the_scale_of_its_range(scale: float, tmp_path) -> None:
    stated = Stated(tmp_path / "edited.json", Quantisation())
    limits = stated._range("x", TensorForm(scale=(scale,), zero_point=(128,)), "uint8", PLAN)
    assert limits is not None and planned_form(limits, "uint8", PLAN).scale == (scale,)

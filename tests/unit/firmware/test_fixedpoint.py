"""The integer arithmetic against the real functions that it stands for, and at its edges."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anynpu.firmware.generator import fixedpoint as fp

ONE = 1 << 31


@given(st.floats(1e-9, 1e6))
def test_a_multiplier_stands_for_its_factor(factor):
    multiplier, shift = fp.quantize_multiplier(factor)
    assert 1 << 30 <= multiplier < ONE
    assert multiplier * 2.0 ** (shift - 31) == pytest.approx(factor, rel=1e-9)


def test_factors_too_small_are_zero():
    assert fp.quantize_multiplier(0.0) == fp.quantize_multiplier(2.0**-40) == (0, 0)


@given(st.integers(-(1 << 40), 1 << 40), st.integers(0, 31))
def test_halves_go_away_from_zero(value, exponent):
    exact = value / 2.0**exponent
    assert fp.divide_power(value, exponent) == math.copysign(math.floor(abs(exact) + 0.5), exact)


@given(st.integers(-(1 << 28), 1 << 28), st.floats(1e-6, 1.0))
def test_multiplication_is_within_a_step_of_the_real_product(value, factor):
    assert abs(fp.multiply(value, *fp.quantize_multiplier(factor)) - value * factor) <= 1.0 + abs(value) * 1e-9


@given(st.floats(-20, 0))
def test_exponential(x):
    raw = round(x * (1 << 26))
    assert fp.exp_negative(raw, 5) / ONE == pytest.approx(math.exp(raw / (1 << 26)), abs=1e-6)


@given(st.floats(-15, 15))
def test_curves(x):
    raw = round(x * (1 << 27))
    assert fp.logistic(raw, 4) / ONE == pytest.approx(1 / (1 + math.exp(-x)), abs=1e-6)
    assert fp.tanh(raw, 4) / ONE == pytest.approx(math.tanh(x), abs=2e-6)


@given(st.integers(2, 1 << 20))
def test_inverse_root(value):
    multiplier, shift = fp.inverse_root(value)
    assert multiplier * 2.0 ** (shift - 31) == pytest.approx(1 / math.sqrt(value), rel=1e-5)


def test_activations_clamp_where_float32_says():
    assert fp.activation_range("int8", fp.RELU, 0.1, -20) == (-20, 127)
    assert fp.activation_range("int8", fp.RELU6, 0.1, -20) == (-20, 40)
    assert fp.activation_range("int8", fp.RELU_N1_TO_1, 0.1, 5) == (-5, 15)
    # 6 / scale is below one half in float64 and exactly one half in float32, which rounds up.
    scale = 0.04705882444977760
    assert 6 / scale < 127.5 and fp.activation_range("int8", fp.RELU6, scale, -128)[1] == 0

"""The one quantisation convention, specs and layouts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anynpu.errors import ConfigError
from anynpu.tensors import Quantization, TensorSpec, relayout

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
SCALES = st.floats(1e-6, 1e3, allow_nan=False)


@given(st.data(), st.sampled_from(("int8", "uint8", "int16")), SCALES)
def test_stored_values_come_back_exactly(data: st.DataObject, dtype: str, scale: float) -> None:
    limits = np.iinfo(dtype)
    zero = data.draw(st.integers(int(limits.min), int(limits.max)))
    stored = data.draw(hnp.arrays(dtype, hnp.array_shapes(max_dims=3)))
    q = Quantization((scale,), (zero,))
    assert np.array_equal(q.quantize(q.dequantize(stored), dtype), stored)


@given(hnp.arrays(np.float64, 16, elements=st.floats(-100, 100)), st.floats(1e-3, 1.0))
def test_reals_in_range_are_off_by_half_a_step_at_most(real: np.ndarray, scale: float) -> None:
    q = Quantization((scale,), (3,))
    inside = np.clip(real, (-32768 - 3) * scale, (32767 - 3) * scale)
    back = q.dequantize(q.quantize(inside, "int16")).astype(np.float64)
    assert np.abs(back - inside).max() <= scale / 2 + 1e-5 * np.abs(inside).max() + 1e-12


@pytest.mark.parametrize("dtype", (*INTEGERS, "int64", "uint64"))
@pytest.mark.parametrize("huge", (1e30, np.inf))
def test_what_does_not_fit_saturates(dtype: str, huge: float) -> None:
    low, high = Quantization((0.5,), (1,)).quantize(np.array([-huge, huge]), dtype)
    limits = np.iinfo(dtype)
    assert low == limits.min
    assert abs(int(high) - limits.max) <= limits.max // 2**50  # a 64-bit limit is no double, but close to one
    assert high > 0


def test_nan_is_refused() -> None:
    with pytest.raises(ConfigError, match="NaN cannot be quantised"):
        Quantization((1.0,), (0,)).quantize(np.array([1.0, np.nan]), "int8")


def test_each_slice_has_its_own_scale() -> None:
    q = Quantization((1.0, 0.5), (0, 10), axis=1)
    real = np.array([[1.0, 1.0], [2.0, 2.0]])
    stored = q.quantize(real, "int8")
    assert stored.tolist() == [[1, 12], [2, 14]]
    assert np.array_equal(q.dequantize(stored), real)


def test_rounding_is_to_even() -> None:
    assert Quantization((1.0,), (0,)).quantize(np.array([0.5, 1.5, 2.5, -0.5]), "int8").tolist() == [0, 2, 2, 0]


@pytest.mark.parametrize(
    ("scale", "zero_point", "axis", "words"),
    [
        ((), (), None, "at least one"),
        ((1.0,), (0, 0), None, "as many zero points"),
        ((1.0, 2.0), (0, 0), None, "axis"),
        ((0.0,), (0,), None, "above zero"),
        ((float("nan"),), (0,), None, "finite"),
        ((float("inf"),), (0,), None, "finite"),
    ],
)
def test_impossible_quantisations_are_refused(scale: tuple, zero_point: tuple, axis: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Quantization(scale, zero_point, axis)


@given(st.permutations("NCHW"), st.permutations("NCHW"))
def test_relayout_moves_axes_and_back(source: list[str], wanted: list[str]) -> None:
    sizes = {"N": 1, "C": 2, "H": 3, "W": 4}
    array = np.arange(24).reshape([sizes[a] for a in source])
    moved = relayout(array, "".join(source), "".join(wanted))
    assert moved.shape == tuple(sizes[a] for a in wanted)
    assert np.array_equal(relayout(moved, "".join(wanted), "".join(source)), array)


def test_relayout_puts_values_where_the_letters_say() -> None:
    array = np.zeros((1, 2, 3, 4))
    array[0, 1, 2, 3] = 7
    assert relayout(array, "NCHW", "NHWC")[0, 2, 3, 1] == 7


def test_relayout_refuses_other_axes_and_leaves_the_unknown_alone() -> None:
    with pytest.raises(ConfigError, match="NCHW cannot be turned into NCW"):
        relayout(np.zeros((1, 2, 3, 4)), "NCHW", "NCW")
    array = np.zeros((1, 2))
    assert relayout(array, "", "NF") is array


def test_spec_checks_shape_and_type_and_hints_at_the_layout() -> None:
    spec = TensorSpec("x", (1, 3, 8, 9), layout="NCHW")
    spec.check(np.zeros((1, 3, 8, 9), np.float32))
    with pytest.raises(ConfigError, match=r"\[1, 3, 8, 9\], not \[1, 8, 9, 3\]") as caught:
        spec.check(np.zeros((1, 8, 9, 3), np.float32))
    assert "NCHW" in caught.value.hint
    with pytest.raises(ConfigError, match="holds float32, not float64"):
        spec.check(np.zeros((1, 3, 8, 9)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dtype": "float8"}, "no such data type: float8"),
        ({"layout": "NCHW"}, "does not fit"),
        ({"layout": "NN"}, "names an axis twice"),
    ],
)
def test_impossible_specs_are_refused(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TensorSpec("x", (1, 2), **fields)


def test_spec_sizes_and_real_values() -> None:
    spec = TensorSpec("x", (2, 3), "int16", quantization=Quantization((0.5,), (2,)))
    assert (spec.size, spec.nbytes) == (6, 12)
    stored = spec.to_stored(np.full((2, 3), 1.0))
    assert stored.dtype == np.int16 and (stored == 4).all()
    assert (spec.to_real(stored) == 1.0).all()
    tokens = TensorSpec("t", (2,), "int64")
    assert tokens.to_real(np.array([1, 2])).dtype == np.int64

"""Samples for a TFLite file: axes moved, integers in the type that the converter left."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.errors import ConfigError
from anynpu.lowering.integer_file import in_layout
from anynpu.quantize.calibration import Dataset
from anynpu.tensors import TensorSpec


def turned(values: np.ndarray, given: TensorSpec, wanted: TensorSpec) -> np.ndarray:
    return in_layout(Dataset({"x": values}, None, "test"), [given], [wanted]).inputs["x"]


def test_axes_are_moved():
    values = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    given, wanted = TensorSpec("x", (1, 2, 3, 4), layout="NCHW"), TensorSpec("x", (1, 3, 4, 2), layout="NHWC")
    assert np.array_equal(turned(values, given, wanted), values.transpose(0, 2, 3, 1))


def test_tokens_of_64_bits_become_the_32_that_the_file_takes():
    values = np.array([[0, 49407]], np.int64)
    made = turned(values, TensorSpec("x", (1, 2), "int64"), TensorSpec("x", (1, 2), "int32"))
    assert made.dtype == np.int32 and np.array_equal(made, values)


def test_what_32_bits_do_not_hold_is_refused():
    values = np.array([[0, 2**40]], np.int64)
    with pytest.raises(ConfigError, match="became int32"):
        turned(values, TensorSpec("x", (1, 2), "int64"), TensorSpec("x", (1, 2), "int32"))

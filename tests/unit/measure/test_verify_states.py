"""Known answers of outputs that have more than one row to a sample, as the state of a recurrent net does."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.errors import AccuracyError
from anynpu.measure.verify import _require_same
from anynpu.tensors import TensorSpec


class Rows:
    """A session whose state has two rows: the input, and as much more as it was made with."""

    inputs = (TensorSpec("x", (1, 3), "int8"),)

    def __init__(self, more=1):
        self.more = more

    def run(self, inputs):
        return {"y": inputs["x"], "state": np.concatenate([inputs["x"], inputs["x"] + np.int8(self.more)])}


KNOWN = {"input:x": np.arange(12, dtype=np.int8).reshape(4, 3)}
KNOWN["output:y"] = KNOWN["input:x"]
KNOWN["output:state"] = np.concatenate([np.stack([row, row + np.int8(1)]) for row in KNOWN["input:x"]])


def test_a_state_of_two_rows_is_compared_row_by_row():
    _require_same(KNOWN, Rows(), "the teacher")


def test_a_state_that_differs_is_named():
    with pytest.raises(AccuracyError, match=r"sample 0: state\[3\] is 2, the teacher gives 1"):
        _require_same(KNOWN, Rows(more=2), "the teacher")

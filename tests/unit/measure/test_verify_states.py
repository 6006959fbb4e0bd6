"""Known answers of outputs that have more than one row to a sample, as the state of a recurrent net does."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.artifact import Artifact, Manifest
from anynpu.errors import AccuracyError
from anynpu.measure.execution import known_answers, run_all, run_and_keep
from anynpu.measure.samples import SampleSet
from anynpu.measure.verify import ANSWERS, _first_answers, _require_same
from anynpu.tensors import TensorSpec


class Rows:
    """A session whose state has two rows: the input, and as much more as it was made with."""

    inputs = (TensorSpec("x", (1, 3), "int8"),)
    outputs = (TensorSpec("y", (1, 3), "int8"), TensorSpec("state", (2, 3), "int8"))

    def __init__(self, more=1):
        self.more, self.runs = more, 0

    def run(self, inputs):
        self.runs += 1
        return {"y": inputs["x"], "state": np.concatenate([inputs["x"], inputs["x"] + np.int8(self.more)])}


KNOWN = {"input:x": np.arange(12, dtype=np.int8).reshape(4, 3)}
KNOWN["output:y"] = KNOWN["input:x"]
KNOWN["output:state"] = np.concatenate([np.stack([row, row + np.int8(1)]) for row in KNOWN["input:x"]])


def test_a_state_of_two_rows_is_compared_row_by_row():
    _require_same(KNOWN, Rows(), "the teacher")


def test_a_state_that_differs_is_named():
    with pytest.raises(AccuracyError, match=r"sample 0: state\[3\] is 2, the teacher gives 1"):
        _require_same(KNOWN, Rows(more=2), "the teacher")


def test_outputs_and_known_answers_come_from_one_run_of_each_sample(tmp_path):
    session, samples = Rows(), SampleSet({"x": np.arange(24, dtype=np.int8).reshape(8, 3)})
    reference = Artifact(tmp_path, Manifest(format="onnx", main="", inputs=session.inputs, outputs=session.outputs))
    real, known = run_and_keep(session, samples, reference, 6)
    assert session.runs == len(samples)
    wanted = known_answers(session, samples.first(6), reference)
    assert known.keys() == wanted.keys() and all(np.array_equal(known[name], wanted[name]) for name in wanted)
    assert all(np.array_equal(real[name], values) for name, values in run_all(session, samples, reference).items())


def test_the_first_known_answers_have_all_rows_of_a_state():
    joined = {name: np.concatenate([values] * 3) for name, values in KNOWN.items()}
    first = _first_answers(joined)
    assert len(first["input:x"]) == len(first["output:y"]) == ANSWERS
    assert len(first["output:state"]) == 2 * ANSWERS

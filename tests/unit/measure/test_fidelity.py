import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from anynpu.errors import AccuracyError, ConfigError, IntegrityError
from anynpu.measure.decibels import MAX_DB
from anynpu.measure.fidelity import compare_arrays, compare_outputs


def test_known_error_gives_known_figures():
    reference = np.array([[3.0, 4.0], [0.0, 0.0]])
    candidate = reference + np.array([[0.0, 0.5], [0.0, 0.0]])
    result = compare_arrays("y", reference, candidate)
    assert result.sqnr_db == pytest.approx(10 * math.log10(25 / 0.25))
    assert result.sqnr_var_db == pytest.approx(10 * math.log10(np.var(reference) / (0.25 / 4)))
    assert result.max_abs_error == 0.5
    assert result.count == 2
    assert result.cosine == pytest.approx(np.dot([3, 4], [3, 4.5]) / (5 * np.hypot(3, 4.5)))


def test_offset_flatters_sqnr_but_not_sqnr_against_variance():
    reference = 100 + np.random.default_rng(0).normal(size=(50, 4))
    result = compare_arrays("y", reference, np.full_like(reference, 100.0))
    assert result.sqnr_db > 35
    assert result.sqnr_var_db < 1


def test_exact_match_is_json_safe():
    values = np.arange(6.0).reshape(2, 3)
    result = compare_outputs({"y": values}, {"y": values})["y"]
    assert result.sqnr_db == MAX_DB and result.cosine == 1.0 and result.argmax_agreement == 1.0
    assert json.loads(json.dumps(asdict(result), allow_nan=False))["sqnr_db"] == MAX_DB


def test_zero_reference_is_json_safe():
    result = compare_arrays("y", np.zeros((2, 3)), np.ones((2, 3)))
    assert result.sqnr_db == -MAX_DB and result.cosine == 0.0
    json.dumps(asdict(result), allow_nan=False)


def test_argmax_runs_along_the_stated_axis():
    reference = np.zeros((1, 2, 3))
    reference[0, 1, :] = 1.0
    candidate = reference.copy()
    candidate[0, 0, 0] = 2.0
    assert compare_arrays("y", reference, candidate, axis=1).argmax_agreement == pytest.approx(2 / 3)
    reference[0, 1, 2] = candidate[0, 1, 2] = 3.0
    assert compare_arrays("y", reference, candidate, axis=2).argmax_agreement == 1.0
    assert compare_arrays("y", np.zeros((4, 1)), np.zeros((4, 1))).argmax_agreement is None


def test_ties_agree_with_nothing():
    reference = np.array([[3.0, 1.0, 2.0], [1.0, 3.0, 2.0], [5.0, 5.0, 1.0]])
    candidate = np.array([[2.0, 2.0, 2.0], [1.0, 3.0, 2.0], [5.0, 5.0, 1.0]])
    # Of the three rows the first has a tie in the candidate, the last one in the reference itself.
    assert compare_arrays("y", reference, candidate).argmax_agreement == 0.5
    assert compare_arrays("y", np.ones((4, 3)), np.ones((4, 3))).argmax_agreement is None


def test_garbage_is_named():
    with pytest.raises(AccuracyError, match="1 of 2 values"):
        compare_arrays("y", np.zeros(2), np.array([0.0, np.nan]))
    with pytest.raises(IntegrityError):
        compare_arrays("y", np.array([np.inf]), np.array([0.0]))
    with pytest.raises(ConfigError, match="shape"):
        compare_arrays("y", np.zeros((2, 2)), np.zeros((2, 3)))
    with pytest.raises(ConfigError, match="differ in name"):
        compare_outputs({"a": np.zeros(1)}, {"b": np.zeros(1)})

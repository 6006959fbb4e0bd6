"""--strict-calibration: too few samples end a build with status 7, and the record says why."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("net")
    weights = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [1, 6])],
        [value("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")
    return folder


def built(cli, small, rows, *flags):
    np.save(small / "x.npy", rows.astype(np.float32))
    arguments = ["build", "-m", str(small / "net.onnx"), "-t", "cpu", "--data", str(small / "x.npy")]
    out = small / "out"
    done = cli(*arguments, "-o", str(out), "--overwrite", "--min-sqnr", "0", *flags)
    return done, json.loads((out / "report.json").read_text("utf-8"))["chips"][0]


def test_enough_samples_pass_and_say_so(cli, small):
    done, chip = built(cli, small, np.random.default_rng(1).uniform(-1, 1, (60, 6)), "--strict-calibration")
    assert done.returncode == 0, done.stdout
    assert "calibration: 48 samples are enough: twice as many would widen no range" in done.stdout
    low, high = chip["verification"]["expected_sqnr_db"]
    assert low < chip["verification"]["sqnr_db"] < high
    assert chip["calibration"]["adequate"]
    assert chip["calibration"]["verified"] == 12


def test_identical_samples_end_with_status_7(cli, small):
    rows = np.tile(np.random.default_rng(1).normal(size=(2, 6)), (20, 1))
    done, chip = built(cli, small, rows, "--strict-calibration")
    assert done.returncode == 7, done.stdout
    assert "1 distinct sample of 20: ranges need at least 8" in done.stdout
    assert "give more samples" in done.stdout
    assert not chip["calibration"]["adequate"]
    assert "calibration: NOT enough samples: 1 distinct sample of 20" in done.stdout


def test_foreign_verification_samples_are_named(cli, small):
    np.save(small / "t.npy", np.random.default_rng(3).uniform(-9, 9, (10, 6)).astype(np.float32))
    rows = np.random.default_rng(1).uniform(-1, 1, (60, 6))
    done, chip = built(cli, small, rows, "--test", str(small / "t.npy"), "--strict-calibration")
    assert done.returncode == 7, done.stdout
    assert "verification samples lie outside of the calibrated ranges (farthest: sample" in done.stdout
    assert {each["tensor"] for each in chip["calibration"]["outside"]} <= {"x", "h", "y"}

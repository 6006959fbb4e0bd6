"""`anynpu build` for a CV180x with a TPU-MLIR of our own: the proof, the exit status, and a clean store."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from fake_tpu_mlir import write_tool

from anynpu.errors import AccuracyError, ToolFailed
from anynpu.testing import models


@pytest.fixture
def build(cli, tmp_path):
    """Gives a function that builds the small net with a fake TPU-MLIR and returns the process and the chip's record."""

    def run(**deploy):
        onnx.save(models.conv_net(), tmp_path / "net.onnx")
        np.save(tmp_path / "data.npy", np.random.default_rng(1).uniform(-1, 1, (60, 3, 8, 8)).astype(np.float32))
        tool = write_tool(tmp_path / "tpu-mlir", deploy=deploy)
        environment = {"TPU_MLIR_PATH": str(tool), "ANYNPU_CACHE_DIR": str(tmp_path / "cache")}
        command = ("build", "-m", "net.onnx", "-t", "cv1800b", "--data", "data.npy", "-o", "out", "-f", "json")
        done = cli(*command, **environment)
        assert done.stdout, done.stderr
        (chip,) = json.loads(done.stdout)["chips"]
        return done, chip

    return run


def cvi_artifacts(tmp_path):
    found = tmp_path.glob("cache/**/manifest.json")
    return [path for path in found if json.loads(path.read_text())["format"] == "tpu-model"]


def test_a_build_is_executed_and_proven(build, tmp_path):
    done, chip = build()
    assert done.returncode == 0, done.stdout + done.stderr
    assert chip["chip"] == "cv180x"
    assert chip["verification"]["device"] == "cvi"
    assert "simulator" in chip["verification"]["executed"]
    assert chip["verification"]["outputs"]["scores"]["sqnr_db"] > 20
    with np.load(tmp_path / "out" / "evidence" / "cv180x" / "vectors.npz") as vectors:
        assert vectors["input:image"].dtype == vectors["output:scores"].dtype == np.int8


def test_successful_garbage_is_an_accuracy_error(build):
    done, chip = build(garbage=True)
    assert done.returncode == AccuracyError.exit_status
    assert "SQNR" in chip["error"]["message"]


def test_a_failure_leaves_its_log_and_nothing_else(build, tmp_path):
    done, chip = build(truncated=True)
    assert done.returncode == ToolFailed.exit_status
    assert "cut short" in chip["error"]["message"]
    assert str(tmp_path / "cache" / "logs") in json.dumps(chip["error"])
    assert cvi_artifacts(tmp_path) == []
    assert [path for path in tmp_path.glob("cache/scratch/*") if path.is_dir()] == []

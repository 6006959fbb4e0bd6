"""From a model to firmware for the MCX N947 in two commands, with a stand-in for NXP's converter."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="pip install 'anynpu[build]'")
pytest.importorskip("ai_edge_litert", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")
import onnx
from neutron_stand_in import write_tool
from project_tools import need, sh

from anynpu.artifact import Artifact
from anynpu.testing import models

STUBS = Path(__file__).parents[2] / "firmware" / "project" / "stubs"


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """The output folder of one build for two chips."""
    folder = tmp_path_factory.mktemp("build")
    onnx.save(models.conv_net(), folder / "net.onnx")
    shape = models.onnx_artifact(models.conv_net(), folder / "spec").manifest.inputs[0].shape
    np.save(folder / "data.npy", np.random.default_rng(1).normal(0, 1, (40, *shape[1:])).astype(np.float32))
    command = ("build", "-m", "net.onnx", "-t", "mcxn947,imxrt700", "--data", "data.npy", "-o", "out", "-f", "json")
    environment = {**os.environ, "EIQ_NEUTRON_PATH": str(write_tool(folder / "sdk"))}
    done = sh(sys.executable, "-m", "anynpu", *command, cwd=folder, timeout=500, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "report.json").write_text(done.stdout)
    return folder / "out"


def test_the_build_is_proven_by_the_model_before_the_converter(out):
    chips = json.loads((out.parent / "report.json").read_text())["chips"]
    assert [chip["chip"] for chip in chips] == ["mcxn947", "imxrt700"]
    assert {chip["verification"]["stands_for"] for chip in chips} == {"tflite-neutron"}
    assert {chip["verification"]["device"] for chip in chips} == {"tflm"}
    made = Artifact.open(out / "mcxn947")
    assert made.manifest.format == "tflite-neutron" and made.manifest.placement.share == 1.0
    assert made.manifest.step.tools["neutron-converter"].startswith("3.1.1+0X5a5a5a5a (")


def test_the_build_becomes_firmware_that_compiles(out, cli, tmp_path):
    done = cli("firmware", str(out / "mcxn947"), "-b", "mcxn947", "-o", "fw", "-f", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["engine"] == "neutron" and report["vectors"] == 5
    assert any("neutron-converter 3.1.1+0X5a5a5a5a: others hang" in note for note in report["notes"])
    source = (tmp_path / "fw" / "model" / "anynpu_model.cc").read_text()
    assert "MicroMutableOpResolver<1>" in source and "Register_NEUTRON_GRAPH" in source
    assert "(3.1.1+0X5a5a5a5a)" in (tmp_path / "fw" / "README.md").read_text()
    need("make", "arm-none-eabi-gcc", "arm-none-eabi-g++")
    includes = f"MCUX_INCLUDES={STUBS}/mcux {STUBS}/tflm"
    done = sh("make", "objects", "CFLAGS=-Werror", "CXXFLAGS=-Werror", includes, cwd=tmp_path / "fw")
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr


def test_another_chips_model_is_no_firmware_for_this_board(out, cli):
    done = cli("firmware", str(out / "imxrt700"), "-b", "mcxn947", "-o", "fw")
    assert done.returncode == 3 and "has an mcxn94x, and " in done.stderr and "compiled for imxrt700" in done.stderr

"""µNPU-Bench's command line runs: formats in one command, backups, failures that stop nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from anynpu.cli.main import main
from anynpu.pipeline.unpu_flags import FORMATS

torch = pytest.importorskip("torch")
pytest.importorskip("ai_edge_litert")
pytest.importorskip("ethosu.vela")

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4))
        self.head = nn.Linear(16 * width, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))
"""
MODEL = [
    *("--model", "net.py", "--model_module_name", "Net", "--model_module_args", "width=4"),
    *("--model_ckpt", "net.pth.tar", "--model_name", "mynet", "--data_sample", "samples.npy"),
    *("--input_names", "input", "--input_shape", "1", "3", "16", "16", "--input_layout", "NCHW"),
    *("--output_names", "output", "--output_shape", "10", "--bit_width", "8"),
]
THREE = ["--target_format", "onnx", "tflm", "vela", "--target_hardware", "hxwe2,", "cortex-m4"]


class Done(NamedTuple):
    """What a command line came to."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(capsys, monkeypatch) -> Callable[..., Done]:
    """Calls the command line in this process: most of what these tests wait for is a new one's imports."""

    def run(folder: Path, *words: str) -> Done:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path])
        capsys.readouterr()
        status = main(["unpu-bench", *words])
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a model in a Python file, its checkpoint as training leaves it, and samples."""
    folder = tmp_path_factory.mktemp("unpu")
    (folder / "net.py").write_text(NET)
    space: dict[str, object] = {"__name__": "net"}
    exec(compile(NET, "net.py", "exec"), space)
    torch.manual_seed(1)
    net = space["Net"](width=4)  # type: ignore[operator]
    torch.save({"epoch": 3, "arch": "net", "state_dict": net.state_dict()}, folder / "net.pth.tar")
    rng = np.random.default_rng(1)
    np.save(folder / "samples.npy", rng.normal(size=(40, 3, 16, 16)).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def built(place) -> subprocess.CompletedProcess[str]:
    words = [*THREE, *MODEL, "--use_onnxsim", "False", "--fifo", "--debug", "False", "--out_dir", "out"]
    return subprocess.run(
        [sys.executable, "-m", "anynpu", "unpu-bench", *words], cwd=place, capture_output=True, text=True, timeout=600
    )


def test_three_formats_in_one_command(place, built):
    assert built.returncode == 0, built.stderr
    lines = [line.split() for line in built.stdout.splitlines()]
    assert ["onnx", "all", "-", "ok"] in [line[:4] for line in lines]
    assert ["tflm", "cortex-m4", "onnx", "ok"] in [line[:4] for line in lines]
    assert ["vela", "hxwe2", "onnx,", "tflm", "ok"] in [line[:5] for line in lines]
    record = json.loads((place / "out/unpu-bench.json").read_text())
    assert [(r["format"], r["hardware"], r["needs"]) for r in record["formats"]] == [
        ("onnx", "all", []),
        ("tflm", "all", ["onnx"]),
        ("tflm", "cortex-m4", ["onnx"]),
        ("vela", "hxwe2", ["onnx", "tflm"]),
    ]
    assert json.loads((place / "out/report.json").read_text())["request"]["options"]["mcu_c.name"] == "mynet"


def test_the_vela_file_is_the_compiled_one(place, built):
    vela, plain = ((place / f"out/models/mynet_{name}.tflite").read_bytes() for name in ("vela_hxwe2", "tflm"))
    assert b"ethos-u" in vela and b"ethos-u" not in plain
    firmware = (place / "out/firmware/hxwe2/model/anynpu_npu_data.c").read_text()
    arrays = re.findall(r"= \{\n(.*?)\};", firmware, re.DOTALL)
    assert len(arrays) == 2, "the command stream, and the weights"
    assert all(bytes(map(int, re.findall(r"\d+", array))) in vela for array in arrays)


def test_source_trees_are_written_for_the_boards(place, built):
    for hardware in ("hxwe2", "cortex-m4"):
        tree = place / "out/firmware" / hardware
        assert (tree / "Makefile").is_file() and (tree / "app/main.c").is_file()
        assert json.loads((tree / "report.json").read_text())["vectors"] > 0


def test_nothing_is_ignored_in_silence(built):
    said = [line for line in built.stderr.splitlines() if line.startswith("anynpu: ")]
    assert any(line.startswith("anynpu: --use_onnxsim: ") for line in said)
    assert any(line.startswith("anynpu: --bit_width 8: onnx stays") for line in said)
    if FORMATS["ai8x"].registered:
        assert "anynpu: --fifo is of ai8x, which is not among --target_format: not used" in said
    assert "--- " not in built.stderr  # --debug False is false


def test_an_earlier_output_is_kept_unless_overwritten(place, built, call):
    mark = place / "out/mark"
    mark.write_text("earlier")
    again = call(place, "--target_format", "onnx", *MODEL, "--out_dir", "out", "--debug")
    kept = list(place.glob("out.backup-*"))
    assert again.returncode == 0 and len(kept) == 1
    assert (kept[0] / "mark").read_text() == "earlier" and not mark.exists()
    assert f"kept as {kept[0].name}" in again.stderr
    assert "--- cpu: " in again.stderr  # --debug shows what the steps said
    over = call(place, "--target_format", "onnx", *MODEL, "--out_dir", "out", "--overwrite")
    assert over.returncode == 0 and list(place.glob("out.backup-*")) == kept
    (place / "mine").mkdir()
    (place / "mine/letter").write_text("mine")
    refused = call(place, "--target_format", "onnx", *MODEL, "--out_dir", "mine", "--overwrite")
    assert refused.returncode == 2 and (place / "mine/letter").exists() and "--out_dir" in refused.stderr


def test_a_format_that_fails_does_not_stop_the_others(place, built, call):
    run = call(place, *THREE, *MODEL, "--memory_mode", "No_Such", "--out_dir", "failed", "-f", "json")
    record = json.loads(run.stdout)
    assert {(r["format"], r["status"]) for r in record["formats"]} == {
        ("onnx", "ok"),
        ("tflm", "ok"),
        ("vela", "ConfigError"),
    }
    assert run.returncode == record["exit_status"] == 2
    assert "No_Such" in record["formats"][-1]["error"]["message"]
    assert (place / "failed/models/mynet_tflm.tflite").is_file()
    assert not (place / "failed/models/mynet_vela_hxwe2.tflite").exists()


def test_a_missing_toolchain_and_a_bit_width_are_failures_of_their_format_alone(place, built, call, monkeypatch):
    monkeypatch.delenv("EIQ_NEUTRON_PATH", raising=False)
    words = ["--target_format", "onnx", "eiq", "--target_hardware", "mcxn947"]
    run = call(place, *words, *MODEL, "--out_dir", "eiq")
    assert run.returncode == 4, run.stdout + run.stderr
    assert "EIQ_NEUTRON_PATH" in run.stdout and "onnx    all" in run.stdout
    wide = call(
        place, "--target_format", "onnx", "vela", "--target_hardware", "hxwe2", *MODEL[:-1], "32", "--out_dir", "w"
    )
    assert wide.returncode == 3 and "vela hxwe2: vela cannot be built with 32 bits" in wide.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output_shape", "11"], "--output_shape 11: no output of the model has it"),
        (["--input_layout", "NHWC"], "input=NHWC: the model's own operators say NCHW"),
        (["--input_layout", "NHWC"], "here --layout is --input_layout"),
        (["--data_sample", "none.npy"], "none.npy: no such file"),
        (["--model_ckpt", "none.pth"], "none.pth: no such checkpoint"),
        (["--model_name", "../escape"], "--model_name ../escape"),
        (["--arena_cache_size", "many"], "whole number"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(place, built, call, words, message):
    flag, wrong = words
    if flag in MODEL:
        words = [wrong if before == flag else word for before, word in zip(["", *MODEL], MODEL, strict=False)]
    else:
        words = [*MODEL, flag, wrong]
    run = call(place, "--target_format", "onnx", "vela", "--target_hardware", "hxwe2", *words, "--out_dir", "no")
    assert run.returncode == 2, run.stdout
    assert message in run.stderr.replace("\n", " ")
    assert not (place / "no").exists()


def test_a_shape_with_as_many_values_is_said_and_kept(place, built, call):
    words = [word if word != "10" else "2,5" for word in MODEL]
    run = call(place, "--target_format", "onnx", *words, "--out_dir", "shape")
    assert run.returncode == 0
    assert "anynpu: --output_shape 2 5: the model's own shape is kept: output: 1 10" in run.stderr


def test_pickled_objects_are_refused_unless_trusted(place, built, call):
    state = torch.load(place / "net.pth.tar", weights_only=True)
    torch.save({**state, "optimizer": Path("object")}, place / "pickled.pth.tar")
    words = [word if word != "net.pth.tar" else "pickled.pth.tar" for word in MODEL]
    refused = call(place, "--target_format", "onnx", *words, "--out_dir", "trust")
    assert refused.returncode == 2 and "--trust_checkpoint" in refused.stderr
    trusted = call(place, "--target_format", "onnx", *words, "--trust_checkpoint", "--out_dir", "trust")
    assert trusted.returncode == 0, trusted.stderr

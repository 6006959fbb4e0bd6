"""The example command of µNPU-Bench, as it is written there, with a model of our zoo in place of theirs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from anynpu.capsules import capsule
from anynpu.cli.main import main
from anynpu.errors import AnyNpuError
from anynpu.pipeline.unpu_flags import FORMATS
from anynpu.source import zoo

torch = pytest.importorskip("torch")
if not FORMATS["ai8x"].registered:
    pytest.skip("no compiler ai8x is registered", allow_module_level=True)

# Its words and their order; the shapes are those of the model.
EXAMPLE = shlex.split("""
    --model model/yolo/yolov1_96.py
    --model_ckpt model/yolo/yolov1.pth.tar
    --model_name ai85yolo96
    --model_module_name Yolov1_net
    --target_format ai8x
    --target_hardware max78000
    --data_sample model/yolo/sample_data_nchw.npy
    --input_shape 1 3 32 32
    --output_shape 256 32 32
    --input_names input
    --output_names output
    --bit_width 8
    --avg_pool_rounding
    --q_scale 0.85
    --fifo
    --config_file model/yolo/ai85-yolo-96-hwc.yaml
    --out_dir model/yolo/out
    --overwrite
""")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with their files, which hold the zoo's four-convolution network."""
    folder = tmp_path / "model/yolo"
    folder.mkdir(parents=True)
    source = Path(zoo.__file__).parent / "hello"
    text = (source / "net.py").read_text("utf-8").replace("SmallModel", "Yolov1_net")
    (folder / "yolov1_96.py").write_text(text)
    with np.load(source / "weights.npz") as weights:
        state = {name: torch.from_numpy(np.array(weights[name])) for name in weights.files}
    torch.save({"epoch": 1, "arch": "ai85yolo96", "state_dict": state}, folder / "yolov1.pth.tar")
    samples = zoo.samples("hello", "calibration", 32).inputs["input"]
    np.save(folder / "sample_data_nchw.npy", samples)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return folder


def without(flag: str) -> list[str]:
    """Returns the example without a flag and its value."""
    at = EXAMPLE.index(flag)
    return EXAMPLE[:at] + EXAMPLE[at + 2 :]


def test_without_the_toolchain_it_says_what_to_install(place, monkeypatch, capsys, tmp_path):
    for name in ("AI8X_SYNTHESIS_PATH", "AI8X_PYTHON_PATH"):
        monkeypatch.delenv(name, raising=False)
    status = main(["unpu-bench", *without("--config_file"), "--cache-dir", str(tmp_path / "cache")])
    out, _ = capsys.readouterr()
    assert status == 4, out
    assert "ai8x max78000: " in out and "ToolMissing" in out
    record = json.loads((place / "out/unpu-bench.json").read_text())
    assert "ai8x" in record["formats"][0]["error"]["hint"]
    options = json.loads((place / "out/report.json").read_text())["request"]["options"]
    assert options == {
        "ai8x.bit_width": "8",
        "ai8x.avg_pool_rounding": "true",
        "ai8x.q_scale": "0.85",
        "ai8x.fifo": "true",
    }


def _ready() -> bool:
    try:
        capsule.find("ai8x")
    except AnyNpuError:
        return False
    return bool(os.environ.get("AI8X_SYNTHESIS_PATH"))


@pytest.mark.skipif(not _ready(), reason="anynpu tool install ai8x, and AI8X_SYNTHESIS_PATH with its checkout")
def test_it_runs_as_written(place, capsys):
    first = main(["unpu-bench", *without("--config_file")])
    assert first == 0, capsys.readouterr()
    project = place / "out/max78000/project"
    shutil.copyfile(project / "network.yaml", place / "ai85-yolo-96-hwc.yaml")
    capsys.readouterr()
    status = main(["unpu-bench", *EXAMPLE])
    out, err = capsys.readouterr()
    assert status == 0, out + err
    row = json.loads((place / "out/unpu-bench.json").read_text())["formats"][0]
    assert (row["format"], row["hardware"], row["status"]) == ("ai8x", "max78000", "ok")
    assert row["source_tree"] == "max78000/project" and (project / "cnn.c").is_file()
    proof = json.loads((place / "out/report.json").read_text())["chips"][0]["verification"]
    assert proof["sqnr_db"] > 25

"""YOLOv8n itself on an Ethos-U: compiled by Vela, executed by the twin, and what it then finds.

`scripts/models.sh` fetches what this needs into .models/; without it the test is skipped.
"""

from __future__ import annotations

import json

import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")

from small_yolo import resized
from test_yolo_int8 import calibration, fetched

pytestmark = [pytest.mark.models, pytest.mark.timeout(1800)]
CHIPS = ("ethos-u55-256", "ethos-u85-256")


def test_at_its_own_size_the_resized_model_is_the_model(tmp_path):
    onnx = pytest.importorskip("onnx")
    ours, theirs = (
        onnx.load(resized(fetched("yolov8n.onnx"), 640, tmp_path / "640.onnx")),
        onnx.load(fetched("yolov8n.onnx")),
    )
    del theirs.graph.value_info[:]
    assert ours == theirs


def test_yolov8n_runs_on_the_npu_bit_for_bit_and_finds_the_bus(cli, tmp_path):
    model = resized(fetched("yolov8n.onnx"), 160, tmp_path / "yolov8n-160.onnx")
    data = calibration(tmp_path / "calibration", fetched("zidane.jpg"))
    built = cli(
        "build", "-m", str(model), "--task", "yolov8", "-t", ",".join(CHIPS), "-O", "method=percentile",
        "--data", str(data), "-o", "out", "--require-npu", "100%", timeout=1700,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    for chip in json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))["chips"]:
        assert chip["verification"]["device"] == "ethos_u", chip["chip"]
        assert any(note.startswith("bit-exact with TFLite-Micro") for note in chip["verification"]["notes"])
    found = {}
    for chip in CHIPS:
        detected = cli("detect", f"out/{chip}", str(fetched("bus.jpg")), "-f", "json")
        assert detected.returncode == 0, detected.stderr
        (picture,) = json.loads(detected.stdout)["images"]
        found[chip] = [(d["name"], d["box"]) for d in picture["detections"]]
    assert found[CHIPS[0]] == found[CHIPS[1]]
    assert [name for name, _ in found[CHIPS[0]]].count("person") >= 3
    ((left, top, right, bottom),) = (box for name, box in found[CHIPS[0]] if name == "bus")
    assert left < 60 and right > 750 and 180 < top < 280 and 700 < bottom < 820

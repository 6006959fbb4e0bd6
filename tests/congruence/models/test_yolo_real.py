"""YOLOv8n on real photos: the detections that are known, and those of ultralytics on the same outputs.

`scripts/models.sh` fetches what these tests need into .models/; without it they are skipped.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from anynpu.tasks import card
from anynpu.tasks.detect import Detector, Threshold
from anynpu.tasks.images import read_image
from anynpu.tasks.model import Model
from anynpu.tensors import TensorSpec

pytestmark = pytest.mark.models
MODELS = Path(os.environ.get("ANYNPU_MODELS_DIR", Path(__file__).parents[3] / ".models"))
# Measured with another implementation; left, top, right, bottom.
BUS = [
    ("person", 0.896, (671, 385, 810, 880)),
    ("person", 0.883, (222, 407, 344, 856)),
    ("person", 0.873, (50, 398, 244, 905)),
    ("bus", 0.836, (31, 231, 801, 778)),
    ("person", 0.430, (0, 549, 59, 868)),
]


def fetched(name):
    path = MODELS / name
    if not path.is_file():
        pytest.skip(f"{name} is not fetched: run scripts/models.sh")
    return path


@pytest.fixture(scope="module")
def detector():
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(fetched("yolov8n.onnx")), providers=["CPUExecutionProvider"])
    image = TensorSpec("images", (1, 3, 640, 640), layout="NCHW", channels="RGB")
    output = TensorSpec("output0", (1, 84, 8400))
    model = Model(
        card.choose("yolov8").card,
        {},
        (image,),
        (output,),
        lambda given: {"output0": session.run(["output0"], dict(given))[0]},
    )
    return Detector(model)


def matched(found, detector, wanted, pixels, score):
    assert len(found) == len(wanted)
    for box, value, kind, (name, expected, corners) in zip(
        found.boxes, found.scores, found.classes, wanted, strict=True
    ):
        assert detector.name(int(kind)) == name
        assert abs(value - expected) <= score and np.abs(box - corners).max() <= pixels


def test_bus_is_found_as_known(detector):
    found, _ = detector.detect(read_image(fetched("bus.jpg")).pixels)
    matched(found, detector, BUS, 2, 0.01)


@pytest.mark.parametrize("photo", ["bus.jpg", "zidane.jpg"])
def test_post_processing_equals_ultralytics_on_the_same_output(detector, photo, monkeypatch):
    """Needs ultralytics in the environment, which nothing of ours does; run beside ours for comparison only."""
    torch = pytest.importorskip("torch")
    ops = pytest.importorskip("ultralytics.utils.ops", exc_type=ImportError)
    pixels = read_image(fetched(photo)).pixels
    inputs, place = detector.prepare(pixels)
    outputs = detector.model.run(inputs)
    for confidence in (0.25, 0.05, 0.001):
        found = Detector(detector.model, Threshold(confidence)).read(outputs, place)
        theirs = ops.non_max_suppression(torch.from_numpy(outputs["output0"]), confidence, 0.7, max_det=300)[0]
        boxes = ops.scale_boxes((640, 640), theirs[:, :4].clone(), pixels.shape).numpy()
        # They keep boxes of no area, all of which lies in the border.
        real = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        assert np.abs(found.boxes - boxes[real]).max() < 0.01
        assert np.abs(found.scores - theirs[:, 4].numpy()[real]).max() < 1e-6
        assert np.array_equal(found.classes, theirs[:, 5].numpy()[real])


def test_the_built_model_finds_the_same_from_its_maps(cli, tmp_path, capsys, monkeypatch):
    """The decode is cut off and done on the host: nothing may change."""
    pytest.importorskip("onnxruntime")
    model, photo = fetched("yolov8n.onnx"), fetched("bus.jpg")
    built = cli(
        *(
            "build",
            "-m",
            str(model),
            "-t",
            "cpu",
            "--task",
            "yolov8",
            "--data",
            "random:2",
            "-o",
            str(tmp_path / "out"),
        ),
        timeout=600,
    )
    assert built.returncode in (0, 7), built.stderr  # random calibration may fail the accuracy gate
    command = import_module("anynpu.cli.main")
    monkeypatch.setitem(command.VERBS, "detect", ("detect", "Find objects."))
    assert command.main(["detect", str(tmp_path / "out/float"), str(photo), "-f", "json"]) == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    assert len(image["detections"]) == len(BUS)
    for got, (name, score, box) in zip(image["detections"], BUS, strict=True):
        assert got["name"] == name and abs(got["score"] - score) <= 0.01
        assert np.abs(np.array(got["box"]) - box).max() <= 2

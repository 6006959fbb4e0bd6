"""YOLOv8n at eight bits, decoded on the host, finds what the float model finds; decoded in the model it finds nothing.

`scripts/models.sh` fetches what these tests need into .models/; without it they are skipped. Each photo is the test
picture of a build that is calibrated on crops of the other one and on generated textures.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from anynpu.artifact import Artifact
from anynpu.errors import AccuracyError
from anynpu.measure.verify import Gate
from anynpu.runtime.base import choose, run_real
from anynpu.tasks import card
from anynpu.tasks.detect import Detector
from anynpu.tasks.images import read_image
from anynpu.tasks.model import Model
from anynpu.tensors import by_name

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.models, pytest.mark.timeout(1800)]
MODELS = Path(os.environ.get("ANYNPU_MODELS_DIR", Path(__file__).parents[3] / ".models"))
PHOTOS = {"bus.jpg": "zidane.jpg", "zidane.jpg": "bus.jpg"}
LEAST_SCORE, LEAST_IOU, LEAST_KEPT = 0.4, 0.8, 0.25


def fetched(name):
    path = MODELS / name
    if not path.is_file():
        pytest.skip(f"{name} is not fetched: run scripts/models.sh")
    return path


def calibration(folder, photo, count=10):
    """Writes crops, mirrored and lightened, of a photo, and pictures of coloured blocks on noise."""
    folder.mkdir()
    random = np.random.default_rng(0)
    pixels = np.asarray(Image.open(photo).convert("RGB"))
    for number in range(count):
        height, width = (int(side * random.uniform(0.4, 1.0)) for side in pixels.shape[:2])
        y, x = random.integers(0, pixels.shape[0] - height + 1), random.integers(0, pixels.shape[1] - width + 1)
        crop = pixels[y : y + height, x : x + width, :][:, :: random.choice([1, -1])]
        light = np.clip(crop * random.uniform(0.7, 1.3), 0, 255).astype(np.uint8)
        Image.fromarray(light).save(folder / f"crop{number}.png")
    for number in range(2):
        noise = random.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((640, 640)).save(folder / f"noise{number}.png")
    return folder


def detector(artifact, reference):
    """Returns the task on an artifact, given and giving what the float model does."""
    like = by_name((*reference.manifest.inputs, *reference.manifest.outputs))
    session = choose(artifact.manifest.format)(artifact)
    chosen = card.of(artifact).card
    return Detector(
        Model(chosen, {}, reference.manifest.inputs, reference.manifest.outputs, lambda x: run_real(session, x, like))
    )


def overlap(one, other):
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    shared = np.prod(np.clip(high - low, 0, None))
    return shared / (np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - shared)


def lost(reference, found):
    """Returns the sure detections of the reference that the other one does not have."""
    return [
        (int(kind), float(score))
        for box, score, kind in zip(reference.boxes, reference.scores, reference.classes, strict=True)
        if score > LEAST_SCORE
        and not any(
            kind == k and s >= LEAST_KEPT and overlap(box, b) >= LEAST_IOU
            for b, s, k in zip(found.boxes, found.scores, found.classes, strict=True)
        )
    ]


@pytest.mark.parametrize("chip", ["cpu", "tflite"])
@pytest.mark.parametrize("photo", PHOTOS)
def test_sure_detections_are_kept(cli, tmp_path, photo, chip):
    if chip == "tflite":
        pytest.importorskip("ai_edge_litert")
    model, data = fetched("yolov8n.onnx"), calibration(tmp_path / "calibration", fetched(PHOTOS[photo]))
    said = cli(
        "build", "-m", str(model), "--task", "yolov8", "-t", chip, "-O", "method=percentile", "--data", str(data),
        "-o", "out", timeout=1700,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    reference = Artifact.open(tmp_path / "out" / "float")
    pixels = read_image(fetched(photo)).pixels
    exact, _ = detector(reference, reference).detect(pixels)
    found, _ = detector(Artifact.open(tmp_path / "out" / chip), reference).detect(pixels)
    assert (exact.scores > LEAST_SCORE).sum() == {"bus.jpg": 5, "zidane.jpg": 2}[photo]
    assert lost(exact, found) == []


def test_a_decode_at_eight_bits_does_not_pass_for_a_detector(cli, tmp_path):
    model, data = fetched("yolov8n.onnx"), calibration(tmp_path / "calibration", fetched("zidane.jpg"))
    naive = tmp_path / "naive.toml"
    naive.write_text(
        'kind = "detect"\n[preprocess]\nresize = "letterbox"\n[yolo]\ndecode = "model"\n', encoding="utf-8"
    )
    said = cli(
        "build", "-m", str(model), "--task", str(naive), "-t", "cpu", "--data", str(data), "-o", "out", "-f", "json",
        "--no-repair", timeout=1700,
    )  # fmt: skip
    assert said.returncode == AccuracyError.exit_status
    error = json.loads(said.stdout)["chips"][0]["error"]
    assert "SQNR" in error["message"] and f"{Gate().min_sqnr_db:g} dB" in error["message"]


def test_without_a_card_boxes_and_scores_are_outputs_of_their_own(cli, tmp_path):
    calibration(tmp_path / "calibration", fetched("zidane.jpg"))
    ways = ("-P", "size=640x640", "-P", "resize=letterbox", "-P", "channels=RGB")
    said = cli(
        "build", "-m", str(fetched("yolov8n.onnx")), "-t", "cpu", "--data", "calibration", *ways, "-o", "out", "-f",
        "json", timeout=1700,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout
    outputs = json.loads(said.stdout)["chips"][0]["verification"]["outputs"]
    assert set(outputs) == {"output0_0", "output0_1"}
    assert min(each["sqnr_db"] for each in outputs.values()) > 10

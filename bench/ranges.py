"""Compares ways to choose the ranges and biases of YOLOv8n in 8 bits, against labels and paired over pictures.

    python bench/ranges.py --calibration FOLDER --pictures FOLDER --labels labels.json [-t cpu,tflite] [--work FOLDER]

Each way is a file that our emitters write from the same float model and samples; the first one is the default. Every
file is executed on the pictures of a folder, and its mAP50-95 against the labels (bench/labels.py, or the annotations
of COCO through it) is divided by the float model's: as the mean of classes, and with all classes in one list. A
difference to the default has an interval of 95 % over pictures drawn anew, the same draws for both. Files and
detections are kept in the work folder, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
from quality import DRAWS, LOWEST, PARTS, Judge, found_again, labelled

import anynpu
from anynpu.artifact import Artifact
from anynpu.lowering import integer_file
from anynpu.quantize import measured, most_samples, qdq
from anynpu.quantize.calibration import Dataset, split_holdout
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range, collect
from anynpu.runtime.litert import PLAIN, open_interpreter
from anynpu.tasks import card
from anynpu.tasks.detect import Detections, Detector
from anynpu.tasks.images import find_images, read_image
from anynpu.tasks.model import Model

MODELS = Path(os.environ.get("ANYNPU_MODELS_DIR", Path(__file__).parents[1] / ".models"))
NEVER = 10**9
Run = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Way:
    """How ranges and biases are chosen: what `auto` does with other constants."""

    most: float = most_samples.MOST
    fewest: int = measured.FEWEST
    percentile: bool = False
    bias_correction: bool = True


WAYS = {
    "default": Way(),
    "all": Way(most=1.0, fewest=NEVER),
    "all-measured": Way(most=1.0),
    "percentile": Way(most=1.0, fewest=NEVER, percentile=True),
    "most": Way(fewest=NEVER),
    "uncorrected": Way(most=1.0, bias_correction=False),
}
"""all: ranges of all values, cut before functions; measured: with measured biases; most: ranges that most samples keep
to, without them; percentile: 99.99 % of the values, cut before functions; uncorrected: -O bias_correction=false."""


def imported(work: Path, calibration: Path) -> tuple[Artifact, Path]:
    """Returns the float model, cut before its decode, and its float TFLite file."""
    out = work / "float"
    if not out.is_dir():
        model, samples = MODELS / "yolov8n.onnx", str(calibration)
        anynpu.build(model, "tflite", samples, task="yolov8", limit=8, activations="float32", output=out)
    return Artifact.open(out / "float"), Artifact.open(out / "tflite").main


def detector(floating: Artifact, run: Run) -> Detector:
    specs = floating.manifest.inputs, floating.manifest.outputs
    return Detector(Model(card.of(floating).card, {}, *specs, run), LOWEST)


def write(way: Way, chip: str, floating: Artifact, lite: Path, data: Dataset, out: Path) -> None:
    """Writes the quantised file of a chip."""
    plan = QuantPlan(bias_correction=way.bias_correction)
    if chip == "tflite":
        data = replace(data, inputs={name: np.moveaxis(each, 1, 3) for name, each in data.inputs.items()})

    def percentiles(net, ranges: Mapping[str, Range], *_) -> dict[str, Range]:
        known = collect(forms[0].run(), data, "percentile", whole=net.outputs)
        pairs = {
            name: (each, known[name]) for name, each in ranges.items() if name in known and name not in net.outputs
        }
        narrow = {name: Range(max(a.min, b.min), min(a.max, b.max)) for name, (a, b) in pairs.items()}
        return {**ranges, **narrow}

    forms: list = []
    emitter = integer_file if chip == "tflite" else qdq
    calibrated = emitter.calibrated

    def remembered(form, *how, **more):
        forms.append(form)
        return calibrated(form, *how, **more)

    with ExitStack() as changed:
        changed.enter_context(patch.object(most_samples, "MOST", way.most))
        changed.enter_context(patch.object(measured, "FEWEST", way.fewest))
        if way.percentile:
            changed.enter_context(patch.object(emitter, "calibrated", remembered))
            changed.enter_context(patch.object(emitter, "kept_by_most", percentiles))
        if chip == "tflite":
            integer_file.quantize_file(lite, data, replace(plan, io="float"), out)
        else:
            onnx.save(qdq.write_qdq(onnx.load(floating.main), data, plan), out)


def runner(file: Path, names: list[str]) -> Run:
    """Returns what executes a file on one thread, with channels first."""
    if file.suffix == ".onnx":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))
    interpreter = open_interpreter(file, PLAIN, threads=1)
    (entry,), ends = interpreter.get_input_details(), interpreter.get_output_details()

    def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        (values,) = inputs.values()
        interpreter.set_tensor(entry["index"], np.ascontiguousarray(np.moveaxis(values, 1, 3)))
        interpreter.invoke()
        maps = (np.moveaxis(interpreter.get_tensor(end["index"]), 3, 1) for end in ends)
        return dict(zip(names, maps, strict=True))

    return run


def detections(file: Path, floating: Artifact, pictures: list[Path], kept: Path) -> list[Detections]:
    """Returns what a file finds in each picture, executed once."""
    if not kept.is_file():
        reader = detector(floating, runner(file, [spec.name for spec in floating.manifest.outputs]))
        seen = [reader.detect(read_image(picture).pixels)[0] for picture in pictures]
        columns = {name: np.concatenate([getattr(each, name) for each in seen]) for name in PARTS}
        np.savez_compressed(kept, counts=[len(each) for each in seen], **columns)
    with np.load(kept) as arrays:
        ends = np.cumsum(arrays["counts"])[:-1]
        return [Detections(*each) for each in zip(*(np.split(arrays[name], ends) for name in PARTS), strict=True)]


def span(rows: np.ndarray, sign: str = "") -> str:
    low, high = np.quantile(rows[1:], (0.025, 0.975))
    return f"{rows[0]:{sign}.4f} ({low:{sign}.4f} to {high:{sign}.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path, default=MODELS / "pictures" / "calibration")
    parser.add_argument("--pictures", type=Path, default=MODELS / "pictures" / "judging")
    parser.add_argument("--labels", type=Path, default=MODELS / "pictures" / "labels.json")
    parser.add_argument("-n", "--count", type=int, default=64, help="pictures to calibrate with, a fifth held out")
    parser.add_argument("-t", "--targets", default="cpu,tflite")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--work", type=Path, default=Path("/tmp/anynpu-ranges"))
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    floating, lite = imported(asked.work, asked.calibration)
    taken = [path for path, _ in find_images(asked.calibration)]
    taken = [taken[at * len(taken) // asked.count] for at in range(asked.count)] if asked.count < len(taken) else taken
    preparing = detector(floating, lambda inputs: {})
    prepared = [preparing.prepare(read_image(path).pixels)[0]["images"] for path in taken]
    data, _ = split_holdout(Dataset({"images": np.concatenate(prepared)}, None, "pictures"))
    pictures, rows = [path for path, _ in find_images(asked.pictures)], json.loads(asked.labels.read_text("utf-8"))
    draw = np.random.default_rng(0)
    drawn = [np.bincount(draw.integers(0, len(pictures), len(pictures)), minlength=len(pictures)) for _ in range(DRAWS)]
    judge = Judge([labelled(rows[path.name]) for path in pictures], drawn, len(card.of(floating).card.labels))
    wanted = detections(floating.main, floating, pictures, asked.work / "float.npz")
    exact = [judge.precisions(wanted, together) for together in (False, True)]
    objects = sum(int((~truth.ignored).sum()) for truth in judge.truths)
    print(
        f"{len(pictures)} pictures, {objects} objects; float mAP50-95 {exact[0][0]:.4f}, in one list {exact[1][0]:.4f}"
    )
    for chip in asked.targets.split(","):
        first: list[np.ndarray] = []
        for name in asked.ways.split(","):
            file = asked.work / f"{name}-{len(taken)}.{'tflite' if chip == 'tflite' else 'onnx'}"
            if not file.is_file():
                write(WAYS[name], chip, floating, lite, data, file)
            found = detections(file, floating, pictures, file.with_suffix(file.suffix + ".npz"))
            kept = [judge.precisions(found, at == 1) / exact[at] for at in (0, 1)]
            first = first or kept
            sure, again = np.sum([found_again(*each) for each in zip(wanted, found, strict=True)], axis=0)
            print(f"{chip:7} {name:13} kept", *map(span, kept), f"found again {again / sure:.3f} of {sure}", flush=True)
            if kept is not first:
                print(" " * 22, "difference", *(span(a - b, "+") for a, b in zip(kept, first, strict=True)), flush=True)


if __name__ == "__main__":
    main()

"""Measures whether the loss that a build predicts for new samples holds, and writes bench/results/adequacy.json.

    python bench/adequacy.py [-m kws,autoencoder] [--sets 200] [--samples 60]
    python bench/adequacy.py -m yolov8n [--side 160] [--pictures .models/pictures]

For each of many calibration sets, drawn anew from a pool: every fifth sample is held out, the model is quantised with
the others, executed on the held-out ones, and the interval that a build reports is taken from these alone. Then the
file is executed on test samples that took no part in anything. The interval is to hold their loss in 90 % of the sets.
YOLOv8n (scripts/models.sh) is cut before its decode and has a smaller input; its pool are the pictures for calibration
that bench/pictures.py fetches, its test samples those for judging. Every set is kept at once: an interrupted run goes
on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime

import anynpu
from anynpu.files import replace_file
from anynpu.measure.adequacy import expected_loss, judge_calibration
from anynpu.measure.decibels import ratio_db
from anynpu.quantize.calibration import Dataset, split_holdout
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import write_qdq
from anynpu.records.calibration import Calibration
from anynpu.source import zoo
from anynpu.tasks.images import Preprocess, find_images, fit, read_image, to_input
from anynpu.tensors import TensorSpec

RESULTS = Path(__file__).parent / "results" / "adequacy.json"
POOL, TEST = 1000, 300
MODELS = Path(os.environ.get("ANYNPU_MODELS_DIR", Path(__file__).parents[1] / ".models"))
DETECTOR = "yolov8n"


def imported(name: str) -> onnx.ModelProto:
    """Returns the float graph that a build of a zoo model starts from."""
    with tempfile.TemporaryDirectory() as folder:
        anynpu.build(f"zoo:{name}", "cpu", output=Path(folder, "out"))
        return onnx.load(Path(folder, "out", "float", "model.onnx"))


def imported_detector(side: int, pictures: Path) -> onnx.ModelProto:
    """Returns YOLOv8n, cut before its decode as a build cuts it, for pictures of `side` x `side`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        anynpu.build(MODELS / f"{DETECTOR}.onnx", "null", task="yolov8", data=str(pictures), limit=8, output=out)
        model = onnx.load(out / "float" / "model.onnx")
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = side
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim[2:]:
            dim.dim_value = dim.dim_value * side // 640
    del model.graph.value_info[:]
    return model


def letterboxed(folder: Path, side: int) -> np.ndarray:
    """Returns the pictures of a folder as the detector's inputs [n, 3, side, side]."""
    steps, spec = Preprocess(resize="letterbox"), TensorSpec("images", (1, 3, side, side), layout="NCHW")
    images = (read_image(path).pixels for path, _ in find_images(folder))
    return np.concatenate([to_input(fit(pixels, (side, side), steps, "NCHW")[0], steps, spec) for pixels in images])


def outputs(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Returns what ONNX Runtime gives for every sample, output by output; int8 products are summed exactly."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    count = len(next(iter(inputs.values())))
    rows = [session.run(None, {name: array[at : at + 1] for name, array in inputs.items()}) for at in range(count)]
    return [np.concatenate(each) for each in zip(*rows, strict=True)]


def db(wanted: np.ndarray, got: np.ndarray) -> float:
    wanted, got = wanted.astype(np.float64), got.astype(np.float64)
    return ratio_db(float((wanted**2).sum()), float(((got - wanted) ** 2).sum()))


def one_set(
    model: onnx.ModelProto, pool: Dataset, known: list[np.ndarray], chosen: np.ndarray, tests: Tests
) -> dict[str, object]:
    """Returns the predicted interval and the measured loss of the worst output for one calibration set."""
    kept, held = split_holdout(pool.take(chosen.tolist()))
    said: list[Calibration] = []
    quantised = write_qdq(model, kept, QuantPlan(), None, said.append)
    places = [at for at in range(len(chosen)) if at % 5 == 4]
    got = outputs(quantised, held.inputs)
    intervals = [expected_loss(each[chosen[places]], mine) for each, mine in zip(known, got, strict=True)]
    low, high = min((each for each in intervals if each is not None), key=sum)
    losses = [db(each, mine) for each, mine in zip(tests.wanted, outputs(quantised, tests.inputs), strict=True)]
    enough = judge_calibration(said[0], 0, ()).adequate
    return {"low": low, "high": high, "measured": min(losses), "enough": enough}


class Tests(NamedTuple):
    """Samples that took no part in anything, and what the float model makes of them."""

    inputs: dict[str, np.ndarray]
    wanted: list[np.ndarray]


def material(name: str, asked: argparse.Namespace) -> tuple[onnx.ModelProto, Dataset, dict[str, np.ndarray]]:
    """Returns the float model, the pool that sets are drawn from, and the test samples."""
    if name == DETECTOR:
        drawn, tested = (letterboxed(asked.pictures / half, asked.side) for half in ("calibration", "judging"))
        model = imported_detector(asked.side, asked.pictures / "calibration")
        return model, Dataset({"images": drawn}, None, name), {"images": tested}
    taken, test = (dict(zoo.samples(name, *part).inputs) for part in (("calibration", POOL), ("test", TEST)))
    return imported(name), Dataset(taken, None, name), test


def covered(rows: list[dict[str, object]]) -> float:
    return float(np.mean([row["low"] <= row["measured"] <= row["high"] for row in rows]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--models", default="kws,autoencoder,resnet8")
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="other sets")
    parser.add_argument("--side", type=int, default=160, help="height and width of what YOLOv8n gets")
    parser.add_argument("--pictures", type=Path, default=MODELS / "pictures")
    asked = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    for name in asked.models.split(","):
        model, pool, test = material(name, asked)
        tests, known = Tests(test, outputs(model, test)), outputs(model, pool.inputs)
        side = f" {asked.side}" if name == DETECTOR else ""
        key = f"{name}{side} {asked.samples} {asked.seed}"
        results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
        rows = results.setdefault(key, {"rows": []})["rows"]
        for number in range(len(rows), asked.sets):
            draw = np.random.default_rng((asked.seed, number))
            rows.append(one_set(model, pool, known, draw.choice(pool.count, asked.samples, replace=False), tests))
            results[key]["covered"] = covered(rows)
            replace_file(RESULTS, json.dumps(results, indent=1) + "\n")
            if number % 10 == 9:
                print(f"  {number + 1} sets: {covered(rows):.1%} covered", flush=True)
        width = float(np.median([row["high"] - row["low"] for row in rows]))
        losses = [row["measured"] for row in rows]
        print(
            f"{name}: {covered(rows):.1%} of {len(rows)} sets covered, interval {width:.2f} dB,"
            f" losses {min(losses):.1f} to {max(losses):.1f} dB"
        )


if __name__ == "__main__":
    main()

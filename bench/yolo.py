"""Measures the work around a YOLO model, ours beside ultralytics' and OpenCV's, and writes bench/results/yolo.*.

    python bench/yolo.py [-n 300]

Every row of a table does the same work on the same data on one thread; rows are interleaved, round by round, and the
time is the CPU time of that thread, which other processes on the machine do not add to. Rows whose package is not
installed are left out. What the suppression inside ultralytics costs is not counted: torchvision, which it calls, is
replaced by a look-up of the answer, so that its rows are lower bounds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402

from anynpu.tasks.card import choose  # noqa: E402
from anynpu.tasks.detect import Detector, Threshold  # noqa: E402
from anynpu.tasks.images import Preprocess, fit, read_image, to_input  # noqa: E402
from anynpu.tasks.model import Model  # noqa: E402
from anynpu.tensors import Quantization, TensorSpec  # noqa: E402

ROOT = Path(__file__).parents[1]
MODELS = Path(os.environ.get("ANYNPU_MODELS_DIR", ROOT / ".models"))
RESULTS = Path(__file__).parent / "results"
SIZE = (640, 640)
CONFIDENCE, IOU = 0.25, 0.7
Work = Callable[[], object]


def photo() -> np.ndarray:
    """Returns bus.jpg if it is fetched, or else noise of its size; the work depends on the size alone."""
    path = MODELS / "bus.jpg"
    if path.is_file():
        return read_image(path).pixels
    return np.random.default_rng(0).integers(0, 256, (1080, 810, 3), dtype=np.uint8)


def drawn_output(objects: int, around: int) -> np.ndarray:
    """Returns [1, 84, 8400] with `objects` boxes, each with `around` candidates that overlap it."""
    draw = np.random.default_rng(0)
    output = np.zeros((1, 84, 8400), np.float32)
    output[0, :2] = draw.uniform(0, 640, (2, 8400))
    output[0, 2:4] = draw.uniform(10, 200, (2, 8400))
    output[0, 4:] = draw.uniform(0, 0.02, (80, 8400))
    places = draw.choice(8400, objects * around, replace=False).reshape(objects, around)
    for row in places:
        centre, size, kind = draw.uniform(100, 540, 2), draw.uniform(40, 300, 2), draw.integers(80)
        output[0, :2, row] = centre + draw.normal(0, 3, (around, 2))
        output[0, 2:4, row] = size * draw.uniform(0.95, 1.05, (around, 2))
        output[0, 4 + kind, row] = draw.uniform(0.3, 0.95, around)
    return output


def real_output(pixels: np.ndarray) -> np.ndarray | None:
    """Returns what YOLOv8n gives for the photo, if model and photo are fetched."""
    if not (MODELS / "yolov8n.onnx").is_file() or not (MODELS / "bus.jpg").is_file():
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(MODELS / "yolov8n.onnx"), providers=["CPUExecutionProvider"])
    inputs, _ = detector(TensorSpec("output0", (1, 84, 8400))).prepare(pixels)
    return session.run(None, inputs)[0]


def detector(output: TensorSpec) -> Detector:
    image = TensorSpec("images", (1, 3, *SIZE), layout="NCHW", channels="RGB")
    model = Model(choose("yolov8").card, {}, (image,), (output,), lambda given: {})
    return Detector(model, Threshold(CONFIDENCE, IOU))


def cv2_one_thread() -> types.ModuleType:
    import cv2

    cv2.setNumThreads(1)
    return cv2


def ultralytics_ops() -> tuple[types.ModuleType, types.ModuleType]:
    """Returns ultralytics' modules ops and augment; torchvision is stood in for where it is not installed."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        stand_in = types.ModuleType("torchvision")
        stand_in.__version__ = "0.28.0"
        stand_in.__spec__ = importlib.machinery.ModuleSpec("torchvision", None)
        stand_in.ops, stand_in.transforms = types.ModuleType("ops"), types.ModuleType("transforms")
        sys.modules |= {"torchvision": stand_in, "torchvision.transforms": stand_in.transforms}
        asked = importlib.metadata.version
        importlib.metadata.version = lambda name: "0.28.0" if name == "torchvision" else asked(name)
    import torch
    from ultralytics.data import augment
    from ultralytics.utils import ops

    torch.set_num_threads(1)
    return ops, augment


def before(pixels: np.ndarray) -> Iterator[tuple[str, Work]]:
    """Yields pixels -> float32 [1, 3, 640, 640], letterboxed, by everybody."""
    spec = TensorSpec("images", (1, 3, *SIZE), layout="NCHW")

    def ours(interpolation: str, spec: TensorSpec) -> Work:
        steps = Preprocess(resize="letterbox", interpolation=interpolation)
        return lambda: to_input(fit(pixels, SIZE, steps, "NCHW")[0], steps, spec)

    eight = TensorSpec("images", spec.shape, "int8", "NCHW", quantization=Quantization((1 / 255,), (-128,)))
    with suppress(ImportError):
        cv2 = cv2_one_thread()
        yield "anynpu, four nearest pixels (linear)", ours("linear", spec)
        with suppress(ImportError):
            yield "ultralytics (LetterBox, stack, transpose, tensor, / 255)", ultralytics_before(pixels)
        yield "OpenCV (resize, copyMakeBorder, dnn.blobFromImage)", opencv_before(cv2, pixels)
        yield "anynpu, linear, int8 input", ours("linear", eight)
    yield "anynpu, wide filter (bilinear, the default)", ours("bilinear", spec)
    yield "Pillow and numpy (resize, paste, transpose, / 255)", pillow_before(pixels)
    yield "anynpu, bilinear, int8 input", ours("bilinear", eight)


def ultralytics_before(pixels: np.ndarray) -> Work:
    import torch

    _, augment = ultralytics_ops()
    letterbox = augment.LetterBox(SIZE, auto=False, stride=32)
    bgr = np.ascontiguousarray(pixels[:, :, ::-1])

    def run() -> object:
        image = np.stack([letterbox(image=bgr)])
        image = np.ascontiguousarray(image[..., ::-1].transpose((0, 3, 1, 2)))
        tensor = torch.from_numpy(image).float()
        tensor /= 255
        return tensor

    return run


def opencv_before(cv2: types.ModuleType, pixels: np.ndarray) -> Work:
    bgr = np.ascontiguousarray(pixels[:, :, ::-1])
    height, width = bgr.shape[:2]
    gain = min(SIZE[0] / height, SIZE[1] / width)
    inner = round(width * gain), round(height * gain)
    down, right = SIZE[0] - inner[1], SIZE[1] - inner[0]
    border = (down // 2, down - down // 2, right // 2, right - right // 2)

    def run() -> object:
        image = cv2.copyMakeBorder(cv2.resize(bgr, inner), *border, cv2.BORDER_CONSTANT, value=(114, 114, 114))
        return cv2.dnn.blobFromImage(image, 1 / 255, swapRB=True)

    return run


def pillow_before(pixels: np.ndarray) -> Work:
    from PIL import Image

    height, width = pixels.shape[:2]
    gain = min(SIZE[0] / height, SIZE[1] / width)
    inner = round(width * gain), round(height * gain)

    def run() -> object:
        image = Image.fromarray(pixels)
        padded = Image.new("RGB", SIZE, (114, 114, 114))
        padded.paste(image.resize(inner, Image.BILINEAR), ((SIZE[1] - inner[0]) // 2, (SIZE[0] - inner[1]) // 2))
        return np.ascontiguousarray(np.asarray(padded).transpose(2, 0, 1)[None]).astype(np.float32) / 255

    return run


def after(output: np.ndarray, pixels: np.ndarray) -> Iterator[tuple[str, Work]]:
    """Yields [1, 84, 8400] -> boxes of the picture, by everybody."""
    spec = TensorSpec("output0", output.shape)
    _, place = detector(spec).prepare(pixels)
    how = Quantization((2.6,) * 4 + (1 / 255,) * 80, (-128,) * 84, axis=1)

    def ours(spec: TensorSpec, stored: np.ndarray) -> Work:
        reader = detector(spec)
        return lambda: reader.read({"output0": stored}, place)

    yield "anynpu, float32", ours(spec, output)
    with suppress(ImportError):
        yield (
            "ultralytics (non_max_suppression without its suppression, scale_boxes)",
            ultralytics_after(output, pixels),
        )
    with suppress(ImportError):
        cv2 = cv2_one_thread()
        yield "OpenCV (as its users write it: minMaxLoc row by row, dnn.NMSBoxes)", opencv_rows_after(cv2, output)
        yield "OpenCV (candidates by numpy, dnn.NMSBoxesBatched)", opencv_after(cv2, output, pixels)
    yield "anynpu, float16", ours(TensorSpec("output0", output.shape, "float16"), output.astype(np.float16))
    eight = TensorSpec("output0", output.shape, "int8", quantization=how)
    yield "anynpu, int8 with a scale for boxes and one for scores", ours(eight, how.quantize(output, "int8"))


def ultralytics_after(output: np.ndarray, pixels: np.ndarray) -> Work:
    import torch

    ops, _ = ultralytics_ops()
    import torchvision

    answer: dict[int, torch.Tensor] = {}

    def looked_up(boxes: torch.Tensor, scores: torch.Tensor, iou: float) -> torch.Tensor:
        if len(scores) not in answer:
            from anynpu.tasks import nms

            kept = nms.keep(boxes.double().numpy(), scores.numpy(), np.zeros(len(scores), int), iou, 300)
            answer[len(scores)] = torch.from_numpy(kept)
        return answer[len(scores)]

    torchvision.ops.nms = looked_up

    def run() -> object:
        # in_place=False: the same tensor serves every round; the copy it makes is part of neither's work but small.
        found = ops.non_max_suppression(torch.from_numpy(output), CONFIDENCE, IOU, max_det=300, in_place=False)[0]
        return ops.scale_boxes(SIZE, found[:, :4], pixels.shape)

    return run


def opencv_rows_after(cv2: types.ModuleType, output: np.ndarray) -> Work:
    def run() -> object:
        boxes, scores, kinds = [], [], []
        for row in output[0].T:
            _, score, _, (_, kind) = cv2.minMaxLoc(np.ascontiguousarray(row[4:]))
            if score > CONFIDENCE:
                boxes.append([row[0] - row[2] / 2, row[1] - row[3] / 2, row[2], row[3]])
                scores.append(score)
                kinds.append(kind)
        return boxes, kinds, cv2.dnn.NMSBoxes(boxes, scores, CONFIDENCE, IOU)

    return run


def opencv_after(cv2: types.ModuleType, output: np.ndarray, pixels: np.ndarray) -> Work:
    gain = min(SIZE[0] / pixels.shape[0], SIZE[1] / pixels.shape[1])
    left, top = ((SIZE[1 - i] - pixels.shape[1 - i] * gain) / 2 for i in (0, 1))

    def run() -> object:
        rows = output[0].T
        scores = rows[:, 4:].max(1)
        at = scores > CONFIDENCE
        kinds = rows[at, 4:].argmax(1)
        boxes = rows[at, :4].copy()
        boxes[:, :2] -= boxes[:, 2:] / 2
        kept = cv2.dnn.NMSBoxesBatched(boxes, scores[at], kinds, CONFIDENCE, IOU)
        boxes = (boxes[kept] - [left, top, 0, 0]) / gain
        boxes[:, 2:] += boxes[:, :2]
        boxes[:, 0::2] = boxes[:, 0::2].clip(0, pixels.shape[1])
        boxes[:, 1::2] = boxes[:, 1::2].clip(0, pixels.shape[0])
        return boxes, scores[at][kept], kinds[kept]

    return run


def measure(rows: list[tuple[str, Work]], rounds: int) -> list[dict]:
    """Returns the CPU microseconds of each row; each round takes them in another order: caches favour who is second."""
    samples: dict[str, list[float]] = {name: [] for name, _ in rows}
    order = random.Random(0)
    for index in range(rounds + 5):
        for name, work in order.sample(rows, len(rows)):
            started = time.thread_time_ns()
            work()
            if index >= 5:
                samples[name].append((time.thread_time_ns() - started) / 1e3)
    first = statistics.median(samples[rows[0][0]])
    return [
        {
            "what": name,
            "median_us": round(statistics.median(taken), 1),
            "p90_us": round(statistics.quantiles(taken, n=10)[-1], 1),
            "ratio": round(statistics.median(taken) / first, 2),
            "raw_us": [round(sample, 1) for sample in taken],
        }
        for name, taken in samples.items()
    ]


def markdown(title: str, rows: list[dict]) -> str:
    lines = [f"{r['what']} | {r['median_us'] / 1e3:.3f} | {r['p90_us'] / 1e3:.3f} | {r['ratio']:.2f}" for r in rows]
    head = ["what | median ms | p90 ms | times the first row", "--- | ---: | ---: | ---:"]
    return f"## {title}\n\n" + "\n".join(f"| {line} |" for line in (*head, *lines)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    pixels = photo()
    tables = {f"pixels {pixels.shape[1]}x{pixels.shape[0]} to input": list(before(pixels))}
    if (real := real_output(pixels)) is not None:
        tables["output of YOLOv8n for bus.jpg to boxes"] = list(after(real, pixels))
    tables["drawn output, 8 objects in 96 candidates, to boxes"] = list(after(drawn_output(8, 12), pixels))
    tables["drawn output, 60 objects in 1,200 candidates, to boxes"] = list(after(drawn_output(60, 20), pixels))
    found = {title: measure(rows, rounds) for title, rows in tables.items()}
    text = "\n".join(markdown(title, rows) for title, rows in found.items())
    note = f"CPU time of one thread, median of {rounds} interleaved rounds; numpy {np.__version__}.\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "yolo.json").write_text(json.dumps({"schema_version": 1, "rounds": rounds, "tables": found}) + "\n")
    (RESULTS / "yolo.md").write_text(f"{note}\n{text}")
    print(note + "\n" + text)


if __name__ == "__main__":
    main()

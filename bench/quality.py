"""Measures what 8 bits keep of MiniLM and YOLOv8n, from `anynpu build` with the task card and no other option.

    python bench/quality.py [-m minilm,yolov8n] [-t cpu,tflite] [-n 1000] [--pictures FOLDER] [-O method=minmax]

MiniLM: mean cosine to the float vector, and Spearman of the pairwise similarities, over generated sentences that differ
from the calibration sentences. YOLOv8n: the share of the float detections above .4 that are found again (same class,
IoU of .9, score within .05), over the pictures of a folder; the mAP50-95 that the result has where these float
detections are the truth; and, with the labels of bench/labels.py, the mAP50-95 against what a stronger detector sees,
and how much of the float model's that is. All with an interval over pictures drawn anew. Pictures come from
bench/pictures.py, models from scripts/models.sh. Figures are kept in bench/results/quality.json under the digests of
what was measured, so that an interrupted run goes on where it was; `-O` measures another plan beside the default.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from anynpu.artifact import Artifact
from anynpu.measure import coco
from anynpu.runtime.base import Session, choose, run_real
from anynpu.tasks import card
from anynpu.tasks.detect import Detections, Detector, Threshold
from anynpu.tasks.images import find_images, read_image
from anynpu.tasks.model import Model
from anynpu.tasks.text import bind
from anynpu.tensors import by_name

ROOT = Path(__file__).parents[1]
MODELS = Path(os.environ.get("ANYNPU_MODELS_DIR", ROOT / ".models"))
RESULTS = Path(__file__).parent / "results" / "quality.json"
TOKENS, CALIBRATION = 64, 160
SCORE, IOU, WITHIN = 0.4, 0.9, 0.05
LOWEST = Threshold(confidence=0.001)
DRAWS = 200
FAR = 1e5
FIGURES = (
    ("found_again", "found again"),
    ("map50_95_of_float", "mAP50-95 of float"),
    ("map50_95", "mAP50-95"),
    ("map50_95_kept", "of the float model's, kept"),
    ("together_kept", "kept in one list of all classes"),
)
PARTS = ("boxes", "scores", "classes")

PEOPLE = (
    "a man",
    "a woman",
    "two girls",
    "three young boys",
    "an old farmer",
    "the chef",
    "a police officer",
    "some tourists",
    "a group of students",
    "my neighbour",
    "the engineers",
    "a toddler",
    "a nurse",
    "the band",
    "a tired cyclist",
    "several fishermen",
    "the goalkeeper",
    "a street musician",
    "our teacher",
    "a scientist",
)
ANIMALS = (
    "a black dog",
    "two cats",
    "a brown horse",
    "a flock of birds",
    "an elephant",
    "a small lizard",
    "the puppy",
    "a panda",
    "some sheep",
    "a polar bear",
    "a tiger cub",
    "a parrot",
)
ACTS = (
    "is playing the guitar",
    "is slicing an onion",
    "is riding a bicycle",
    "are dancing in the rain",
    "is running along the beach",
    "is reading a newspaper",
    "jumps over a fence",
    "is cooking rice in a pot",
    "is climbing a steep rock",
    "is sleeping on the couch",
    "is swimming across the lake",
    "are waiting for the train",
    "is painting a wooden door",
    "is talking on the phone",
    "carries a heavy box",
    "is repairing an engine",
    "is feeding the ducks",
    "throws a ball into the air",
    "is peeling potatoes",
    "looks out of the window",
)
PLACES = (
    "in the park",
    "on a crowded street",
    "near the harbour",
    "at the airport",
    "in a small kitchen",
    "under an old bridge",
    "beside a wooden table",
    "on the roof of a hotel",
    "in front of the museum",
    "at the edge of the forest",
    "on a snowy hill",
    "in the desert at noon",
    "",
    "",
    "",
)
COUNTRIES = (
    "France",
    "India",
    "Brazil",
    "Nigeria",
    "Japan",
    "Ukraine",
    "Egypt",
    "Canada",
    "Mexico",
    "South Korea",
    "Turkey",
    "Australia",
    "Syria",
    "Chile",
    "Kenya",
    "Germany",
)
TOPICS = (
    "energy",
    "water",
    "immigration",
    "health care",
    "education",
    "banking",
    "climate",
    "tax",
    "nuclear",
    "internet privacy",
    "housing",
    "food safety",
    "trade",
)
DISASTERS = (
    "earthquake",
    "bus crash",
    "flood",
    "factory fire",
    "bomb attack",
    "storm",
    "landslide",
    "plane crash",
    "heat wave",
)
VERBS = (
    "bake bread",
    "learn a new language",
    "clean a carpet",
    "write a cover letter",
    "lose weight",
    "invest in bonds",
    "train a neural network",
    "fix a leaking tap",
    "grow tomatoes on a balcony",
    "sleep better",
    "sort a list in python",
    "back up my photos",
    "cook an egg",
    "start a small business",
    "stop a nosebleed",
)
OBJECTS = (
    "laptop",
    "washing machine",
    "phone",
    "camera",
    "bicycle lamp",
    "printer",
    "router",
    "coffee grinder",
    "violin",
    "tent",
    "heat pump",
    "wheelchair",
    "keyboard",
)
NEWS = (
    "{c} president meets ministers over {t} crisis",
    "{c}: at least {n} killed in {d}",
    "stocks in {c} fall {n} percent after {t} report",
    "{c} and {c2} sign an agreement on {t}",
    "court in {c} rejects appeal in {t} case",
    "thousands protest in {c} against new {t} law",
    "oil prices rise as {c} cuts exports",
    "{c} beats {c2} {m}-{m2} in the final",
    "{c} launches a satellite to study {t}",
    "company to close {n} shops in {c}, {n2} jobs at risk",
    "{d} hits northern {c}, rescue teams on the way",
    "opposition leader arrested in {c}",
)
QUESTIONS = (
    "how do i {v} without {v2}?",
    "what is the best way to {v}?",
    "is it safe to {v} while travelling in {c}?",
    "why does my {o} stop working after an update?",
    "can someone explain {t} in simple terms?",
    "where can i buy a cheap {o} in {c}?",
    "should i {v} or {v2} first?",
    "what is the difference between {t} and {t2}?",
)
FACTS = (
    "the {o} weighs {n} grams and costs {n2} dollars.",
    "it rained for {n} days, and the river rose by {m} metres.",
    "please return the {o} to the front desk before {m} o'clock.",
    "error {n2}: connection to host refused after {n} seconds",
    "the committee will review the {t} proposal next week, although nobody expects it to pass.",
    "according to the report, {t} spending in {c} grew by {n} percent last year, mostly because of {t2}.",
    "i really loved this film: the story is slow, but the acting and the music are wonderful.",
    "terrible service, the {o} arrived broken and nobody answered my emails.",
    "photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "the patient was given {n} mg twice a day and recovered within {m} weeks.",
    "to {v}, first {v2}; then wait {n} minutes and repeat.",
    "the contract ends on the {m}th of march unless both parties agree otherwise in writing.",
    "the gradient of the loss vanishes when the activations saturate.",
    "{c} is about {n2} kilometres away from {c2}.",
    "yes",
    "no, thanks",
    "good morning!",
    "meeting moved to {m} pm",
    "the quick brown fox jumps over the lazy dog",
    "she said that {p} {a}, which surprised everyone.",
)


def sentence(draw: random.Random) -> str:
    """Returns a caption, a headline, a question or something else."""
    words = {
        "c": draw.choice(COUNTRIES), "c2": draw.choice(COUNTRIES), "t": draw.choice(TOPICS), "t2": draw.choice(TOPICS),
        "n": draw.randint(2, 99), "n2": draw.randint(100, 4000), "m": draw.randint(1, 6), "m2": draw.randint(0, 3),
        "d": draw.choice(DISASTERS), "v": draw.choice(VERBS), "v2": draw.choice(VERBS), "o": draw.choice(OBJECTS),
        "p": draw.choice(PEOPLE), "a": draw.choice(ACTS),
    }  # fmt: skip
    kind = draw.random()
    if kind < 0.4:
        text = f"{draw.choice(PEOPLE + ANIMALS)} {draw.choice(ACTS)} {draw.choice(PLACES)}".strip() + "."
    else:
        text = draw.choice(NEWS if kind < 0.65 else QUESTIONS if kind < 0.8 else FACTS).format(**words)
    return text[0].upper() + text[1:] if draw.random() < 0.7 else text


def sentences(count: int, seed: int, apart: frozenset[str] = frozenset()) -> list[str]:
    """Returns different sentences, none of them among `apart`; the same for the same seed."""
    draw = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        text = sentence(draw)
        if text not in apart:
            found.setdefault(text)
    return list(found)


def build(name: str, arguments: list[str], targets: str, options: list[str], work: Path) -> Path:
    """Builds a model; a result below the default gate is measured all the same."""
    out = work / "-".join([name, *options]).replace("=", "-")
    command = [sys.executable, "-m", "anynpu", "build", *arguments, "-t", targets, "-o", str(out), "--overwrite"]
    command += ["--min-sqnr", "0", "-q", *(part for option in options for part in ("-O", option))]
    done = subprocess.run(command, capture_output=True, text=True)
    if not (out / "float").is_dir():
        sys.exit(f"{name}: the build failed\n{done.stderr[-2000:]}")
    return out


def opened(artifact: Artifact) -> Session:
    """Returns the session that runs an artifact: LiteRT for TFLite files, since TFLite-Micro lacks some operators."""
    kind = artifact.manifest.format
    return choose(kind, "litert" if kind == "tflite" else None)(artifact)


def vectors(artifact: Artifact, reference: Artifact, texts: list[str]) -> np.ndarray:
    chosen = card.of(reference)
    assert chosen.card.text is not None
    tokens = bind(chosen.card.text, chosen.files, reference.manifest.inputs)
    session = opened(artifact)
    like = by_name((*reference.manifest.inputs, *reference.manifest.outputs))
    rows = [next(iter(run_real(session, tokens([text]), like).values()))[0] for text in texts]
    unit = np.stack(rows).astype(np.float64)
    return unit / np.linalg.norm(unit, axis=1, keepdims=True)


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(values)).astype(np.float64) for values in (one, other)]
    return float(np.corrcoef(*ranks)[0, 1])


def text_figures(artifact: Artifact, reference: Artifact, texts: list[str], wanted: np.ndarray) -> dict[str, float]:
    found = vectors(artifact, reference, texts)
    pairs = np.triu_indices(len(wanted), 1)
    similar = [(rows @ rows.T)[pairs] for rows in (wanted, found)]
    return {"cosine": float((wanted * found).sum(1).mean()), "spearman": spearman(*similar)}


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
    shared = float(np.prod(np.clip(high - low, 0, None)))
    return shared / float(np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - shared)


def found_again(wanted: Detections, found: Detections) -> tuple[int, int]:
    """Returns how many sure detections there are, and how many of them the other has too."""
    total = kept = 0
    others = list(zip(found.boxes, found.scores, found.classes, strict=True))
    for box, score, kind in zip(wanted.boxes, wanted.scores, wanted.classes, strict=True):
        if score > SCORE:
            total += 1
            near = (o for o in others if o[2] == kind and abs(o[1] - score) <= WITHIN)
            kept += any(overlap(box, other[0]) >= IOU for other in near)
    return total, kept


def detected(artifact: Artifact, reference: Artifact, pictures: list[Path]) -> list[Detections]:
    """Returns what an artifact finds in each picture, executed once: kept under its digest."""
    kept = RESULTS.with_name(f"found-{artifact.digest[-16:]}-{pictures_digest(pictures)}.npz")
    if not kept.is_file():
        like = by_name((*reference.manifest.inputs, *reference.manifest.outputs))
        session, specs = opened(artifact), (reference.manifest.inputs, reference.manifest.outputs)
        detector = Detector(Model(card.of(reference).card, {}, *specs, lambda x: run_real(session, x, like)), LOWEST)
        seen = [detector.detect(read_image(picture).pixels)[0] for picture in pictures]
        counts = np.asarray([len(each) for each in seen])
        columns = {name: np.concatenate([getattr(each, name) for each in seen]) for name in PARTS}
        RESULTS.parent.mkdir(exist_ok=True)
        np.savez_compressed(kept, counts=counts, **columns)
    with np.load(kept) as file:
        ends = np.cumsum(file["counts"])[:-1]
        return [Detections(*each) for each in zip(*(np.split(file[name], ends) for name in PARTS), strict=True)]


def pictures_digest(pictures: list[Path]) -> str:
    return hashlib.sha256("\n".join(picture.name for picture in pictures).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Judge:
    """What there is in each picture, and the draws of pictures that intervals are taken over."""

    truths: list[coco.Truth]
    draws: list[np.ndarray]
    classes: int

    def precisions(self, found: list[Detections], together: bool = False) -> np.ndarray:
        """Returns the mAP50-95 of all pictures, then that of each draw; `together` ranks all classes in one list, which
        varies less where a class has few objects."""
        truths, seen = self.truths, [coco.Found(left_top_size(e.boxes), e.scores, e.classes) for e in found]
        if together:
            truths, seen = [apart(each) for each in truths], [apart(each) for each in seen]
        matches = coco.match(truths, seen, self.classes)
        present = [each for each in matches.classes if each.objects[:, 0].any()]
        times = [np.ones(len(truths), np.int64), *self.draws]
        return np.asarray([np.nanmean([coco.precision(each, 0, row).mean() for each in present]) for row in times])


T = TypeVar("T", coco.Truth, coco.Found)


def apart(boxes: T) -> T:
    """Returns boxes of one class that overlap only where they were of the same class before."""
    moved = boxes.boxes.astype(np.float64)
    moved[:, 0] += boxes.classes * FAR
    return replace(boxes, boxes=moved, classes=np.zeros_like(boxes.classes))


def picture_figures(artifact: Artifact, reference: Artifact, pictures: list[Path], labels: Path) -> dict[str, float]:
    wanted, found = (detected(each, reference, pictures) for each in (reference, artifact))
    every, draw = np.asarray([found_again(*each) for each in zip(wanted, found, strict=True)]), np.random.default_rng(0)
    drawn = [np.bincount(draw.integers(0, len(every), len(every)), minlength=len(every)) for _ in range(DRAWS)]
    shares = [(times @ every)[1] / max((times @ every)[0], 1) for times in (np.ones(len(every), np.int64), *drawn)]
    classes = len(card.of(reference).card.labels)
    judge = Judge([as_truth(each) for each in wanted], drawn, classes)
    figures = {"found_again": np.asarray(shares), "map50_95_of_float": judge.precisions(found)}
    if labels.is_file():
        rows = json.loads(labels.read_text("utf-8"))
        judge = Judge([labelled(rows[picture.name]) for picture in pictures], drawn, classes)
        figures["map50_95"], figures["map50_95_float"] = judge.precisions(found), judge.precisions(wanted)
        figures["map50_95_kept"] = figures["map50_95"] / figures["map50_95_float"]
        figures["together_kept"] = judge.precisions(found, True) / judge.precisions(wanted, True)
    spans = {name: (rows[0], *np.quantile(rows[1:], (0.05, 0.95))) for name, rows in figures.items()}
    ends = ("", "_low", "_high")
    numbers = {name + end: float(value) for name, span in spans.items() for end, value in zip(ends, span, strict=True)}
    return {"detections": int(every.sum(axis=0)[0]), **numbers}


def labelled(rows: list[list[float]]) -> coco.Truth:
    """Returns what bench/labels.py wrote of a picture: sure objects, and doubtful ones that do not count."""
    table = np.asarray(rows, np.float64).reshape(-1, 6)
    boxes, nothing = left_top_size(table[:, :4]), np.zeros(len(table), np.bool_)
    return coco.Truth(boxes, table[:, 5].astype(np.int64), boxes[:, 2] * boxes[:, 3], nothing, table[:, 4] < SCORE)


def as_truth(sure: Detections) -> coco.Truth:
    """Returns the sure detections of the float model as what there is in a picture."""
    at = sure.scores > SCORE
    boxes, nothing = left_top_size(sure.boxes[at]), np.zeros(int(at.sum()), np.bool_)
    return coco.Truth(boxes, sure.classes[at], boxes[:, 2] * boxes[:, 3], nothing, nothing)


def left_top_size(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)


def measured(key: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Returns the figures under a key, measuring them only once."""
    known = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    if key not in known:
        known[key] = measure()
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")
    return known[key]


def chips_of(out: Path, targets: str) -> list[tuple[str, Artifact]]:
    return [(chip, Artifact.open(out / chip)) for chip in targets.split(",") if (out / chip).is_dir()]


def measure_minilm(asked: argparse.Namespace, options: list[str], plan: str) -> None:
    calibration = sentences(CALIBRATION, 1)
    texts = sentences(asked.count, 2, frozenset(calibration))
    (asked.work / "calibration.txt").write_text("\n".join(calibration) + "\n", "utf-8")
    minilm = ["-m", "anynpu.source.bert:minilm", "--ckpt", str(MODELS / "minilm.safetensors"), "--task", "minilm"]
    minilm += ["--tokenizer", str(MODELS / "minilm-tokenizer.json"), "--data", str(asked.work / "calibration.txt")]
    for name in ("input_ids", "attention_mask"):
        minilm += ["--shape", f"{name}=1,{TOKENS}", "--dtype", f"{name}=int64"]
    out = build("minilm", minilm, asked.targets, options, asked.work)
    reference = Artifact.open(out / "float")
    wanted = vectors(reference, reference, texts)
    for chip, artifact in chips_of(out, asked.targets):
        key = f"minilm {chip} {artifact.digest} {asked.count}"
        figures = measured(key, partial(text_figures, artifact, reference, texts, wanted))
        words = f"cosine {figures['cosine']:.4f}  spearman {figures['spearman']:.4f}"
        print(f"minilm  {chip:8} {plan:16} {words}", flush=True)


def measure_yolo(asked: argparse.Namespace, options: list[str], plan: str) -> None:
    pictures = [path for path, _ in find_images(asked.pictures)]
    yolo = ["-m", str(MODELS / "yolov8n.onnx"), "--task", "yolov8", "--data", str(asked.calibration)]
    out = build("yolov8n", yolo, asked.targets, options, asked.work)
    for chip, artifact in chips_of(out, asked.targets):
        key = f"yolov8n {chip} {artifact.digest} {pictures_digest(pictures)} {asked.labels.is_file()}"
        reference = Artifact.open(out / "float")
        figures = measured(key, partial(picture_figures, artifact, reference, pictures, asked.labels))
        words = (
            f"{label} {figures[name]:.3f} ({figures[f'{name}_low']:.3f} to {figures[f'{name}_high']:.3f})"
            for name, label in FIGURES
            if name in figures
        )
        print(f"yolov8n {chip:8} {plan:16} {figures['detections']} detections:", *words, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--models", default="minilm,yolov8n")
    parser.add_argument("-t", "--targets", default="cpu,tflite")
    parser.add_argument("-n", "--count", type=int, default=1000, help="sentences")
    parser.add_argument("--pictures", type=Path, default=MODELS / "pictures" / "judging", help="to detect in")
    parser.add_argument("--calibration", type=Path, default=MODELS / "pictures" / "calibration")
    parser.add_argument("--labels", type=Path, default=MODELS / "pictures" / "labels.json", help="by bench/labels.py")
    parser.add_argument("-O", dest="options", action="append", default=[], help="a plan to measure after the default")
    parser.add_argument("--work", type=Path, default=Path("/tmp/anynpu-quality"))
    asked = parser.parse_args()
    asked.work.mkdir(exist_ok=True)
    if "yolov8n" in asked.models and not asked.pictures.is_dir():
        sys.exit(f"{asked.pictures} is not a folder: bench/pictures.py fetches the pictures")
    for options in [[], *([asked.options] if asked.options else [])]:
        plan = " ".join(options) or "default"
        if "minilm" in asked.models:
            measure_minilm(asked, options, plan)
        if "yolov8n" in asked.models:
            measure_yolo(asked, options, plan)


if __name__ == "__main__":
    main()

"""A model on labelled data: its score with an interval, and whether another model's is different."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from anynpu.errors import ConfigError, IntegrityError
from anynpu.measure import coco
from anynpu.measure.annotations import Annotated, Annotations
from anynpu.measure.labels import class_numbers, require_metric
from anynpu.measure.metrics import METRICS, chance_of, chance_sentence, score, within_first
from anynpu.measure.paired import FEW, SQUARED_ERROR, Paired
from anynpu.measure.pairs import Pairs, pearson, spearman
from anynpu.measure.significance import bca, mcnemar, paired_bootstrap, wilson
from anynpu.records.shared import Figure
from anynpu.schema import near
from anynpu.tasks.detect import Detector
from anynpu.tasks.embed import TextTower
from anynpu.tasks.images import class_folders, evenly, find_images
from anynpu.tasks.picture import Picture, read_image
from anynpu.tasks.space import row_cosines
from anynpu.tensors import Array

DRAWS, FEWEST_DRAWS = 1000, 200
WORK = 1_000_000_000
"""Elements that all draws of a bootstrap may touch; a larger set is drawn less often."""
SEED = 0
GROUPS = 50
"""Groups of samples that are left out in turn to see how much a figure hangs on few of them."""
TOP5 = 5
NAMES: Mapping[str, tuple[str, ...]] = {
    "classify": ("top1", "top5"),
    "detect": coco.FIGURES,
    "embed-text": ("spearman", "pearson"),
    "embed-image": ("top1", "top5"),
}
"""The figures of every kind of model, the usual score first."""
ARRAY_METRICS = (*METRICS, "top5", SQUARED_ERROR)
"""What labelled arrays can be scored by."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """What a model did with every sample, so that it can be scored on any draw of them.

    `scores` takes how often each sample counts and gives the figures `names`, then two a class of `classes` (AP and
    AP50). `right` says of each sample whether it is right, for the figures that are shares of right samples. `chance`
    is what guessing reaches by the first figure, and how.
    """

    unit: str
    samples: int
    names: tuple[str, ...]
    scores: Callable[[Array], Array]
    right: Mapping[str, Array] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    cost: int = 1
    lower_is_better: bool = False
    notes: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    chance: tuple[float, str] | None = None


@dataclass
class Reader:
    """Image files in order; those that cannot be read are kept aside with what is wrong with them."""

    files: Sequence[Path]
    progress: Progress
    read: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, Picture]]:
        for at, file in enumerate(self.files):
            try:
                picture = read_image(file)
            except (ConfigError, IntegrityError) as error:
                self.failed[str(file)] = error.message
                continue
            self.read.append(at)
            yield str(file), picture
            self.progress(at + 1, len(self.files))

    def require(self) -> None:
        """Raises if there is nothing to score."""
        _some(len(self.read), self.failed)


def _some(count: int, failed: Mapping[str, str]) -> None:
    if not count:
        reason = next(iter(failed.values()), "there are none")
        raise ConfigError(f"none of {len(failed)} images can be scored: {reason}")


@dataclass(frozen=True)
class Folder:
    """Images with one sub-folder a class."""

    files: tuple[Path, ...]
    labels: Array
    classes: tuple[str, ...]

    @classmethod
    def open(cls, path: Path, limit: int | None = None) -> Folder:
        """Returns the labelled images of a folder."""
        if not path.is_dir():
            raise ConfigError(f"{path}: no such folder", "give a folder with one sub-folder per class")
        images = evenly(find_images(path), limit)
        if images[0][1] is None:
            raise ConfigError(f"{path}: its images have no labels", "put them into one sub-folder per class")
        return cls(tuple(file for file, _ in images), np.array([label for _, label in images]), class_folders(path))


def classified(probabilities: Array, labels: Array, unit: str = "images") -> Outcome:
    """Returns top-1, and top-5 where there are more than five classes; a tie for the last place counts as wrong."""
    if len(probabilities) != len(labels) or labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ConfigError(f"{len(probabilities)} rows of scores for labels {list(labels.shape)} {labels.dtype}")
    count = probabilities.shape[1]
    if len(labels) and (labels.min() < 0 or labels.max() >= count):
        raise ConfigError(f"labels from {labels.min()} to {labels.max()} for {count} classes")
    right = {"top1": within_first(probabilities, labels, 1)}
    if count > TOP5:
        right["top5"] = within_first(probabilities, labels, TOP5)
    names = tuple(right)

    def scores(counts: Array) -> Array:
        return np.array([right[name] @ counts / counts.sum() for name in names])

    return Outcome(unit, len(labels), names, scores, right, chance=chance_of("top1", count, labels))


def correlated(pairs: Pairs, tower: TextTower, progress: Progress) -> Outcome:
    """Returns how the cosines of sentence pairs follow the scores that people gave, by ranks and by values."""
    if np.ptp(pairs.scores) == 0:
        raise ConfigError("all pairs have one score: nothing can follow it")
    distinct = list(dict.fromkeys((*pairs.first, *pairs.second)))

    def counted() -> Iterator[str]:
        for at, text in enumerate(distinct):
            progress(at + 1, len(distinct))
            yield text

    vectors, place = tower.embed(counted()), {text: at for at, text in enumerate(distinct)}
    first, second = ([place[text] for text in side] for side in (pairs.first, pairs.second))
    cosines = row_cosines(vectors[first], vectors[second])

    def scores(counts: Array) -> Array:
        rows = np.repeat(np.arange(len(pairs)), counts)
        return np.array([spearman(cosines[rows], pairs.scores[rows]), pearson(cosines[rows], pairs.scores[rows])])

    chance = chance_of("spearman", 0, pairs.scores)
    return Outcome("pairs", len(pairs), ("spearman", "pearson"), scores, cost=20 * len(pairs), chance=chance)


def scored(metric: str, inputs: Mapping[str, Array], outputs: Mapping[str, Array], labels: Array) -> Outcome:
    """Returns the score of arrays by a metric as `build` has them, by top5 or by mse."""
    values = np.asarray(next(iter(outputs.values())))
    if metric in ("top1", "top5") and len(outputs) == 1:
        outcome = classified(values.reshape(len(values), -1), labels, "samples")
        if metric not in outcome.names:
            raise ConfigError(f"--metric {metric}: the model has {values.size // len(values)} classes")
        return outcome
    if metric == SQUARED_ERROR:
        if len(outputs) != 1 or values.shape != labels.shape:
            raise ConfigError(f"mse: outputs {list(values.shape)} and labels {list(labels.shape)} differ in shape")
        errors = ((values.astype(np.float64) - labels) ** 2).reshape(len(labels), -1).mean(axis=1)
        mean = lambda counts: np.array([errors @ counts / counts.sum()])  # noqa: E731
        return Outcome("samples", len(labels), (metric,), mean, cost=len(labels), lower_is_better=True)
    require_metric(metric, ARRAY_METRICS)

    def scores(counts: Array) -> Array:
        rows = np.repeat(np.arange(len(labels)), counts)
        drawn_inputs, drawn = ({name: array[rows] for name, array in side.items()} for side in (inputs, outputs))
        try:
            return np.array([score(metric, drawn_inputs, drawn, labels[rows])])
        except ConfigError:
            if (counts == 1).all():
                raise
            return np.array([np.nan])  # a draw without both kinds of sample has no such score

    chance = chance_of(metric, values[0].size, labels)
    return Outcome("samples", len(labels), (metric,), scores, cost=20 * values.size, chance=chance)


def detected(
    detector: Detector, folder: Path, data: Annotations, rename: Mapping[str, str], progress: Progress
) -> Outcome:
    """Returns mAP and recall as pycocotools computes them, over all annotated images that can be read."""
    labels = detector.model.card.labels or tuple(detector.name(n) for n in range(len(data.names)))
    numbers, note = class_numbers(data.names, labels, rename)
    back = {number: at for at, number in enumerate(numbers)}
    truths, by_image, failed = [], [], {}
    for at, image in enumerate(data.images):
        try:
            picture = read_image(image_file(folder, image))
            height, width = picture.pixels.shape[:2]
            if image.size is not None and image.size != (height, width):
                raise IntegrityError(
                    f"{image.file}: is {width}x{height} and not {image.size[1]}x{image.size[0]}: its boxes do not fit"
                )
        except (ConfigError, IntegrityError) as error:
            failed[image.file] = error.message
            continue
        truths.append(image.truth)
        detections = detector.detect(picture.pixels)[0]
        classes = np.array([back.get(int(number), -1) for number in detections.classes], np.int64)
        boxes = np.asarray(detections.boxes, np.float64).reshape(-1, 4)
        boxes = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)  # left, top, width, height
        by_image.append(coco.Found(boxes, np.asarray(detections.scores, np.float64), classes))
        progress(at + 1, len(data.images))
    _some(len(truths), failed)
    matches = coco.match(truths, by_image, len(data.names))
    if not sum(each.objects[:, 0].sum() for each in matches.classes):
        raise ConfigError("no object is annotated in the images that can be read: there is nothing to find")
    unasked = len(labels) - len(set(numbers))
    notes = [
        *data.notes,
        note,
        f"{unasked} of {len(labels)} classes of the model are not in the data" if unasked else "",
    ]
    return Outcome(
        "images",
        len(truths),
        coco.FIGURES,
        lambda counts: coco.figures(matches, counts),
        classes=data.names,
        cost=4 * len(coco.OVERLAPS) * 4 * max(matches.detections, 1),
        notes=tuple(filter(None, notes)),
        failed=failed,
        chance=chance_of(coco.FIGURES[0], len(labels), np.zeros(0)),
    )


def image_file(folder: Path, image: Annotated) -> Path:
    """Returns where an annotated image lies: by its whole name, or by its last part."""
    whole = folder / image.file
    short = folder / PurePosixPath(image.file.replace("\\", "/")).name
    if not whole.is_file() and not short.is_file():
        raise ConfigError(f"{image.file}: is annotated, but not in {folder}")
    return whole if whole.is_file() else short


def check_metric(kind: str, metric: str) -> None:
    """Raises, before anything runs, for a figure that models of this kind do not have."""
    if metric and metric not in NAMES[kind]:
        hint = f"{kind} is scored by " + ", ".join(NAMES[kind])
        raise ConfigError(f"--metric {metric} does not go with {kind}{near(metric, NAMES[kind])}", hint)


def choose_metric(outcome: Outcome, metric: str) -> str:
    """Returns the figure that is the score: the one asked for, or the first."""
    if metric and metric not in outcome.names:
        raise ConfigError(f"--metric {metric}: the data gives no such figure", "it gives " + ", ".join(outcome.names))
    return metric or outcome.names[0]


def draws_of(cost: int) -> int:
    """Returns how often the samples are drawn anew: the same number on every machine."""
    return max(FEWEST_DRAWS, min(DRAWS, WORK // max(cost, 1)))


def draw(outcome: Outcome, *others: Outcome) -> list[Array]:
    """Returns the scores of every outcome on the same draws of samples, [draw, figure] each."""
    rng, n = np.random.default_rng(SEED), outcome.samples
    every = (outcome, *others)
    rows: list[list[Array]] = [[] for _ in every]
    for _ in range(draws_of(sum(each.cost for each in every))):
        counts = rng.multinomial(n, np.full(n, 1 / n))
        for row, each in zip(rows, every, strict=True):
            row.append(each.scores(counts))
    return [np.array(row) for row in rows]


def figures(outcome: Outcome) -> list[Figure]:
    """Returns every figure with its interval: Wilson's for shares of right samples, a bootstrap for all others."""
    values = outcome.scores(np.ones(outcome.samples, np.int64))
    if set(outcome.names) <= set(outcome.right):
        shares = [int(outcome.right[name].sum()) for name in outcome.names]
        return [Figure(float(v), *wilson(k, outcome.samples)) for v, k in zip(values, shares, strict=True)]
    columns = zip(values, draw(outcome)[0].T, left_out(outcome).T, strict=True)
    return [
        Figure(float(value), *bca(float(value), drawn, without)) if np.isfinite(value) else Figure(None, None, None)
        for value, drawn, without in columns
    ]


def left_out(outcome: Outcome) -> Array:
    """Returns the scores without one sample in turn, or one group of them where there are many, [group, figure]."""
    groups = min(outcome.samples, GROUPS)
    if groups < 2:
        return np.zeros((0, len(outcome.scores(np.ones(outcome.samples, np.int64)))))
    member = np.arange(outcome.samples) % groups
    return np.array([outcome.scores((member != group).astype(np.int64)) for group in range(groups)])


def interval_of(outcome: Outcome) -> str:
    """Returns how the intervals of an outcome are made."""
    if set(outcome.names) <= set(outcome.right):
        return "95 %, Wilson"
    return f"95 %, bootstrap over {outcome.unit} (BCa), {draws_of(outcome.cost)} draws, seed {SEED}"


def weak(outcome: Outcome) -> str:
    """Returns a note on a score from few samples."""
    if outcome.samples >= FEW:
        return ""
    return f"weak: {outcome.samples} {outcome.unit} are fewer than {FEW}; read the interval, not the score"


def no_better(outcome: Outcome) -> str:
    """Returns the warning that the usual score is no better than chance, or nothing."""
    value = float(outcome.scores(np.ones(outcome.samples, np.int64))[0])
    sentence = chance_sentence(outcome.names[0], value, outcome.chance, outcome.samples)
    return f"warning: {sentence}" if sentence else ""


def against(reference: Outcome, candidate: Outcome, metric: str) -> Paired:
    """Returns the paired comparison of two models on the same samples; the difference is candidate minus reference."""
    if reference.samples != candidate.samples or reference.names != candidate.names:
        raise ConfigError(f"{reference.samples} and {candidate.samples} samples were scored: there is nothing to pair")
    once = np.ones(reference.samples, np.int64)
    at = reference.names.index(metric)
    a, b = float(reference.scores(once)[at]), float(candidate.scores(once)[at])
    if not np.isfinite([a, b]).all():
        raise ConfigError(f"{metric}: there is nothing in the data that counts towards it", "choose another --metric")
    if metric in reference.right:
        first, second = (np.asarray(each.right[metric], np.int64) for each in (reference, candidate))
        only_a, only_b = int((first > second).sum()), int((second > first).sum())
        spread = paired_bootstrap((second - first).tolist())
        test, p_value = "McNemar, exact", mcnemar(only_a, only_b)
        return Paired(metric, len(first), a, b, spread, p_value, test, only_a_right=only_a, only_b_right=only_b)
    drawn = draw(reference, candidate)
    changes = drawn[1][:, at] - drawn[0][:, at]
    without = left_out(candidate)[:, at] - left_out(reference)[:, at] if reference.samples > 1 else np.zeros(0)
    low, high = bca(b - a, changes, without)
    changes = changes[np.isfinite(changes)]
    extreme = min(int((changes <= 0).sum()), int((changes >= 0).sum()))
    p_value = min(1.0, 2 * (extreme + 1) / (len(changes) + 1))
    better = not reference.lower_is_better
    spread = (b - a, low, high)
    return Paired(metric, reference.samples, a, b, spread, p_value, "paired bootstrap", better)

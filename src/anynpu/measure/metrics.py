"""Task metrics: pure functions from inputs, outputs and labels to a score in 0..1, higher is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from anynpu import schema
from anynpu.errors import ConfigError
from anynpu.measure.detection import mean_average_precision
from anynpu.tensors import Array

Tensors = Mapping[str, npt.NDArray[np.generic]]
Metric = Callable[[Tensors, Tensors, npt.NDArray[np.generic]], float]
Values = npt.NDArray[np.float64]


def _only(tensors: Tensors, kind: str) -> npt.NDArray[np.generic]:
    if len(tensors) != 1:
        raise ConfigError(f"this metric takes one {kind} tensor, not {len(tensors)} ({', '.join(tensors) or 'none'})")
    return np.asarray(next(iter(tensors.values())))


def _same_count(values: npt.NDArray[np.generic], labels: npt.NDArray[np.generic]) -> None:
    if len(values) != len(labels) or len(labels) == 0:
        raise ConfigError(f"there are {len(values)} outputs for {len(labels)} labels")


def within_first(scores: Array, labels: Array, count: int) -> Array:
    """Returns for each sample whether its label is among the `count` highest scores; a tie for the last place is not.

    Integers tie often: all scores equal would be right for every sample of class 0 if the first of them counted.
    """
    known = (labels >= 0) & (labels < scores.shape[1])
    own = np.take_along_axis(scores, np.where(known, labels, 0).astype(np.int64)[:, None], axis=1)
    return np.asarray(known & (np.count_nonzero(scores >= own, axis=1) <= count))


def _share_right(scores: npt.NDArray[np.generic], labels: npt.NDArray[np.generic]) -> float:
    _same_count(scores, labels)
    return float(np.mean(within_first(scores, labels, 1)))


def top1(inputs: Tensors, outputs: Tensors, labels: npt.NDArray[np.generic]) -> float:
    """Returns the share of samples whose highest logit is the label; of equal highest logits none counts."""
    scores = _only(outputs, "output")
    return _share_right(scores.reshape(len(scores), -1), labels)


MEAN_CLASSES = 16


def mean_top1(inputs: Tensors, outputs: Tensors, labels: npt.NDArray[np.generic]) -> float:
    """Returns top-1 where the score of class k is the spatial mean of channel k, for the first 16 channels."""
    maps = _only(outputs, "output")
    if maps.ndim != 4 or maps.shape[1] < MEAN_CLASSES:
        raise ConfigError(f"mean_top1 needs NCHW maps of at least {MEAN_CLASSES} channels, not {maps.shape}.")
    return _share_right(maps[:, :MEAN_CLASSES].astype(np.float64).mean(axis=(2, 3)), labels)


def ranks(values: Values) -> Values:
    """Returns ranks from 1, equal values sharing the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[group], np.float64)


def auc(scores: Values, positive: npt.NDArray[np.bool_]) -> float:
    """Returns the area under the ROC curve: the chance that a positive scores above a negative, ties half."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        raise ConfigError("the area under the curve needs both normal and anomalous samples")
    above = ranks(scores)[positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def auc_reconstruction(inputs: Tensors, outputs: Tensors, labels: npt.NDArray[np.generic]) -> float:
    """Returns the AUC of the reconstruction error as anomaly score; label 1 is an anomaly."""
    original, rebuilt = _only(inputs, "input"), _only(outputs, "output")
    _same_count(rebuilt, labels)
    if original.shape != rebuilt.shape:
        raise ConfigError(f"the reconstruction has shape {rebuilt.shape}, the input {original.shape}")
    difference = original.astype(np.float64) - rebuilt.astype(np.float64)
    error = np.mean(difference.reshape(len(original), -1) ** 2, axis=1)
    return auc(error, np.asarray(labels) == 1)


def map50(inputs: Tensors, outputs: Tensors, labels: npt.NDArray[np.generic]) -> float:
    """Returns the mean over classes of the average precision at an overlap of one half."""
    maps = _only(outputs, "output")
    _same_count(maps, labels)
    return mean_average_precision(maps.astype(np.float64), np.asarray(labels, np.float64), overlap=0.5)


METRICS: Mapping[str, Metric] = MappingProxyType(
    {"top1": top1, "mean_top1": mean_top1, "auc_reconstruction": auc_reconstruction, "map50": map50}
)


def score(metric: str, inputs: Tensors, outputs: Tensors, labels: npt.NDArray[np.generic]) -> float:
    """Returns the score of a metric by its name."""
    if metric not in METRICS:
        raise ConfigError(f"no such metric: {metric}{schema.near(metric, METRICS)}", f"known: {', '.join(METRICS)}")
    return METRICS[metric](inputs, outputs, labels)


ENOUGH_LABELS = 20
"""From this many labels on, the commonest of them is a guess to be beaten."""
GUESSES = 10
"""From this many samples on, a guesser's luck is taken into account."""
NO_DETECTOR = 0.01


def chance_of(metric: str, classes: int, labels: npt.NDArray[np.generic]) -> tuple[float, str] | None:
    """Returns what guessing reaches by a metric and how, or None for a metric without such a level."""
    if metric in ("top1", "mean_top1"):
        count = MEAN_CLASSES if metric == "mean_top1" else classes
        counts = np.unique(labels, return_counts=True)[1]
        common = float(counts.max() / counts.sum()) if len(labels) >= ENOUGH_LABELS and len(counts) > 1 else 0.0
        if common > 1 / count:
            return common, "the commonest label for every sample"
        return 1 / count, f"a guess among {count} classes"
    levels = {
        "auc_reconstruction": (0.5, "a guess between normal and anomalous"),
        "map50": (NO_DETECTOR, "next to nothing found"),
        "map50-95": (NO_DETECTOR, "next to nothing found"),
        "spearman": (0.0, "similarities drawn at random"),
        "pearson": (0.0, "similarities drawn at random"),
    }
    return levels.get(metric)


def at_chance(metric: str, reached: float, outputs: Tensors, labels: npt.NDArray[np.generic]) -> list[str]:
    """Returns the warning that a float model's score is no better than chance, if it is not."""
    classes = max(int(np.prod(values.shape[1:])) for values in outputs.values())
    sentence = chance_sentence(metric, reached, chance_of(metric, classes, labels), len(labels))
    return [f"the float model itself: {sentence}"] if sentence else []


def chance_sentence(metric: str, reached: float, chance: tuple[float, str] | None, samples: int) -> str:
    """Returns the sentence on a score that chance reaches too, or nothing."""
    if chance is None or reached >= 1:
        return ""
    level, how = chance
    # One standard deviation of a guesser's score; of a handful of samples a guesser may have all right.
    spread = (level * (1 - level) / samples) ** 0.5 if samples >= GUESSES and level > NO_DETECTOR else 0.0
    if reached > level + spread:
        return ""
    return (
        f"{metric} of {reached:.1%} is no better than chance ({how}: {level:.1%}); check labels, their order and how "
        "inputs are prepared"
    )

"""Task metrics: pure functions from inputs, outputs and labels to a score in 0..1, higher is better."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from anynpu.errors import ConfigError
from anynpu.measure.detection import mean_average_precision

Tensors = Mapping[str, npt.NDArray[np.generic]]
Metric = Callable[[Tensors, Tensors, npt.NDArray[np.generic]], float]
Values = npt.NDArray[np.float64]


def _only(tensors: Tensors, kind: str) -> npt.NDArray[np.generic]:
    if len(tensors) != 1:
        raise ConfigError(f"This metric takes one {kind} tensor, not {len(tensors)} ({', '.join(tensors) or 'none'}).")
    return np.asarray(next(iter(tensors.values())))


def _same_count(values: npt.NDArray[np.generic], labels: npt.NDArray[np.generic]) -> None:
    if len(values) != len(labels) or len(labels) == 0:
        raise ConfigError(f"There are {len(values)} outputs for {len(labels)} labels.")


def _share_right(scores: npt.NDArray[np.generic], labels: npt.NDArray[np.generic]) -> float:
    _same_count(scores, labels)
    return float(np.mean(np.argmax(scores, axis=1) == labels))


def top1(inputs: Tensors, outputs: Tensors, labels: npt.NDArray[np.generic]) -> float:
    """Returns the share of samples whose highest logit is the label; the first of equal logits counts."""
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
        raise ConfigError("The area under the curve needs both normal and anomalous samples.")
    above = ranks(scores)[positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def auc_reconstruction(inputs: Tensors, outputs: Tensors, labels: npt.NDArray[np.generic]) -> float:
    """Returns the AUC of the reconstruction error as anomaly score; label 1 is an anomaly."""
    given, rebuilt = _only(inputs, "input"), _only(outputs, "output")
    _same_count(rebuilt, labels)
    if given.shape != rebuilt.shape:
        raise ConfigError(f"The reconstruction has shape {rebuilt.shape}, the input {given.shape}.")
    difference = given.astype(np.float64) - rebuilt.astype(np.float64)
    error = np.mean(difference.reshape(len(given), -1) ** 2, axis=1)
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
        near = difflib.get_close_matches(metric, METRICS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"choose one of {', '.join(METRICS)}"
        raise ConfigError(f"There is no metric '{metric}'.", hint=hint)
    return METRICS[metric](inputs, outputs, labels)

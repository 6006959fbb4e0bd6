"""Accuracy of two sides on the same labelled samples, judged sample by sample, not as two lone numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anynpu.errors import ConfigError
from anynpu.measure.labels import require_metric
from anynpu.measure.metrics import METRICS, score
from anynpu.measure.significance import mcnemar, paired_bootstrap, sign_flip_test, wilson
from anynpu.tensors import Array, TensorSpec

PER_SAMPLE = ("top1", "mean_top1")
SQUARED_ERROR = "mse"
PAIRED_METRICS = (*METRICS, SQUARED_ERROR)
REDRAWN = 1000
FEW = 100
"""Below this many samples an accuracy is hardly more than its interval."""


@dataclass(frozen=True)
class Paired:
    """One metric on both sides; `difference` is B minus A, and `higher_is_better` says how to read it."""

    metric: str
    samples: int
    a: float
    b: float
    difference: tuple[float, float, float]
    p_value: float
    test: str
    higher_is_better: bool = True
    a_interval: tuple[float, float] | None = None
    b_interval: tuple[float, float] | None = None
    only_a_right: int | None = None
    only_b_right: int | None = None

    @property
    def gain(self) -> float:
        """How much better B is; negative is worse."""
        return self.difference[0] if self.higher_is_better else -self.difference[0]


def metric_of(labels: Array, outputs: Sequence[TensorSpec]) -> str:
    """Returns the metric that labels of this form are for."""
    if len(outputs) == 1 and labels.ndim == 1 and labels.dtype.kind in "iuUS" and math.prod(outputs[0].shape[1:]) > 1:
        return "top1"
    if len(outputs) == 1 and labels.shape[1:] == outputs[0].shape[1:]:
        return SQUARED_ERROR
    raise ConfigError(
        "the labels do not tell how to score the outputs", "name one with --metric: " + ", ".join(METRICS)
    )


def compare_accuracy(
    metric: str, inputs: Mapping[str, Array], a: Mapping[str, Array], b: Mapping[str, Array], labels: Array
) -> Paired:
    """Returns the accuracy of both sides and the paired test: McNemar where a sample is right or wrong."""
    require_metric(metric, PAIRED_METRICS)
    if metric in PER_SAMPLE:
        count, classes = len(labels), next(iter(a.values())).reshape(len(labels), -1).shape[1]
        if metric == "top1" and (labels.min() < 0 or labels.max() >= classes):
            # Such labels are never right, and two sides that are never right would be called no different.
            raise ConfigError(f"labels from {labels.min()} to {labels.max()} for {classes} classes")
        right_a, right_b = (
            np.array([score(metric, inputs, _rows(side, [i]), labels[i : i + 1]) for i in range(count)])
            for side in (a, b)
        )
        only_a, only_b = int((right_a > right_b).sum()), int((right_b > right_a).sum())
        return Paired(
            metric,
            count,
            float(right_a.mean()),
            float(right_b.mean()),
            paired_bootstrap(right_b - right_a),
            mcnemar(only_a, only_b),
            "McNemar, exact",
            a_interval=wilson(int(right_a.sum()), count),
            b_interval=wilson(int(right_b.sum()), count),
            only_a_right=only_a,
            only_b_right=only_b,
        )
    if metric == SQUARED_ERROR:
        errors = []
        for side in (a, b):
            values = np.asarray(next(iter(side.values())), np.float64)
            errors.append(((values - labels) ** 2).reshape(len(labels), -1).mean(axis=1))
        change = errors[1] - errors[0]
        return Paired(
            SQUARED_ERROR,
            len(labels),
            float(errors[0].mean()),
            float(errors[1].mean()),
            paired_bootstrap(change),
            sign_flip_test(change),
            "sign flip of paired differences",
            higher_is_better=False,
        )
    return _redrawn(metric, inputs, a, b, labels)


def _redrawn(
    metric: str, inputs: Mapping[str, Array], a: Mapping[str, Array], b: Mapping[str, Array], labels: Array
) -> Paired:
    """Draws the samples anew, the same for both sides, and scores both: for metrics that are not means of samples."""
    rng = np.random.default_rng(0)
    changes: list[float] = []
    whole = [score(metric, inputs, side, labels) for side in (a, b)]
    while len(changes) < REDRAWN:
        chosen = rng.integers(0, len(labels), len(labels))
        try:
            scores = [score(metric, _rows(inputs, chosen), _rows(side, chosen), labels[chosen]) for side in (a, b)]
        except ConfigError:  # a draw without both kinds of sample has no such score
            if not changes:
                raise
            continue
        changes.append(scores[1] - scores[0])
    differences = np.asarray(changes)
    low, high = np.quantile(differences, (0.025, 0.975))
    extreme = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p_value = min(1.0, 2 * (extreme + 1) / (REDRAWN + 1))
    difference = (whole[1] - whole[0], float(low), float(high))
    return Paired(metric, len(labels), whole[0], whole[1], difference, p_value, "paired bootstrap")


def _rows(tensors: Mapping[str, Array], chosen: Any) -> dict[str, Array]:
    return {name: values[chosen] for name, values in tensors.items()}

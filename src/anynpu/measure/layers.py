"""The error of each layer: inner tensors of an artifact against those of the float model, on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from anynpu.measure.decibels import ratio_db
from anynpu.measure.samples import SampleSet
from anynpu.records.build import GraphForm, GraphNode
from anynpu.runtime.base import stored_inputs
from anynpu.tensors import Array, TensorSpec, by_name

MAX_SAMPLES = 16
MACS_BUDGET = 6_000_000_000
"""What all samples together may cost: about four seconds of LiteRT's reference kernels."""
MAX_MODEL_BYTES = 512 * 2**20
WORST = 10
Counting = Callable[[Mapping[str, Array], Mapping[str, Array]], Mapping[str, Array]]
"""Returns of the float model's tensors of a sample what counts."""


class Inner(Protocol):
    """A session that gives inner tensors as real numbers."""

    inputs: tuple[TensorSpec, ...]

    def tensors(self, inputs: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]: ...


@dataclass(frozen=True)
class Match:
    """A tensor of the artifact and the one of the float model that it stands for.

    `subject` and `reference` are the names in the two files. Where channels were equalised, `factors` are those of the
    last axis, by which the artifact's values are larger.
    """

    name: str
    subject: str
    reference: str
    factors: Array | None = None


@dataclass(frozen=True)
class LayerError:
    """How far one tensor is from the float model's, over all samples."""

    sqnr_db: float
    max_error: float


class Sums:
    """Signal and noise of one tensor, sample by sample."""

    def __init__(self) -> None:
        self.signal = self.noise = self.worst = 0.0

    def add(self, expected: Array, got: Array) -> None:
        """Adds one sample."""
        wanted = np.asarray(expected, np.float64)
        error = np.asarray(got, np.float64) - wanted
        self.signal += float(np.sum(wanted**2))
        self.noise += float(np.sum(error**2))
        self.worst = max(self.worst, float(np.max(np.abs(error), initial=0.0)))

    @property
    def result(self) -> LayerError | None:
        """The error, or None where a value is NaN or infinite."""
        if not np.isfinite([self.signal, self.noise, self.worst]).all():
            return None
        return LayerError(ratio_db(self.signal, self.noise), self.worst)


def sample_count(available: int, macs: int | None, model_bytes: int = 0) -> int:
    """Returns how many samples to run, at most sixteen; 0 says that even one is beyond the budget."""
    if model_bytes > MAX_MODEL_BYTES:
        return 0
    return min(available, MAX_SAMPLES, MACS_BUDGET // max(macs or 1, 1))


def compare_layers(
    subject: Inner,
    reference: Inner,
    matches: Iterable[Match],
    samples: SampleSet,
    like: tuple[TensorSpec, ...],
    progress: Callable[[int, int], None] | None = None,
    counting: Counting = lambda tensors, _: tensors,
) -> dict[str, LayerError]:
    """Returns the error of every matched tensor that both models have, over what counts of it; samples are in the
    layouts of `like`."""
    pairs, specs = list(matches), by_name(like)
    sums: dict[str, Sums] = {}
    for index, sample in enumerate(samples):
        got = _tensors(subject, sample, specs, [m.subject for m in pairs])
        wanted = _tensors(reference, sample, specs, [m.reference for m in pairs])
        for match in pairs:
            ours, theirs = got.get(match.subject), wanted.get(match.reference)
            if ours is None or theirs is None or ours.shape != theirs.shape or theirs.dtype.kind not in "fiu":
                continue
            lifted = ours if match.factors is None else ours / match.factors
            pair = (counting({match.reference: each}, sample)[match.reference] for each in (theirs, lifted))
            sums.setdefault(match.name, Sums()).add(*pair)
        if progress is not None:
            progress(index + 1, len(samples))
    return {name: figures for name, total in sums.items() if (figures := total.result) is not None}


def _tensors(
    model: Any, sample: Mapping[str, Array], like: Mapping[str, TensorSpec], names: Iterable[str]
) -> Mapping[str, Array]:
    tensors: dict[str, Array] = model.tensors(stored_inputs(model, sample, like), names)
    return tensors


def worst_layers(graph: GraphForm, count: int = WORST) -> list[tuple[GraphNode, float | None]]:
    """Returns the nodes of a graph with the lowest SQNR, each with what it lost against its inputs: the SQNR of its
    worst compared input less its own, which is large where a fault begins."""
    known = [pair for pair in zip(graph.nodes, layer_losses(graph), strict=True) if pair[0].sqnr_db is not None]
    return sorted(known, key=lambda pair: pair[0].sqnr_db or 0.0)[:count]


def layer_losses(graph: GraphForm) -> list[float | None]:
    """Returns for every node how much lower its SQNR is than that of its worst compared input."""
    errors = {name: tensor.sqnr_db for name, tensor in graph.tensors.items() if tensor}
    losses: list[float | None] = []
    for node in graph.nodes:
        before = [error for name in node.inputs if (error := errors.get(name)) is not None]
        losses.append(min(before) - node.sqnr_db if before and node.sqnr_db is not None else None)
    return losses

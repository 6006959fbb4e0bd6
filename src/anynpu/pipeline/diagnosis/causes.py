"""The causes of lost accuracy that have names. Each is a small function; its docstring is what the user reads.

A cause is looked for where an operator itself makes a large error. What came with its inputs has its cause elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from anynpu.graph.outline import NodeOutline
from anynpu.pipeline.diagnosis.figures import Figures
from anynpu.quantize.followers import Pointwise
from anynpu.records.diagnosis import BAD_DB, Cause

_MASK = 100.0
"""Scores that lie so far below the largest are masked: exp(-100) is nothing."""
_SPREAD = 1 / 16
_UNLIKE = 8.0
_OUTLIER = 8.0
_LEVELS = 8.0
_WIDE = 1.4
_SOFTMAX = ("Softmax", "SOFTMAX")
_CONCAT = ("Concat", "CONCATENATION")
_GATHER = ("Gather", "GATHER", "EMBEDDING_LOOKUP")
_ROOT = ("Sqrt", "SQRT", "RSQRT", "Reciprocal")
_MEAN = ("ReduceMean", "MEAN", "ReduceSum", "SUM")
_INSIDE_NORM = (
    *_ROOT, *_MEAN, "Pow", "Sub", "Mul", "Add", "Div", "SUB", "MUL", "ADD", "DIV", "SQUARED_DIFFERENCE", "SQUARE"
)  # fmt: skip
_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "GroupNormalization")
_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "RESHAPE", "TRANSPOSE")
_NEAR = 6
"""A normalisation that is written out has at most this many operators before and behind its root."""


@dataclass(frozen=True)
class Case:
    """One build: its operators in order, the figures of its tensors, and which tensors are constants."""

    nodes: tuple[NodeOutline, ...]
    figures: Mapping[str, Figures]
    constants: frozenset[str]
    outputs: tuple[str, ...]
    calibration_samples: int | None = None
    zero_weights: frozenset[str] = frozenset()
    """Constants of two axes or more that hold nothing but zeros."""

    def makers(self) -> dict[str, NodeOutline]:
        return {name: node for node in self.nodes for name in node.outputs}

    def bad(self, kinds: tuple[str, ...] = ()) -> Iterator[tuple[NodeOutline, Figures]]:
        """Yields the operators, of some kinds, that make a large error of their own in 8 bits."""
        for node in self.nodes:
            figures = self.figures.get(node.outputs[0])
            if figures and figures.bits == 8 and figures.made_db < BAD_DB and (not kinds or node.kind in kinds):
                yield node, figures


Rule = Callable[[Case], Iterator[Cause]]


def mask_constant(case: Case) -> Iterator[Cause]:
    """A mask of large negative numbers shares a scale with the scores that a softmax reads."""
    makers = case.makers()
    for node in case.nodes:
        name = node.inputs[0] if node.kind in _SOFTMAX and node.inputs else ""
        while name in makers and makers[name].kind in _MOVES:
            name = makers[name].inputs[0]
        scores = case.figures.get(name)
        if scores and scores.bits == 8 and scores.step and scores.limits[0] < scores.high - _MASK and scores.step > 0.5:
            yield Cause(
                cause="mask constant",
                tensor=name,
                evidence=f"masked scores reach {scores.low:.3g}, so that one step of the integers is {scores.step:.3g}",
                repair="mask with -30, or let anynpu bound the mask (method=auto)",
            )


def norm_in_8_bits(case: Case) -> Iterator[Cause]:
    """The squares, the mean or the root of a normalisation are stored in 8 bits."""
    inside = _inside_norms(case)
    for node, figures in case.bad():
        if node.kind in _NORMS or node.outputs[0] in inside:
            yield Cause(
                cause="norm in 8 bits",
                tensor=figures.name,
                evidence=f"{node.kind} of a normalisation keeps {figures.made_db:.1f} dB of what it computes",
                repair="compute normalisations whole or in 16 bits (the default of anynpu), or -O activations=int16",
            )


def softmax_in_8_bits(case: Case) -> Iterator[Cause]:
    """A softmax that spreads over many places is stored in steps as large as its results."""
    for _, figures in case.bad(_SOFTMAX):
        if figures.high < _SPREAD:
            yield Cause(
                cause="softmax in 8 bits",
                tensor=figures.name,
                evidence=f"the largest share is {figures.high:.3g}, one step of the integers {figures.step:.3g}",
                repair="compute the softmax in 16 bits or in floating point",
            )


def embedding_table(case: Case) -> Iterator[Cause]:
    """Rows of an embedding table that differ in size share one scale."""
    for node, figures in case.bad(_GATHER):
        if node.inputs and node.inputs[0] in case.constants:
            yield Cause(
                cause="embedding table",
                tensor=figures.name,
                evidence=f"the rows looked up keep {figures.made_db:.1f} dB; the largest value is {figures.high:.3g}",
                repair="give the table 16 bits, or leave it in floating point",
            )


def unlike_branches(case: Case) -> Iterator[Cause]:
    """Branches of very different size are joined under one scale."""
    for node in case.nodes:
        joined = case.figures.get(node.outputs[0]) if node.kind in _CONCAT else None
        branches = [case.figures[name] for name in node.inputs if name in case.figures and case.figures[name].rms > 0]
        if joined is None or joined.bits != 8 or joined.step is None or len(branches) < 2:
            continue
        loud, quiet = max(branches, key=lambda b: b.rms), min(branches, key=lambda b: b.rms)
        kept_db = 20 * np.log10(quiet.rms * np.sqrt(12) / joined.step)
        if loud.rms > _UNLIKE * quiet.rms and kept_db < BAD_DB:
            yield Cause(
                cause="unlike branches under one scale",
                tensor=joined.name,
                evidence=(
                    f"{loud.name} has values of {loud.rms:.3g} (rms), {quiet.name} of {quiet.rms:.3g}; "
                    f"one step of their common scale is {joined.step:.3g}"
                ),
                repair="make the branches outputs of their own, or join them behind the model (a detector: --task)",
            )


def outlier_channels(case: Case) -> Iterator[Cause]:
    """A few loud channels take the integers of all others."""
    for node in case.nodes:
        figures = case.figures.get(node.outputs[0])
        if figures is None or figures.bits != 8 or figures.step is None or figures.peaks.size < 4:
            continue
        if node.kind in (*_CONCAT, *_MOVES, *_SOFTMAX):
            continue  # its channels come from elsewhere
        loudest, usual = float(figures.peaks.max()), float(np.median(figures.peaks))
        if not (loudest > _OUTLIER * usual > 0 and usual < _LEVELS * figures.step):
            continue
        loud = int(np.count_nonzero(figures.peaks > loudest / 2))
        yield Cause(
            cause="outlier channels",
            tensor=figures.name,
            evidence=(
                f"{loud} of {figures.peaks.size} channels reach {loudest:.3g}, half of them stay below {usual:.3g}, "
                f"which is {usual / (figures.step or 1):.1f} steps"
            ),
            repair="equalise the channels (-O equalize=true), or -O activations=int16",
        )


def range_before_activation(case: Case) -> Iterator[Cause]:
    """A range holds values that the activation behind it turns into nothing."""
    for figures in case.figures.values():
        followed = figures.followed
        if followed is None or not isinstance(followed.follower, Pointwise) or figures.bits != 8 or not figures.step:
            continue
        if figures.factors is not None:
            continue  # what the activation needs of a channel that was made louder is not known here
        needed = followed.limits(figures.low, figures.high, 8)
        width = max(needed[1], 0.0) - min(needed[0], 0.0)
        stored = 255 * figures.step
        end = _behind(case, figures.name)
        if width and stored > _WIDE * width and end is not None and end.made_db < BAD_DB:
            yield Cause(
                cause="range before an activation",
                tensor=figures.name,
                evidence=(
                    f"{stored:.3g} wide where {width:.3g} would do: the activation makes nothing of the rest; "
                    f"{end.made_db:.1f} dB are kept behind it"
                ),
                repair="choose ranges by the error behind the activation (-O method=auto)",
            )


def before_activations(case: Case) -> dict[str, tuple[str, ...]]:
    """Returns the 8-bit tensors before activations, by the tensor behind where their error is judged."""
    before: dict[str, tuple[str, ...]] = {}
    for figures in case.figures.values():
        end = _behind(case, figures.name) if figures.followed is not None and figures.bits == 8 else None
        if end is not None:
            before[end.name] = (*before.get(end.name, ()), figures.name)
    return before


def _behind(case: Case, name: str) -> Figures | None:
    """Returns the figures of the first tensors behind one that have an error of their own."""
    waiting, seen = [name], set[str]()
    while waiting:
        source = waiting.pop(0)
        for node in case.nodes:
            if source in node.inputs and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                figures = case.figures.get(node.outputs[0])
                if figures is not None and figures.followed is None and figures.made > 0:
                    return figures
                waiting.append(node.outputs[0])
        if len(seen) > _NEAR:
            return None
    return None


def foreign_calibration(case: Case) -> Iterator[Cause]:
    """Samples reach beyond the ranges that the calibration data gave."""
    for figures in case.figures.values():
        bad = figures.bits == 8 and figures.made_db < BAD_DB and figures.followed is None
        if bad and figures.clipped > 0.5 * figures.made:
            low, high = figures.limits
            count = case.calibration_samples
            yield Cause(
                cause="too little or foreign calibration data",
                tensor=figures.name,
                evidence=(
                    f"values from {figures.low:.3g} to {figures.high:.3g} where the calibration left room from "
                    f"{low:.3g} to {high:.3g}" + (f" ({count} calibration samples)" if count else "")
                ),
                repair="calibrate with more samples, and with samples like those that the model will see",
            )


def dead_rectifier(case: Case) -> Iterator[Cause]:
    """An operator gives nothing but zeros, whatever the sample."""
    # Weights of zeros are how a branch of a residual net begins, or what pruning leaves: nothing died there.
    silent = {*case.zero_weights}
    for node in case.nodes:
        figures = case.figures.get(node.outputs[0])
        if figures is not None and figures.count and (figures.low, figures.high) != (0.0, 0.0):
            continue
        if silent & {*node.inputs}:
            silent |= {*node.outputs}
        elif figures is not None and figures.count:
            yield Cause(
                cause="dead rectifier",
                tensor=figures.name,
                evidence=f"{node.kind} gives 0 for all {figures.count} values in the float model itself",
                repair="check the checkpoint and how the samples are prepared: what is behind it sees no input",
            )
            return  # what is behind it is dead as well


def _inside_norms(case: Case) -> set[str]:
    """Returns the results of the operators of normalisations that are written out."""
    makers = case.makers()
    inside: set[str] = set()
    for root in case.nodes:
        if root.kind not in ("Sqrt", "SQRT", "RSQRT"):
            continue
        before, waiting = list[NodeOutline](), list(root.inputs)
        while waiting and len(before) < _NEAR:
            maker = makers.get(waiting.pop(0))
            if maker is not None and maker.kind in _INSIDE_NORM and maker not in before:
                before.append(maker)
                waiting += maker.inputs
        if not any(node.kind in _MEAN for node in before):
            continue
        behind, name = list[NodeOutline](), root.outputs[0]
        for _ in range(3):
            readers = [node for node in case.nodes if name in node.inputs]
            if len(readers) != 1 or readers[0].kind not in _INSIDE_NORM:
                break
            behind.append(readers[0])
            name = readers[0].outputs[0]
        inside |= {node.outputs[0] for node in (*before, root, *behind)}
    return inside


RULES: tuple[Rule, ...] = (
    dead_rectifier,
    mask_constant,
    norm_in_8_bits,
    softmax_in_8_bits,
    embedding_table,
    unlike_branches,
    foreign_calibration,
    range_before_activation,
    outlier_channels,
)


def causes_of(case: Case) -> tuple[Cause, ...]:
    """Returns every cause that is found, each once, at its worst place; a tensor has one cause, the first that fits."""
    causes: list[Cause] = []
    explained: set[str] = set()
    for rule in RULES:
        places = [cause for cause in rule(case) if cause.tensor not in explained]
        if places:
            worst = min(places, key=lambda cause: case.figures[cause.tensor].made_db)
            causes.append(replace(worst, places=len(places)))
            explained |= {cause.tensor for cause in places}
    return tuple(causes)

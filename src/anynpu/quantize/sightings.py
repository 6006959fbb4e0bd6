"""What one run over the samples says of a float model, for passes that make channels equally loud and for its ranges.

A pass multiplies channels by factors, and takes them back elsewhere: what a tensor reaches afterwards is what it
reached before, times the factors. So the limits of each channel in each sample are kept where channels may become
louder, and the model is not run again for each pass, and once more for the ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from anynpu.artifact import PassEffect
from anynpu.memory import give_back
from anynpu.quantize.adequacy import SampleLimits
from anynpu.quantize.averages import needed
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.channels import by_channel, channel_rows
from anynpu.quantize.equalize import ChannelPeaks, pairs
from anynpu.quantize.functions import followers
from anynpu.quantize.gates import gates
from anynpu.quantize.measured import measurable
from anynpu.quantize.net import Floats, Form, Net
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Progress, Range, RangeCollector, collect
from anynpu.quantize.repairs import levelled, proof_places
from anynpu.quantize.sketch import Sketch
from anynpu.quantize.smooth import branches, norms
from anynpu.tensors import Array

MOST_BYTES = 64 << 20
"""Channels that would take more are not kept: the model runs again."""
F = TypeVar("F", bound=Form)


@dataclass(frozen=True)
class Derived:
    """A tensor whose limits follow from those of others: its values need not be read."""

    sources: tuple[str, ...]
    limits: Callable[..., Array]
    """Computes its smallest and largest values from those of its sources."""


@dataclass
class Sightings:
    """The limits of every tensor of a float model, and of the channels of some, in each sample."""

    axes: Mapping[str, int]
    collector: RangeCollector
    sketch: Sketch | None = None
    order: Sequence[str] = ()
    """The tensors of the model, what is computed behind what it is computed from."""
    derived: Mapping[str, Derived] = field(default_factory=dict)
    lows: dict[str, list[Array]] = field(default_factory=dict)
    highs: dict[str, list[Array]] = field(default_factory=dict)
    answers: dict[int, dict[str, Array]] = field(default_factory=dict)
    """What the model answers to the samples on which its passes are proved, where that is little."""

    def observe(self, tensors: Mapping[str, Array], sample: int, count: int) -> None:
        """Adds one of `count` samples."""
        ends: dict[str, Array] = {}
        for name in self.order:
            if (follows := self.derived.get(name)) is not None:
                if ends.keys() >= {*follows.sources}:  # whole numbers have no limits
                    ends[name] = follows.limits(*(ends[source] for source in follows.sources))
            elif (array := tensors.get(name)) is not None and array.dtype.kind == "f" and array.size:
                ends[name] = _ends(array, self.axes.get(name))
        for name in self.axes:
            self.lows.setdefault(name, []).append(ends[name][0])
            self.highs.setdefault(name, []).append(ends[name][1])
        self.collector.observe_limits(
            {**{name: ends[name] for name in self.derived if name in ends}, **tensors}, sample, ends
        )
        if self.sketch is not None:
            self.sketch.observe(tensors, sample, count)

    def peaks(self, form: Form, axes: Mapping[str, int], samples: Sequence[int]) -> ChannelPeaks | None:
        """Returns the largest magnitude of each channel of some tensors of a graph that the first has become, over the
        samples that are named; None where it is not known."""
        known: dict[str, Floats] = {}
        for name, axis in axes.items():
            origin = form.origins.get(name)
            source = name if origin is None else origin.tensor
            if self.axes.get(source) != axis:
                return None
            reached = [np.abs(side[source])[list(samples)].max(axis=0) for side in (self.lows, self.highs)]
            factors = 1.0 if origin is None or origin.factors is None else origin.factors
            known[name] = np.maximum(*reached).astype(np.float64) * factors
        return ChannelPeaks(dict(axes), known)

    def behind(self, form: Form) -> RangeCollector | None:
        """Returns what the samples say of the tensors of a graph that the first has become; None where it is not known
        without running it."""
        moved = {name: (each.tensor, each.factors) for name, each in form.origins.items()}
        if any(factors is not None and tensor not in self.axes for tensor, factors in moved.values()):
            return None
        reached = {
            name: (
                (np.stack(self.lows[tensor]) * factors.astype(np.float32)).min(axis=1),
                (np.stack(self.highs[tensor]) * factors.astype(np.float32)).max(axis=1),
            )
            for name, (tensor, factors) in moved.items()
            if factors is not None
        }
        same = {name: tensor for name, (tensor, factors) in moved.items() if factors is None}
        net = form.net()
        same |= {name: name for name in sorted(net.computed) if name not in moved}
        return self.collector.of(followers(net), same, reached)


def louder(net: Net, between_layers: bool) -> dict[str, int]:
    """Returns the tensors whose channels a pass may make louder, with their channel axes."""
    axes = {name: -1 for norm in norms(net) for name in (norm.result, *norm.moved, *norm.inner)}
    axes |= {name: -1 for branch in branches(net) for name in branch.tensors}
    for gate in gates(net):
        axes |= dict.fromkeys((gate.sigmoid.inputs[0], gate.result, *gate.padded), gate.maker.channel_axis)
    for pair in pairs(net) if between_layers else ():
        axes |= dict.fromkeys((*pair.tensors, pair.observed), pair.first.channel_axis)
    return axes


def derived(net: Net, axes: Mapping[str, int]) -> dict[str, Derived]:
    """Returns the tensors whose limits, along `axes` where these name one, follow from those of others."""
    result: dict[str, Derived] = {}
    # Something stored, empty or of a shape that is not known is read.
    known = {name for name in net.computed if 0 not in net.shapes.get(name, (0,))}
    for each in net.operations:
        sigmoid = each.function if each.kind == "sigmoid" else None  # it rises
        name, sources = each.result, each.joins if sigmoid is None else each.inputs[:1]
        if not sources or not known.issuperset(sources):
            continue
        axis, of_source = axes.get(name), axes.get(sources[0])
        if each.kind == "pad":
            # No channel may be padding alone where limits of channels are kept.
            if axis is None or (axis == of_source and net.shapes[name][axis] == net.shapes[sources[0]][axis]):
                result[name] = Derived(sources, _with_zero)
        elif axis is None:
            result[name] = Derived(sources, sigmoid or _joined)
    return result


def _ends(values: Array, axis: int | None) -> Array:
    """Returns the smallest and the largest value, of each channel where an axis is named."""
    if axis is None:
        return np.stack([values.min(), values.max()])
    rows = channel_rows(values, axis)
    return np.stack([by_channel(np.minimum, rows), by_channel(np.maximum, rows)])


def _with_zero(ends: Array) -> Array:
    return np.stack([np.minimum(ends[0], 0), np.maximum(ends[1], 0)])


def _joined(*ends: Array) -> Array:
    return np.stack([np.min([each[0].min() for each in ends]), np.max([each[1].max() for each in ends])])


def sighted(
    form: Form,
    data: Dataset,
    collector: RangeCollector,
    axes: Mapping[str, int],
    sketch: Sketch | None,
    progress: Progress | None,
) -> Sightings | None:
    """Returns what the samples say of a float model, of its channels along `axes`; None where that is not enough: where
    rows of padding count for ranges and not for channels, or ranges take two passes."""
    net = form.net()
    sizes = sum(net.shapes[name][axis] for name, axis in axes.items())
    if data.padding is not None or collector.passes > 1 or 8 * sizes * data.count > MOST_BYTES:
        return None
    looked_at = {*collector.followed, *net.outputs}
    if sketch is not None:
        looked_at |= sketch.axes.keys() | sketch.averaged.keys()
    order = [*sorted(net.computed - net.makers.keys()), *net.makers]
    seen = Sightings(axes, collector, sketch, order, derived(net, axes))
    run = form.run(net.computed - (seen.derived.keys() - looked_at))
    outputs = net.outputs & net.computed
    places = proof_places(data) if axes else []
    if 4 * len(places) * sum(math.prod(net.shapes[name]) for name in outputs) > MOST_BYTES:
        places = []
    for index in range(data.count):
        tensors = run(data.sample(index))
        seen.observe(tensors, index, data.count)
        if index in places:
            seen.answers[index] = {name: np.array(tensors[name]) for name in outputs}
        if progress is not None:
            progress(index + 1, data.count)
    return seen


@dataclass(frozen=True)
class Calibrated(Generic[F]):
    """A float model whose channels are equally loud, with the ranges of its tensors."""

    form: F
    effects: tuple[PassEffect, ...]
    ranges: dict[str, Range]
    observed: SampleLimits
    sketch: Sketch | None = None
    """What is kept of the model for biases, where it is."""


def calibrated(
    form: F, data: Dataset, plan: QuantPlan, level: bool, between_layers: bool, progress: Progress | None = None
) -> Calibrated[F]:
    """Returns a float model with the ranges that the samples give its tensors, after the passes that `level` asks for;
    outputs are not clipped, except to powers of two, of which the next is twice as wide."""
    how = plan.method, plan.percentile, plan.bits, plan.symmetric
    net, effects = form.net(), tuple[PassEffect, ...]()
    whole = frozenset[str]() if plan.power_of_two else net.outputs
    collector = RangeCollector(*how, followers(net), SampleLimits(), plan.power_of_two)
    sketch = needed(net, measurable(net, (), data), data) if plan.bias_correction else None
    seen = sighted(form, data, collector, louder(net, between_layers) if level else {}, sketch, progress)
    give_back()
    if level:
        form, effects = levelled(form, data, between_layers, seen)
    known = None if seen is None else seen.behind(form)
    if known is not None and known.observed is not None:
        return Calibrated(form, effects, known.ranges(whole), known.observed, sketch)
    observed = SampleLimits()
    behind = followers(form.net())
    ranges = collect(form.run(), data, *how, progress, whole, behind, observed, plan.power_of_two)
    return Calibrated(form, effects, ranges, observed, None if seen is None else sketch)

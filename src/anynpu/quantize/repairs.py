"""What is changed in a float graph before it is quantised, in whichever form it is: channels become equally loud, and
what rounding will do to weights is made up for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from anynpu.artifact import PassEffect
from anynpu.graph import passes
from anynpu.graph.agreement import Run, difference, spread
from anynpu.graph.passes import Pass
from anynpu.quantize.averages import Averages, averages, biased
from anynpu.quantize.bias import ChannelMeans, lost_mean, rounding_error
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.equalize import ChannelPeaks, pairs
from anynpu.quantize.fitting import FITTING_SAMPLES, Moments, fitted
from anynpu.quantize.gates import gates
from anynpu.quantize.net import Change, Form, Layer, Net
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range
from anynpu.quantize.smooth import branches, norms
from anynpu.quantize.weights import planned_scales
from anynpu.tensors import Array

if TYPE_CHECKING:
    from anynpu.quantize.sightings import Sightings

SMOOTHING_SAMPLES = 32
"""The loudness of channels around normalisations and gates shows in a few samples."""
PROOF_SAMPLES = 4
"""On how many samples a graph whose channels were made equally loud is executed beside the one before."""
F = TypeVar("F", bound=Form)


def levelled(
    form: F, data: Dataset, between_layers: bool = True, seen: Sightings | None = None
) -> tuple[F, tuple[PassEffect, ...]]:
    """Returns the graph with channels equally loud where one scale serves them, and what each pass did; it is executed
    beside the given one on some samples. What was `seen` of the graph is not run again."""
    plan: list[Pass[F]] = [
        Pass("smooth", "channels around normalisations become equally loud", lambda graph: smoothed(graph, data, seen)),
        Pass(
            "level-gates",
            "channels of x * sigmoid(x) between layers become equally loud",
            lambda graph: gates_levelled(graph, data, seen),
        ),
    ]
    if between_layers:
        does = "channels between two layers become equally loud"
        plan.append(Pass("equalize", does, lambda graph: equalized(graph, data, seen)))
    samples = {at: data.sample(at) for at in proof_places(data)}

    def compare(before: F, after: F) -> str:
        outputs = before.net().outputs
        run = cache(lambda: before.run(outputs))
        known = seen.answers if seen is not None and before is form else {}
        names = sorted(outputs & {*(known[0] if known else run()(samples[0]))})

        def reference(feed: Mapping[str, Array]) -> list[Array]:
            place = next((at for at, sample in samples.items() if sample is feed), None)
            return _named(names, known[place] if place in known else run()(dict(feed)))

        def opened() -> Run:
            candidate = after.run(names)
            return lambda feed: _named(names, candidate(dict(feed)))

        return difference(names, reference, opened, [*samples.values()])

    return passes.run(plan, form, compare)


def proof_places(data: Dataset) -> list[int]:
    """Returns the samples on which a graph is executed beside the one before; the first is one of them."""
    return spread(data.count, min(data.count, PROOF_SAMPLES))


def smoothed(form: F, data: Dataset, seen: Sightings | None = None) -> tuple[F, int]:
    """Returns the graph with channels around normalisations equally loud, and in how many places they are."""
    net = form.net()
    results, lifted = norms(net), branches(net)
    axes = {each.tensors[0]: -1 for each in lifted} | {norm.result: -1 for norm in results}
    peaks = channel_peaks(form, axes, data, seen, SMOOTHING_SAMPLES)
    change = Change(net)
    for branch in lifted:
        branch.lift(change, peaks)
    for norm in results:
        norm.smooth(change, peaks)
    return form.changed(change), len(results) + len(lifted)


def gates_levelled(form: F, data: Dataset, seen: Sightings | None = None) -> tuple[F, int]:
    """Returns the graph with level gates where their channels differ much, and how many there are."""
    net = form.net()
    gated = gates(net)
    axes = {gate.result: gate.maker.channel_axis for gate in gated}
    peaks = channel_peaks(form, axes, data, seen, SMOOTHING_SAMPLES)
    change = Change(net)
    for gate in gated:
        gate.level(change, peaks)
    return form.changed(change), len(change.restored)


def equalized(form: F, data: Dataset, seen: Sightings | None = None) -> tuple[F, int]:
    """Returns the graph with channels between two layers equally loud, and between how many."""
    net = form.net()
    neighbours = pairs(net)
    peaks = channel_peaks(form, {pair.observed: pair.first.channel_axis for pair in neighbours}, data, seen)
    change = Change(net)
    for pair in neighbours:
        pair.equalize(change, peaks)
    return form.changed(change), len(neighbours)


def channel_peaks(
    form: Form, axes: dict[str, int], data: Dataset, seen: Sightings | None, samples: int | None = None
) -> ChannelPeaks:
    """Returns the largest magnitude of each channel of some tensors, by their channel axes, over the data, or over
    about this many samples."""
    indices = range(0, data.count, max(1, data.count // (samples or data.count)))
    if seen is not None and (known := seen.peaks(form, axes, indices)) is not None:
        return known
    peaks = ChannelPeaks(axes)
    run = data.counted(form.run([*axes])) if axes else None
    for index in indices if run is not None else ():
        assert run is not None
        peaks.observe(run(data.sample(index)))
    return peaks


def _named(names: Sequence[str], answers: Mapping[str, Array]) -> list[Array]:
    """Returns copies of some answers, which a run may only lend."""
    return [np.array(answers[name]) for name in names]


def rounded(
    form: F,
    data: Dataset,
    plan: QuantPlan,
    ranges: Mapping[str, Range],
    in_float: Collection[str] = (),
    exact: Averages | None = None,
) -> tuple[F, tuple[PassEffect, ...]]:
    """Returns the graph with weights and biases that make up for rounding, and what each pass did.

    `in_float` are results of operators that the plan leaves in floating point, `exact` the averages of the graph.
    """
    chosen: list[Pass[F]] = []
    if plan.rounding == "fitted":
        does = "weights are rounded against the inputs that they meet"
        fit: Callable[[F], tuple[F, int]] = lambda graph: weights_fitted(graph, data, plan)  # noqa: E731
        chosen.append(Pass("fitted-weights", does, fit, keeps_results=False))
    if plan.bias_correction:
        does = "biases take back what rounding takes from the mean of an output"
        correct: Callable[[F], tuple[F, int]] = lambda graph: biases_corrected(  # noqa: E731
            graph, data, plan, ranges, in_float, exact
        )
        chosen.append(Pass("bias-correction", does, correct, keeps_results=False))
    return passes.run(chosen, form)


def weights_fitted(form: F, data: Dataset, plan: QuantPlan) -> tuple[F, int]:
    """Returns the graph with weights replaced by what is stored of them, rounded against their inputs, and how many.

    Those next to tensors that the plan leaves in floating point stay: nothing rounds them.
    """
    net = form.net()
    layers = [
        (operation.inputs[0], layer)
        for operation in net.operations
        if (layer := operation.layer) is not None and net.own(layer.weights)
        if layer.window is not None or (layer.dense and layer.bias)
        if not {operation.result, operation.inputs[0]} & {*plan.float_tensors}
    ]
    moments = [Moments() for _ in layers]
    run = data.counted(form.run([name for name, _ in layers])) if layers else None
    for index in range(min(data.count, FITTING_SAMPLES) if run is not None else 0):
        assert run is not None
        computed = run(data.sample(index))
        for (name, layer), each in zip(layers, moments, strict=True):
            if layer.window is None:
                each.rows(computed[name].reshape(-1, layer.inputs))
            else:
                for image in np.moveaxis(computed[name], layer.channel_axis, 1):
                    each.image(image if image.ndim == 3 else image[:, np.newaxis], layer.window)
    change = Change(net)
    for (_, layer), each in zip(layers, moments, strict=True):
        rows = layer.rows(net.constant(layer.weights))
        axis = 0 if plan.scale_for_each(layer.dense) else None
        scales = planned_scales(rows, axis, plan.weight_bits, plan)
        values = fitted(rows.reshape(len(rows), -1), each, scales, plan.weight_bits)
        change.stored[layer.weights] = layer.stored(values.reshape(rows.shape).astype(np.float32))
    return form.changed(change), len(layers)


def biases_corrected(
    form: F,
    data: Dataset,
    plan: QuantPlan,
    ranges: Mapping[str, Range],
    in_float: Collection[str] = (),
    exact: Averages | None = None,
) -> tuple[F, int]:
    """Returns the graph with every bias plus what rounding will take from the mean of its output, and how many; `exact`
    is known already if it is of this graph."""
    net = form.net()
    means = exact.inputs if exact is not None and exact.form is form else averages(form, data, plan, ranges).inputs
    change = Change(net)
    for source, layer, result in biased(net):
        if result not in in_float:
            change.stored[layer.bias] = corrected_bias(net, source, layer, means, plan)
    return form.changed(change), len(change.stored)


def corrected_bias(net: Net, source: str, layer: Layer, means: ChannelMeans, plan: QuantPlan) -> Array:
    """Returns a bias plus what rounding will take from the mean of its output."""
    rows = layer.rows(net.constant(layer.weights).astype(np.float64))
    axis = 0 if plan.scale_for_each(layer.dense) else None
    kept = rows - rounding_error(rows, axis, plan.weight_bits, plan)
    exact, stored = (np.moveaxis(each.reshape(*each.shape[:2], -1), 1, 2) for each in (rows, kept))
    shift, bias = lost_mean(exact, stored, means, source), net.constant(layer.bias)
    return bias + shift.astype(np.float32).reshape(bias.shape)

"""Changes to a float .tflite file before it is quantised: channels become equally loud, and what rounding will do to
weights is made up for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from anynpu.artifact import PassEffect
from anynpu.graph import passes
from anynpu.graph.agreement import difference, spread
from anynpu.graph.passes import Pass
from anynpu.quantize.bias import channel_means
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.equalize import ChannelPeaks
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range
from anynpu.quantize.tflite_weights import (
    correct_biases,
    equalizable_pairs,
    equalize_pair,
    fit_weights,
    weighted_inputs,
)
from anynpu.runtime.litert import DELEGATED, open_interpreter
from anynpu.runtime.tflite_file import (
    activation_indices,
    border_names,
    pack_model,
    shared_model,
    with_own_buffers,
)
from anynpu.tensors import Array

SMOOTHING_SAMPLES = 32
"""The loudness of channels around normalisations shows in a few samples."""
PROOF_SAMPLES = 4
"""On how many samples a changed file is executed beside the given one."""
Smoother = Callable[[bytes, Callable[[Sequence[str]], ChannelPeaks]], tuple[bytes, dict[str, list[float]]]]


@dataclass(frozen=True)
class FloatFile:
    """A float .tflite file, and by how much the channels of its tensors are louder than in the first one."""

    content: bytes
    factors: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def operators(self) -> Sequence[Any]:
        """The operators in it, as the file has them."""
        found: Sequence[Any] = shared_model(self.content).subgraphs[0].operators
        return found


def levelled(
    file: FloatFile, data: Dataset, smooth: Smoother | None = None
) -> tuple[FloatFile, tuple[PassEffect, ...]]:
    """Returns the file with channels equally loud, and what each pass did; it is executed beside the given one."""

    def smoothed(given: FloatFile) -> tuple[FloatFile, int]:
        if smooth is None:
            return given, 0
        content, factors = smooth(given.content, lambda names: peaks(given.content, data, names, SMOOTHING_SAMPLES))
        return FloatFile(content, {**given.factors, **factors}), len(factors)

    does = "channels around normalisations and of x * sigmoid(x) become equally loud"
    plan = (
        Pass("smooth", does, smoothed),
        Pass("equalize", "channels between two layers become equally loud", lambda given: equalized(given, data)),
    )
    samples = [data.sample(at) for at in spread(data.count, min(data.count, PROOF_SAMPLES))]

    def compare(before: FloatFile, after: FloatFile) -> str:
        model = shared_model(before.content)
        real = {*activation_indices(model).values()}
        names = [name for name in border_names(model)[1] if name in real]
        return difference(names, _outputs(before, names), lambda: _outputs(after, names), samples)

    return passes.run(plan, file, compare)


def rounded(
    file: FloatFile, data: Dataset, plan: QuantPlan, ranges: Mapping[str, Range], in_float: Collection[str]
) -> tuple[FloatFile, tuple[PassEffect, ...]]:
    """Returns the file with weights and biases that make up for rounding, and what each pass did.

    `in_float` are results of operators that the plan leaves in floating point.
    """
    per_channel, bits = plan.weights == "per-channel", plan.weight_bits

    def fitted(given: FloatFile) -> tuple[FloatFile, int]:
        model = with_own_buffers(shared_model(given.content))
        count = fit_weights(model, runner(given.content), data, per_channel, bits)
        return replace(given, content=pack_model(model)), count

    def corrected(given: FloatFile) -> tuple[FloatFile, int]:
        model = with_own_buffers(shared_model(given.content))
        inputs = weighted_inputs(model)
        means = channel_means(runner(given.content, inputs, reuse=True), data, inputs, ranges, plan)
        correct_biases(model, means, per_channel, bits, in_float)
        return replace(given, content=pack_model(model)), len(inputs)

    chosen = []
    if plan.rounding == "fitted":
        does = "weights are rounded against the inputs that they meet"
        chosen.append(Pass("fitted-weights", does, fitted, keeps_results=False))
    if plan.bias_correction:
        does = "biases take back what rounding takes from the mean of an output"
        chosen.append(Pass("bias-correction", does, corrected, keeps_results=False))
    return passes.run(chosen, file)


def _outputs(file: FloatFile, names: Sequence[str]) -> Callable[[Mapping[str, Array]], list[Array]]:
    run = runner(file.content, names)

    def outputs(feed: Mapping[str, Array]) -> list[Array]:
        answers = run(dict(feed))
        return [answers[name] for name in names]

    return outputs


def equalized(file: FloatFile, data: Dataset) -> tuple[FloatFile, int]:
    """Returns the file with the channels between its layers made equally loud, and between how many."""
    model, factors = with_own_buffers(shared_model(file.content)), dict(file.factors)
    pairs = equalizable_pairs(model)
    loudest = peaks(file.content, data, [pair.tensor for pair in pairs])
    for pair in pairs:
        factors[pair.tensor] = equalize_pair(model, pair, loudest.peak(pair.tensor)).tolist()
    return FloatFile(pack_model(model), factors), len(pairs)


def peaks(content: bytes, data: Dataset, names: Sequence[str], samples: int | None = None) -> ChannelPeaks:
    """Returns the largest magnitude of each channel of some tensors over the data, or over about this many samples."""
    found = ChannelPeaks(dict.fromkeys(names, -1))
    run = runner(content, names, reuse=True) if names else None
    for index in range(0, data.count, max(1, data.count // (samples or data.count))):
        if run is not None:
            found.observe(run(data.sample(index)))
    return found


def runner(
    content: bytes, names: Collection[str] = (), reuse: bool = False
) -> Callable[[dict[str, Array]], dict[str, Array]]:
    """Returns a function that gives every activation of a float .tflite file for one sample, or those named.

    With `reuse` it gives the same arrays for every sample, with other numbers in them: nobody may keep them.
    """
    model = with_own_buffers(shared_model(content))
    graph = model.subgraphs[0]
    fed = {int(index) for index in graph.inputs}
    tensors = {index: name for index, name in activation_indices(model).items() if not names or name in names}
    made = [index for index in tensors if index not in fed]
    # XNNPACK, which is four times as fast as the kernels without a delegate, keeps inner tensors to itself: as outputs
    # of the graph they come out of it.
    graph.outputs, model.signatureDefs = np.asarray(made or graph.outputs, np.int32), None
    interpreter = open_interpreter(pack_model(model), DELEGATED, threads=1)
    inputs = {entry["name"]: entry["index"] for entry in interpreter.get_input_details()}
    indices = {entry["name"]: entry["index"] for entry in interpreter.get_output_details() if made}
    kept: dict[str, Array] = {}

    def run(sample: dict[str, Array]) -> dict[str, Array]:
        for name, array in sample.items():
            interpreter.set_tensor(inputs[name], np.ascontiguousarray(array))
        interpreter.invoke()
        answers = {name: sample[name] for index, name in tensors.items() if index in fed}
        for name, index in indices.items():
            if reuse and name in kept:
                np.copyto(kept[name], interpreter.tensor(index)())
            else:
                kept[name] = np.asarray(interpreter.get_tensor(index))  # a tensor without axes comes as a number
            answers[name] = kept[name]
        return answers

    return run

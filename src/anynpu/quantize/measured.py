"""Biases measured behind the function that follows, layer by layer in the order of execution.

What rounding does to the mean of a layer's output is only part of what it does behind a SiLU: a convex function lifts
the mean of whatever is noisy, a maximum takes the noise that is largest, and every layer hands both on. So the rounded
model is executed in pieces, each of which ends with a convolution before such a function, or with one whose result is
the model's. There the mean of each channel behind the function is brought back to that of the float model, before the
next piece is executed on what this one gives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from anynpu.graph.agreement import spread
from anynpu.quantize.bias import channel_mean, kept
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.followers import Pointwise
from anynpu.quantize.functions import followers, functions
from anynpu.quantize.net import Change, Floats, Net
from anynpu.quantize.onnx_net import OnnxForm
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range, quantization_for
from anynpu.runtime.ort import open_session
from anynpu.tensors import Array

SAMPLES = 48
"""As many as memory allows: all that is alive between two pieces is kept for each of them. On 16 pictures the means of
a detector were too uncertain to gain anything."""
FEWEST = 32
_NUDGE = 0.01
_FLATTEST = 0.1
"""The slope behind which a bias hardly moves a mean: it is not asked to make up for more."""
_FARTHEST = 0.5
"""How far a bias may move, in standard deviations of what it is added to."""
Values = dict[str, list[Array]]


@dataclass(frozen=True)
class Place:
    """A convolution whose bias is measured, by its result, and the result of the function behind it."""

    result: str
    bias: str
    behind: str
    function: Pointwise | None

    def of(self, values: Array) -> Array:
        """Returns what the function makes of values."""
        return values if self.function is None else np.asarray(self.function.function(values), values.dtype)


def places(net: Net, unrounded: Collection[str]) -> list[Place]:
    """Returns the convolutions before functions of one tensor that is rounded at both ends, and the model's last."""
    # A rectifier is part of its layer, and nothing is rounded before it.
    ends = {source: end for source, (_, end) in functions(net).items() if net.makers[end].kind != "rectifier"}
    behind = followers(net)
    found = []
    for operation in net.operations:
        layer, result = net.owned_layer(operation), operation.result
        if layer is None or layer.window is None or not layer.bias or result in unrounded:
            continue
        function = behind.get(result)
        if isinstance(function, Pointwise) and result in ends and ends[result] not in unrounded:
            found.append(Place(result, layer.bias, ends[result], function))
        elif result in net.outputs and not net.readers.get(result):
            found.append(Place(result, layer.bias, result, None))
    return found if any(place.function for place in found) else []


def biases_measured(
    form: OnnxForm,
    exact: OnnxForm,
    quantised: onnx.ModelProto,
    data: Dataset,
    plan: QuantPlan,
    ranges: Mapping[str, Range],
    unrounded: Collection[str],
) -> tuple[OnnxForm, int]:
    """Returns the float model with the biases that its quantised form needs to keep the means that `exact`, the model
    as it was before anything made up for rounding, has behind its functions; and how many were measured."""
    net = form.net()
    chosen = places(net, unrounded)
    if not chosen or data.count < FEWEST:
        return form, 0
    samples = [data.sample(at) for at in spread(data.count, min(data.count, SAMPLES))]
    targets = _targets(exact, chosen, samples)
    names = {node.output[0]: node.name for node in form.model.graph.node}
    by_node = {names[place.result]: place for place in chosen}

    def stored(name: str, values: Array) -> Array:
        dtype = plan.stored_type(name)
        if dtype == "float32":
            return values
        return kept(values, quantization_for(ranges[name], dtype, dtype == "int16"), dtype)

    change, start = Change(net), 0
    alive: Values = {name: [sample[name] for sample in samples] for name in samples[0]}
    for stop, node in enumerate(quantised.graph.node, 1):
        if (place := by_node.get(node.name)) is None:
            continue
        alive = _executed(quantised, start, stop, alive)
        results, start = alive[node.output[0]], stop
        means = [channel_mean(stored(place.behind, place.of(stored(place.result, each))), 1) for each in results]
        shift = targets[place.result].shift(np.mean(means, axis=0))
        change.stored[place.bias] = np.asarray(change.values(place.bias) + shift, np.float32)
        for each in results:
            each += shift.reshape(1, -1, 1, 1)
    return form.changed(change), len(change.stored)


@dataclass
class _Target:
    """What the float model gives behind a function: the mean of each channel, how much a bias moves it, and how far
    what the bias is added to spreads."""

    mean: Floats
    slope: Floats
    spread: Floats

    def shift(self, mean: Floats) -> Array:
        """Returns what brings the means of channels back to those of the float model."""
        steep = np.where(np.abs(self.slope) < _FLATTEST, np.copysign(_FLATTEST, self.slope), self.slope)
        farthest = _FARTHEST * self.spread
        return np.clip((self.mean - mean) / steep, -farthest, farthest).astype(np.float32)


def _targets(form: OnnxForm, chosen: Sequence[Place], samples: Sequence[dict[str, Array]]) -> dict[str, _Target]:
    run = form.run([place.result for place in chosen])
    rows: dict[str, list[tuple[Floats, Floats, Floats]]] = {place.result: [] for place in chosen}
    for sample in samples:
        computed = run(sample)
        for place in chosen:
            values = computed[place.result]
            rise = place.of(values + _NUDGE) - place.of(values - _NUDGE)
            means = channel_mean(place.of(values), 1), channel_mean(rise, 1) / (2 * _NUDGE)
            rows[place.result].append((*means, values.std(axis=(0, 2, 3)).astype(np.float64)))
    return {name: _Target(*np.mean(each, axis=0)) for name, each in rows.items()}


def _executed(model: onnx.ModelProto, start: int, stop: int, alive: Values) -> Values:
    """Returns what later nodes of a model read, and what the last of these gives; `alive` is that before them."""
    nodes = list(model.graph.node)
    piece, later = nodes[start:stop], {name for node in nodes[stop:] for name in node.input}
    read = {name for node in piece for name in node.input}
    wanted = sorted(({name for node in piece for name in node.output} & later) | {piece[-1].output[0]})
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[0].dtype), values[0].shape)
        for name, values in alive.items()
        if name in read
    ]
    stored = [tensor for tensor in model.graph.initializer if tensor.name in read]
    part = helper.make_graph(piece, "piece", inputs, [onnx.ValueInfoProto(name=name) for name in wanted], stored)
    whole = helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
    session = open_session(whole.SerializeToString(), threads=1)
    count = len(next(iter(alive.values())))
    rows = [session.run(wanted, {value.name: alive[value.name][at] for value in inputs}) for at in range(count)]
    computed = {name: [row[at] for row in rows] for at, name in enumerate(wanted)}
    return {name: values for name, values in alive.items() if name in later} | computed

"""Channel equalisation: a layer's quiet channels are made as loud as its loudest, the next layer takes it back.

Between two layers only a rectifier may stand, so lifting an output channel and lowering the weights it meets changes
nothing but the use that a per-tensor activation scale makes of its integers. A ceiling (ReLU6) stays true for what the
calibration data reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from anynpu.quantize.channels import by_channel, channel_rows
from anynpu.quantize.net import Change, Floats, Layer, Net, Operation
from anynpu.tensors import Array

# A channel that is nearly silent is not worth any factor.
MAX_FACTOR = 64.0
# How far a quiet channel is lifted towards the loudest: new data may be a little louder than the calibration data.
HEADROOM = 0.9
# What is quieter than this is silent.
SMALLEST_PEAK = 1e-6
# A gate costs one more product: it is levelled where the median channel has fewer than 32 of 256 integers.
UNEVEN = 8.0
# The largest factor of a gate: more would leave the loud channels too few integers of its argument.
MAX_GATE = 16.0


class ChannelPeaks:
    """Collects the largest magnitude of each channel of some tensors over all samples."""

    def __init__(self, axes: dict[str, int], peaks: Mapping[str, Floats] = MappingProxyType({})) -> None:
        self._axes = axes
        self._peaks = dict(peaks)

    def observe(self, tensors: Mapping[str, Array]) -> None:
        """Adds one sample."""
        for name, axis in self._axes.items():
            rows = channel_rows(tensors[name], axis)
            peak = np.maximum(np.abs(by_channel(np.maximum, rows)), np.abs(by_channel(np.minimum, rows)))
            self._peaks[name] = np.maximum(self._peaks.get(name, 0.0), peak.astype(np.float64))

    def peak(self, name: str) -> Floats:
        return self._peaks[name]


def channel_factors(peak: Floats, strength: float) -> Floats:
    """Returns the factor of each channel: 1 for the loudest, and what lifts a quiet one towards it.

    `strength` 1 lifts it all the way, which is free where each channel has a weight scale of its own behind it; 0.5
    shares the loss between activations and weights.
    """
    top = float(peak.max())
    if top <= 0.0:
        return np.ones_like(peak)
    ratio = np.maximum(HEADROOM * top / np.maximum(peak, top / MAX_FACTOR), 1.0)
    return np.asarray(np.where(peak > 0.0, ratio**strength, 1.0))


def smoothing_factors(peak: Floats, weights: Floats) -> Floats:
    """Returns the factor of each channel of a normalisation's result: the loss is shared with the weights behind it.

    `peak` is the largest magnitude of each channel, `weights` that of the weights it meets.
    """
    ratio = np.maximum(weights, SMALLEST_PEAK) / np.maximum(peak, SMALLEST_PEAK)
    factors = np.sqrt(ratio)
    factors /= np.exp(np.log(factors).mean())
    return np.asarray(np.clip(factors, 1 / MAX_FACTOR, MAX_FACTOR))


def gate_factors(peak: Floats) -> Floats | None:
    """Returns the factor of each channel of what a gate x * sigmoid(x) gives, or None where its channels are even.

    Powers of two: their inverses, which stand before the sigmoid, are nearly exact in eight bits.
    """
    heard = peak[peak > SMALLEST_PEAK]
    if not heard.size or float(heard.max()) < UNEVEN * float(np.median(heard)):
        return None
    halves = np.rint(np.log2(channel_factors(peak, 0.5)))
    return np.asarray(np.minimum(2.0**halves, MAX_GATE))


@dataclass(frozen=True)
class Pair:
    """Two layers, and what stands between them: the result of the first, rectified and padded."""

    first: Layer
    second: Layer
    tensors: tuple[str, ...]
    observed: str
    """What the second layer reads, before it is padded."""

    def equalize(self, change: Change, peaks: ChannelPeaks) -> None:
        """Lifts the quiet channels between the layers, and lowers the weights that meet them.

        All the way before a depthwise layer, whose channels have a weight scale each; half the way before another.
        """
        factors = channel_factors(peaks.peak(self.observed), 1.0 if self.second.depthwise else 0.5)
        change.lift(self.first, factors)
        change.take_back(self.second, factors)
        change.louder(self.tensors, factors, self.first.channel_axis)


def pairs(net: Net) -> list[Pair]:
    """Returns the pairs of layers between which channels may be scaled."""
    scalable = []
    for operation in net.operations:
        first = net.owned_layer(operation)
        tensors, observed = [operation.result], operation.result
        reader = _only_reader(operation, net)
        while reader is not None and reader.kind in ("rectifier", "pad") and first is not None:
            tensors.append(reader.result)
            observed = reader.result if reader.kind == "rectifier" else observed
            reader = _only_reader(reader, net)
        if first is None or reader is None or not (operation.plain or operation.rectified):
            continue
        second = net.taking(reader, tensors[-1], first.shape[first.output_axis])
        whole = second is not None and (second.groups == 1 or second.shape[second.output_axis] == second.groups)
        if second is not None and whole and second.channel_axis == first.channel_axis:
            scalable.append(Pair(first, second, tuple(tensors), observed))
    return scalable


def _only_reader(operation: Operation, net: Net) -> Operation | None:
    """Returns the operation that alone reads what another gives, as its data."""
    reader = net.readers[operation.result][0] if net.alone(operation.result) else None
    return reader if reader is not None and reader.inputs[0] == operation.result else None

"""Makes the channels around normalisations equally loud, so that eight bits serve all of them (SmoothQuant).

What a normalisation gives is smoothed: its scale and bias take the factors, the dense layers behind it take them back
in their weights. Whatever else reads the result, such as a residual sum, reads it through a product with the inverse
factors. The results of dense layers that are rounded before a sum of more bits are lifted: each of their channels has a
weight scale of its own, so that costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anynpu.quantize.equalize import ChannelPeaks, channel_factors, smoothing_factors
from anynpu.quantize.net import Change, Layer, Net, Operation


@dataclass(frozen=True)
class Norm:
    """What a normalisation gives: its stored scale and bias, the layers behind it, and whoever else reads it."""

    result: str
    parameters: tuple[str, ...]
    moved: tuple[str, ...]
    layers: tuple[Layer, ...]
    others: tuple[Operation, ...]
    inner: tuple[str, ...] = ()
    """What is scaled already, where the scale is a product and the bias a sum of its own."""

    def smooth(self, change: Change, peaks: ChannelPeaks) -> None:
        """Shares the loudness of the result with the weights behind it."""
        weights = [np.abs(layer.rows(change.values(layer.weights))) for layer in self.layers]
        loudest = np.max([each.max(axis=(0, *range(2, each.ndim))) for each in weights], axis=0)
        factors = smoothing_factors(peaks.peak(self.result), loudest.astype(np.float64))
        for name in self.parameters:
            change.scale(name, factors.reshape(change.values(name).shape))
        for layer in self.layers:
            change.take_back(layer, factors)
        change.louder((self.result, *self.moved, *self.inner), factors)
        change.restore(self.result, self.others)


@dataclass(frozen=True)
class Branch:
    """A dense layer whose result is rounded before a sum of more bits, directly or behind a reshape."""

    layer: Layer
    tensors: tuple[str, ...]
    sum: Operation

    def lift(self, change: Change, peaks: ChannelPeaks) -> None:
        """Lifts the quiet channels to the loudest, and lowers them again before the sum."""
        factors = channel_factors(peaks.peak(self.tensors[0]), 1.0)
        change.lift(self.layer, factors)
        change.louder(self.tensors, factors)
        change.restore(self.tensors[-1], (self.sum,))


def norms(net: Net) -> list[Norm]:
    """Returns what normalisations give and dense layers with weights of their own read."""
    matches = [_norm(operation, net) for operation in net.operations if operation.result not in net.outputs]
    return [norm for norm in matches if norm is not None]


def _norm(operation: Operation, net: Net) -> Norm | None:
    result, parameters = operation.result, _parameters(operation, net)
    channels = net.shapes[result][-1] if parameters and net.shapes.get(result) else 0
    if not channels or any(net.constant(name).shape[-1:] != (channels,) for name in parameters):
        return None
    if any(net.constant(name).size != channels for name in parameters):
        return None
    moved, others, layers = list[str](), list[Operation](), list[Layer]()
    for reader in net.readers.get(result, ()):
        behind = [(reader, result)]
        if reader.reshapes and reader.moves == result and reader.result not in net.outputs:
            behind = [(each, reader.result) for each in net.readers.get(reader.result, ())]
        taking = [layer for each, name in behind if (layer := net.taking(each, name, channels)) and layer.dense]
        if not behind or len(taking) < len(behind):
            others.append(reader)
            continue
        layers += taking
        moved += [reader.result] if behind[0][0] is not reader else []
    # Behind a root the sums have more bits than eight, so that a product with the inverse factors costs nothing there.
    if not layers or (others and operation.kind != "norm" and not _is_normalised(operation, net)):
        return None
    inner = tuple(name for name in operation.inputs if name not in net.stored) if operation.kind == "add" else ()
    return Norm(result, parameters, tuple(moved), tuple(layers), tuple(others), inner)


def _parameters(operation: Operation, net: Net) -> tuple[str, ...]:
    """Returns the stored scale and bias of what an operation gives: a normalisation, or the end of one."""
    if operation.kind == "norm":
        return operation.parameters if net.own(*operation.parameters) else ()
    own = tuple(name for name in operation.inputs if net.own(name))
    source = next((name for name in operation.inputs if name not in net.stored), "")
    if len(own) != 1 or not source or not operation.plain:
        return ()
    if operation.kind == "add" and net.alone(source) and (maker := net.makers.get(source)) is not None:
        scale = tuple(name for name in maker.inputs if net.own(name)) if maker.kind == "multiply" else ()
        return (*scale, *own) if len(scale) == 1 and maker.plain else ()
    if operation.kind != "multiply" or not _is_normalised(operation, net):
        return ()
    readers = net.readers.get(operation.result, ())
    ends = len(readers) == 1 and readers[0].kind == "add" and _parameters(readers[0], net)
    return () if ends else own


def _is_normalised(operation: Operation, net: Net) -> bool:
    """Tells whether what an operation scales and moves was divided by a root right before."""
    while operation.kind in ("add", "multiply") and any(name in net.stored for name in operation.inputs):
        before = net.makers.get(next((name for name in operation.inputs if name not in net.stored), ""))
        if before is None:
            return False
        operation = before
    if operation.kind not in ("multiply", "divide"):
        return False
    makers = {name: net.makers.get(name) for name in operation.inputs}
    return any(maker is not None and maker.kind == "root" and net.alone(name) for name, maker in makers.items())


def branches(net: Net) -> list[Branch]:
    """Returns the dense layers whose results are rounded, and read by a sum of more bits alone."""
    rounded = []
    for operation in net.operations:
        layer = net.owned_layer(operation)
        if layer is None or not layer.dense or not operation.plain:
            continue
        tensors = [operation.result]
        if net.alone(tensors[0]) and (reader := net.readers[tensors[0]][0]).reshapes:
            if [*net.shapes[reader.result]][-1:] != [*net.shapes[tensors[0]]][-1:]:
                continue
            tensors.append(reader.result)
        reader = net.readers[tensors[-1]][0] if net.alone(tensors[-1]) else operation
        if reader.kind == "add" and reader.result in net.fine:
            rounded.append(Branch(layer, tuple(tensors), reader))
    return rounded

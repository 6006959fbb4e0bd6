"""Level gates: the channels of x * sigmoid(x) between layers are made equally loud.

A rectifier passes a factor on, a SiLU does not: s * silu(x) is not silu(s * x). But it is (s * x) * sigmoid(x), so the
layer before it takes the factors, a product with their inverses stands before the sigmoid, and the weights behind the
gate take them back. Nothing changes but the use that one scale for all channels makes of its integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from anynpu.quantize.equalize import ChannelPeaks, gate_factors
from anynpu.quantize.net import Change, Layer, Net, Operation


@dataclass(frozen=True)
class Gate:
    """A layer, the sigmoid of its result, what the gate gives, what padding makes of that, and the layers behind."""

    maker: Layer
    sigmoid: Operation
    result: str
    padded: tuple[str, ...]
    behind: tuple[Layer, ...]

    def level(self, change: Change, peaks: ChannelPeaks) -> None:
        """Makes the channels equally loud where they differ much."""
        factors = gate_factors(peaks.peak(self.result))
        if factors is None:
            return
        change.lift(self.maker, factors)
        for layer in self.behind:
            change.take_back(layer, factors)
        source = self.sigmoid.inputs[0]
        change.louder((source, self.result, *self.padded), factors, self.maker.channel_axis)
        change.restore(source, (self.sigmoid,))


def gates(net: Net) -> list[Gate]:
    """Returns the gates that one layer makes and only layers read."""
    matches = [_gate(operation, net) for operation in net.operations if operation.kind == "sigmoid"]
    return [gate for gate in matches if gate is not None]


def _gate(sigmoid: Operation, net: Net) -> Gate | None:
    source = sigmoid.inputs[0]
    maker, product = net.makers.get(source), net.readers[sigmoid.result][0] if net.alone(sigmoid.result) else sigmoid
    if maker is None or not maker.plain or not product.plain or product.kind != "multiply":
        return None
    layer, result = net.owned_layer(maker), product.result
    gated = {*product.inputs} == {source, sigmoid.result} and net.uses[source] == 2
    if layer is None or not gated or source not in net.shapes:
        return None
    channels = layer.shape[layer.output_axis]
    pads = [each for each in net.readers.get(result, ()) if each.kind == "pad" and each.inputs[0] == result]
    padded = tuple(pad.result for pad in pads)
    read = [(each, name) for name in (result, *padded) for each in net.readers.get(name, ()) if each not in pads]
    behind = [net.taking(each, name, channels) for each, name in read]
    taken = tuple(each for each in behind if each is not None and each.channel_axis == layer.channel_axis)
    if not taken or len(taken) < len(read) or net.outputs & {source, result, *padded}:
        return None
    return Gate(layer, sigmoid, result, padded, taken)

"""What the float model gives on average, from one run over the samples: of what its layers read, and behind functions.

Two repairs need it, and running the model costs more than both of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from anynpu.quantize.bias import ChannelMeans
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.measured import Targets, measurable, sampled
from anynpu.quantize.net import Form, Layer, Net
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range


@dataclass(frozen=True)
class Averages:
    """The averages of a float model."""

    form: Form
    inputs: ChannelMeans
    """Of what layers with a bias read."""
    targets: Targets
    """What measured biases bring back."""


def averages(
    form: Form, data: Dataset, plan: QuantPlan, ranges: Mapping[str, Range], unrounded: Collection[str] | None = None
) -> Averages:
    """Returns the averages of a float model over the samples; without `unrounded`, the tensors that stay in floating
    point, those of what layers read alone."""
    net = form.net()
    axes = {source: layer.channel_axis for source, layer, _ in biased(net)}
    places = [] if unrounded is None else measurable(net, unrounded, data)
    means, targets = ChannelMeans(axes, ranges, plan), Targets(places, ranges)
    if not axes:
        return Averages(form, means, targets)
    run, measured = form.run({*axes, *targets.names}), {*sampled(data)} if places else ()
    counted = data.counting(run)
    for index in range(data.count):
        sample = data.sample(index)
        tensors = run(sample)
        means.observe(counted(tensors, sample))
        if index in measured:
            targets.observe(tensors)
    return Averages(form, means, targets)


def biased(net: Net) -> list[tuple[str, Layer, str]]:
    """Returns the layers with a bias of their own, each with what it reads and what it gives."""
    return [
        (operation.inputs[0], layer, operation.result)
        for operation in net.operations
        if (layer := operation.layer) is not None and layer.bias and net.own(layer.bias)
    ]

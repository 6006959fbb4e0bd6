"""What the float model gives on average, from one run over the samples: of what its layers read, and behind functions.

Two repairs need it, and running the model costs more than both of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from anynpu.quantize.bias import ChannelMeans
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.measured import Place, Targets, measurable, sampled
from anynpu.quantize.net import Form, Layer, Net
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range
from anynpu.quantize.sketch import Sketch, sketched


@dataclass(frozen=True)
class Averages:
    """The averages of a float model."""

    form: Form
    inputs: ChannelMeans
    """Of what layers with a bias read."""
    targets: Targets
    """What measured biases bring back."""


def averages(
    form: Form,
    data: Dataset,
    plan: QuantPlan,
    ranges: Mapping[str, Range],
    unrounded: Collection[str] | None = None,
    seen: Sketch | None = None,
) -> Averages:
    """Returns the averages of a float model over the samples; without `unrounded`, the tensors that stay in floating
    point, those of what layers read alone. What was `seen` of the model that this one came from is not run again."""
    net = form.net()
    places = [] if unrounded is None else measurable(net, unrounded, data)
    wanted = needed(net, places, data)
    sketch = None if seen is None else seen.of(form.origins, wanted.axes, wanted.averaged)
    if sketch is None:
        sketch = sketched(form, data, wanted) if wanted.axes else wanted
    return Averages(form, ChannelMeans(sketch, ranges, plan), Targets(sketch, places, ranges))


def needed(net: Net, places: Sequence[Place], data: Dataset) -> Sketch:
    """Returns an empty sketch of what layers with a bias read, and of what is around measured biases."""
    axes = {source: layer.channel_axis for source, layer, _ in biased(net)}
    axes |= {name: place.axis for place in places for name in (place.result, place.behind)}
    return Sketch(axes, {place.behind: place.axis for place in places}, {*sampled(data)} if places else ())


def biased(net: Net) -> list[tuple[str, Layer, str]]:
    """Returns the layers with a bias of their own, each with what it reads and what it gives."""
    return [
        (operation.inputs[0], layer, operation.result)
        for operation in net.operations
        if (layer := operation.layer) is not None and layer.bias and net.own(layer.bias)
    ]

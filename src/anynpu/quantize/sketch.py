"""What is kept of the tensors of a float model from one run over the samples, for repairs that come when its ranges are
known: some rows of every sample, and the means of channels where a rounded model is compared with them.

How rounding and clipping move a mean, how steep a function is and how far values spread, some thousand rows say as well
as all of them do. So the model is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from anynpu.quantize.calibration import Dataset
from anynpu.quantize.channels import by_channel, channel_rows
from anynpu.quantize.net import Floats, Form, Origin
from anynpu.tensors import Array

ROWS = 5120
"""How many rows of a tensor are kept over all samples, or one of each sample."""
MOST_BYTES = 48 << 20
"""Fewer rows are kept where they would take more."""
_STRIDE = (5**0.5 - 1) / 2
"""Its multiples fall evenly between whole numbers, however many there are: rows come from everywhere in a map."""


@dataclass(frozen=True)
class Sketch:
    """Rows of some tensors, by their channel axes, out of each sample; and the means of the channels of others in
    those samples that are named in `measured`."""

    axes: Mapping[str, int]
    averaged: Mapping[str, int]
    measured: Collection[int] = ()
    rows: dict[str, list[Array]] = field(default_factory=dict)
    means: dict[str, list[Array]] = field(default_factory=dict)

    def observe(self, tensors: Mapping[str, Array], sample: int, count: int) -> None:
        """Adds one of `count` samples."""
        every = {name: channel_rows(tensors[name], axis) for name, axis in {**self.axes, **self.averaged}.items()}
        width = 4 * count * sum(every[name].shape[1] for name in self.axes)
        most = max(min(ROWS // count, MOST_BYTES // max(width, 1)), 1)
        places = np.arange(sample * most, (sample + 1) * most) * _STRIDE % 1.0
        for name in self.axes:
            rows = every[name]
            some = rows[(places * len(rows)).astype(np.intp)] if len(rows) > most else rows
            self.rows.setdefault(name, []).append(np.array(some, np.float32, order="C"))
        for name in self.averaged if sample in self.measured else ():
            mean = by_channel(np.add, every[name]) / max(len(every[name]), 1)
            self.means.setdefault(name, []).append(mean)

    def of(self, origins: Mapping[str, Origin], axes: Mapping[str, int], averaged: Mapping[str, int]) -> Sketch | None:
        """Returns what is kept of tensors of a graph that the first has become, None where that is not all."""
        result = Sketch(axes, averaged, self.measured)
        for wanted, own, kept, copy in (
            (axes, self.axes, self.rows, result.rows),
            (averaged, self.averaged, self.means, result.means),
        ):
            for name, axis in wanted.items():
                origin = origins.get(name, Origin(name))
                if own.get(origin.tensor) != axis:
                    return None
                factors = 1 if origin.factors is None else origin.factors.astype(np.float32)
                copy[name] = [each * factors for each in kept[origin.tensor]]
        return result

    def mean(self, name: str, of: Callable[[Array], Array], measured: bool = False) -> Floats:
        """Returns the mean of each channel of what `of` makes of the rows, every sample with the same weight, or every
        `measured` one."""
        samples = [each for at, each in enumerate(self.rows[name]) if not measured or at in self.measured]
        sizes = [len(each) for each in samples]
        weights = np.repeat(1 / (len(sizes) * np.maximum(sizes, 1)), sizes).astype(np.float32)
        return np.asarray(weights @ of(np.concatenate(samples)), np.float64)

    def average(self, name: str) -> Floats:
        """Returns the mean of each channel over all rows of the measured samples."""
        return np.asarray(np.mean(self.means[name], axis=0, dtype=np.float64))


def sketched(form: Form, data: Dataset, sketch: Sketch) -> Sketch:
    """Returns the sketch with all samples in it; rows of padding do not count."""
    run = form.run({*sketch.axes, *sketch.averaged})
    counted = data.counted(run)
    for index in range(data.count):
        sketch.observe(counted(data.sample(index)), index, data.count)
    return sketch

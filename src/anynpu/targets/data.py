"""Calibration samples as the emitters want them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError
from anynpu.measure.samples import read_samples
from anynpu.quantize.calibration import Dataset
from anynpu.tensors import TensorSpec, by_name, relayout


def require_data(data: Artifact | None, target: str) -> Artifact:
    """Returns the calibration data, or says that it is needed."""
    if data is None:
        raise ConfigError(
            f"{target} needs calibration data",
            "give --data with an .npy, .npz, a folder of images or file.py:generator; --data random:64 if you must",
        )
    return data


def dataset(folder: Path) -> Dataset:
    """Returns the samples of a data artifact."""
    samples = read_samples(folder)
    return Dataset(dict(samples.inputs), samples.labels, str(folder))


def moved(data: Dataset, source: Sequence[TensorSpec], wanted: Sequence[TensorSpec]) -> Dataset:
    """Returns the samples with their axes in the layouts of `wanted`."""
    specs = by_name(source)
    inputs = {spec.name: relayout(data.inputs[spec.name], specs[spec.name].layout, spec.layout) for spec in wanted}
    return Dataset(inputs, data.labels, data.origin, data.random)

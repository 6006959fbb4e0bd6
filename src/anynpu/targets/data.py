"""Calibration samples as the emitters want them."""

from __future__ import annotations

from pathlib import Path

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError
from anynpu.measure.samples import read_samples
from anynpu.quantize.calibration import Dataset


def require_data(data: Artifact | None, target: str) -> Artifact:
    """Returns the calibration data, or says that it is needed."""
    if data is None:
        raise ConfigError(
            f"{target} needs calibration data",
            "give --data with an .npy, .npz, a folder of images or file.py:generator; --data random:64 if you must",
        )
    return data


def dataset(folder: Path) -> Dataset:
    """Returns the samples of a data artifact, which stay in its file: all of them may be more than the model takes."""
    samples = read_samples(folder, in_file=True)
    return Dataset(dict(samples.inputs), samples.labels, str(folder))

"""Sets of samples as files: what calibration and verification read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu.arrays import map_npz, read_npz
from anynpu.errors import AnyNpuError, IntegrityError
from anynpu.tensors import Array

FILE = "samples.npz"
LABELS = "labels"
INPUT = "input:"


@dataclass(frozen=True)
class SampleSet:
    """Inputs by name, the first axis counting samples, and labels where there are some."""

    inputs: Mapping[str, Array]
    labels: Array | None = None

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def first(self, count: int) -> SampleSet:
        """Returns the first `count` samples."""
        labels = None if self.labels is None else self.labels[:count]
        return SampleSet({name: values[:count] for name, values in self.inputs.items()}, labels)

    def after(self, count: int) -> SampleSet:
        """Returns all samples but the first `count`."""
        labels = None if self.labels is None else self.labels[count:]
        return SampleSet({name: values[count:] for name, values in self.inputs.items()}, labels)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """Yields each sample with its batch axis of one."""
        for index in range(len(self)):
            yield {name: values[index : index + 1] for name, values in self.inputs.items()}


def write_samples(folder: Path, samples: SampleSet) -> None:
    """Writes the set into `folder`; equal sets give equal files."""
    arrays = {INPUT + name: values for name, values in samples.inputs.items()}
    if samples.labels is not None:
        arrays[LABELS] = samples.labels
    np.savez(folder / FILE, **arrays)  # type: ignore[arg-type]  # numpy types the keywords as its own options


def read_samples(folder: Path, in_file: bool = False) -> SampleSet:
    """Returns the set that `write_samples` wrote; its arrays may stay in the file until they are read."""
    try:
        arrays = map_npz(folder / FILE) if in_file else read_npz(folder / FILE)
    except AnyNpuError as error:
        raise IntegrityError(f"{folder / FILE}: not a set of samples ({error.message})") from error
    labels = arrays.pop(LABELS, None)
    return SampleSet({name.removeprefix(INPUT): values for name, values in arrays.items()}, labels)

"""Calibration data: loaded from where the user says, checked against the inputs it is for, never made up unasked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from anynpu.arrays import forget
from anynpu.errors import ConfigError, IntegrityError
from anynpu.measure.sources import (
    LABELS,
    check_size,
    existing,
    generator_of,
    is_folder,
    is_random,
    random_numbers,
    read,
)
from anynpu.quantize.padding import Counting, Given, Padding
from anynpu.schema import near
from anynpu.tasks.images import Preprocess, class_folders, find_images
from anynpu.tensors import Array, TensorSpec

__all__ = [
    "Dataset",
    "Preprocess",
    "checked",
    "content_digest",
    "distinct",
    "load_data",
    "sample_digests",
    "source_digest",
    "split_holdout",
]

_PROBES = 256
"""In how many places of each input samples are compared before they are read whole."""


@dataclass(frozen=True)
class Dataset:
    """Samples for every input of a model: name -> (count, *shape without the batch axis)."""

    inputs: dict[str, Array]
    labels: Array | None
    origin: str
    random: bool = False
    folders: tuple[str, ...] = ()
    """The sub-folders that the labels number, where the samples are images."""
    available: int = 0
    """How many samples the source holds, where that is known."""
    padding: Padding | None = None
    """What of the samples no answer depends on."""

    def __post_init__(self) -> None:
        counts = {name: len(array) for name, array in self.inputs.items()}
        if not counts or 0 in counts.values():
            raise ConfigError(f"{self.origin} holds no samples")
        if len(set(counts.values())) != 1:
            raise ConfigError(f"{self.origin}: inputs differ in their number of samples: {counts}")
        if self.labels is not None and len(self.labels) != self.count:
            raise ConfigError(f"{self.origin}: {len(self.labels)} labels for {self.count} samples")

    @property
    def count(self) -> int:
        return len(next(iter(self.inputs.values())))

    def __len__(self) -> int:
        return self.count

    def sample(self, index: int) -> dict[str, Array]:
        """Returns one sample with a batch axis of one, ready to run."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        for array in self.inputs.values():
            forget(array)
        return {name: np.ascontiguousarray(array[index : index + 1]) for name, array in self.inputs.items()}

    def __getitem__(self, index: int) -> dict[str, Array]:
        return self.sample(index)

    def take(self, indices: Sequence[int]) -> Dataset:
        """Returns the samples at `indices`, in that order."""
        rows = np.asarray(indices, np.int64)
        labels = None if self.labels is None else self.labels[rows]
        inputs = {name: array[rows] for name, array in self.inputs.items()}
        return replace(self, inputs=inputs, labels=labels)

    def counting(self, run: Given) -> Counting:
        """Returns a function that leaves of the tensors that `run` gives for a sample what counts: rows of padding do
        not."""
        return (lambda tensors, _: tensors) if self.padding is None else self.padding.leaving_out(run)

    def counted(self, run: Given) -> Given:
        """Returns a function that gives of the tensors of a sample what counts."""
        counting = self.counting(run)
        return lambda sample: counting(run(sample), sample)


def load_data(
    source: str,
    inputs: Sequence[TensorSpec],
    preprocess: Preprocess | None = None,
    limit: int | None = None,
    index_sizes: Mapping[str, int] = MappingProxyType({}),
) -> Dataset:
    """Returns the samples behind `source`, checked against `inputs`; `limit` keeps the first samples only.

    `index_sizes` bounds the random numbers of integer inputs (`graph.indices`).
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"a limit of {limit} samples leaves none")
    _check_batch(inputs)
    arrays, labels = read(source, inputs, preprocess, limit, index_sizes)
    return checked(source, arrays, labels, inputs, limit)


def checked(
    source: str, arrays: Mapping[str, Array], labels: Array | None, inputs: Sequence[TensorSpec], limit: int | None
) -> Dataset:
    """Returns arrays as samples for `inputs`, or raises with what does not fit."""
    _check_batch(inputs)
    wanted = [spec.name for spec in inputs]
    missing = [name for name in wanted if name not in arrays]
    unexpected = [name for name in arrays if name not in wanted]
    if missing:
        names = ", ".join(arrays) or "nothing"
        raise ConfigError(f"{source} lacks input {missing[0]}{near(missing[0], unexpected)}; it holds {names}")
    if unexpected:
        raise ConfigError(
            f"{source} holds {unexpected[0]}, which is not an input of the model", "inputs: " + ", ".join(wanted)
        )
    first = _with_samples(source, inputs[0], arrays[inputs[0].name])
    labels = None if labels is None else np.atleast_1d(labels)
    if labels is not None and len(labels) != len(first):  # before the limit makes both equal
        raise ConfigError(f"{source}: {len(labels)} labels for {len(first)} samples")
    fitted = {}
    for spec in inputs:
        # The first samples in the input's type, or raises with what is wrong about them
        array = arrays[spec.name]
        array = _with_samples(source, spec, array)[:limit]
        check_size(source, array.nbytes)
        cast = _cast(source, spec, np.asarray(array))
        if cast.dtype.kind == "f" and cast.size:
            finite = np.isfinite(cast).reshape(len(cast), -1).all(axis=1)
            if not finite.all():
                raise IntegrityError(
                    f"{source}: input {spec.name} holds NaN or infinity at sample {int(np.argmin(finite))}"
                )
        fitted[spec.name] = cast
    images = is_folder(source)
    folders = class_folders(Path(source)) if labels is not None and images else ()
    available = len(find_images(Path(source))) if images else len(first)
    return Dataset(fitted, None if labels is None else labels[:limit], source, is_random(source), folders, available)


def _check_batch(inputs: Sequence[TensorSpec]) -> None:
    if not inputs:
        raise ConfigError("the model has no inputs to load data for")
    for spec in inputs:
        if not spec.shape or spec.shape[0] != 1:
            state = f", or state one: --shape {spec.name}={','.join(map(str, (1, *spec.shape[1:])))}"
            raise ConfigError(
                f"input {spec.name} has shape {list(spec.shape)}: data is fed one sample at a time",
                f"export the model with a batch of one{state if len(spec.shape) == 4 else ''}",
            )


def _with_samples(source: str, spec: TensorSpec, array: Array) -> Array:
    sample = spec.shape[1:]
    if array.ndim and array.shape[1:] == sample:
        return array
    if array.shape == sample:
        return array[np.newaxis]  # one sample, given without the axis that counts samples
    raise ConfigError(
        f"{source}: input {spec.name} needs shape {_shown(('N', *sample))}, got {_shown(array.shape)}",
        _shape_hint(spec, array),
    )


def _shown(shape: Sequence[object]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def _shape_hint(spec: TensorSpec, array: Array) -> str:
    sample, got = spec.shape[1:], array.shape[1:] if array.ndim == len(spec.shape) else array.shape
    if sorted(sample) == sorted(got) and len(sample) > 1:
        layout = f"the input is {spec.layout}" if spec.layout else "NHWC against NCHW?"
        return f"the axes seem to be in another order ({layout}): transpose the data"
    if len(sample) > 1 and array.shape[1:] == sample[1:]:
        state = f"--shape {spec.name}={','.join(map(str, (1, *sample[1:])))}"
        return f"if the {sample[0]} in front are samples, export the model with a batch of one or give {state}"
    return ""


def _cast(source: str, spec: TensorSpec, array: Array) -> Array:
    wanted = np.dtype(spec.dtype if spec.quantization is None else "float32")
    if spec.quantization is not None and array.dtype == np.dtype(spec.dtype):
        return spec.quantization.dequantize(array)  # integers of the input's own type are what it stores
    if array.dtype == wanted:
        return np.ascontiguousarray(array)
    if wanted.kind == "f" and array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(wanted)
    if wanted.kind in "iu" and array.dtype.kind in "iu":
        limits = np.iinfo(wanted)
        if array.size == 0 or (array.min() >= limits.min and array.max() <= limits.max):
            return array.astype(wanted)
        raise ConfigError(f"{source}: input {spec.name} holds {spec.dtype}, the data has values outside of it")
    hint = ""
    if spec.quantization is not None:
        hint = f"give real numbers as float32, or the {spec.dtype} that the input stores"
    elif wanted.kind == "f" and array.dtype.kind in "iu":
        hint = "scale and normalise pixels as in training and save them as float32; nothing is scaled for you"
    raise ConfigError(f"{source}: input {spec.name} holds {spec.dtype}, the data {array.dtype}", hint)


def split_holdout(data: Dataset, every: int = 5) -> tuple[Dataset, Dataset]:
    """Returns calibration and held-out samples: every `every`th distinct sample is held out, copies go with it."""
    if every < 2:
        raise ConfigError(f"holding out every {every}. sample leaves none to calibrate with")
    numbers: dict[str, int] = {}
    order = [numbers.setdefault(digest, len(numbers)) for digest in sample_digests(data)]
    if len(numbers) < 2:
        raise ConfigError(
            f"{data.origin} holds one distinct sample: nothing can be held out", "give more samples, or test data apart"
        )
    every = min(every, len(numbers))
    held = [number % every == every - 1 for number in order]
    kept = [index for index, out in enumerate(held) if not out]
    return data.take(kept), data.take([index for index, out in enumerate(held) if out])


def content_digest(data: Dataset) -> str:
    """Returns the digest of all samples and labels."""
    total = hashlib.sha256("\n".join(sample_digests(data)).encode())
    if data.labels is not None:
        total.update(_described(LABELS, data.labels) + np.ascontiguousarray(data.labels).tobytes())
    return total.hexdigest()


def sample_digests(data: Dataset) -> list[str]:
    """Returns one digest per sample over its inputs, by name: equal digests are equal samples."""
    return [_digest(data, index) for index in range(data.count)]


def distinct(data: Dataset) -> int:
    """Returns how many different samples there are; only those that agree where they are probed are read whole."""
    alike: dict[bytes, list[int]] = {}
    for index in range(data.count):
        for array in data.inputs.values():
            forget(array)
        rows = [array[index].flat for array in data.inputs.values()]
        probed = b"".join(row[:: max(len(row) // _PROBES, 1)].tobytes() for row in rows)
        alike.setdefault(probed, []).append(index)
    return sum(len({_digest(data, index) for index in each}) if len(each) > 1 else 1 for each in alike.values())


def _digest(data: Dataset, index: int) -> str:
    digest = hashlib.sha256()
    for name in sorted(data.inputs):
        forget(data.inputs[name])
        row = np.ascontiguousarray(data.inputs[name][index])
        digest.update(_described(name, row))
        digest.update(row.data)
    return digest.hexdigest()


def _described(name: str, array: Array) -> bytes:
    return f"{name}\0{array.dtype.str}\0{list(array.shape)}\0".encode()


def source_digest(source: str) -> str:
    """Returns a cheap identity of the data behind `source`, from the bytes of its files; nothing is parsed."""
    if is_random(source):
        random_numbers(source)
        return hashlib.sha256(source.encode()).hexdigest()
    generator = generator_of(source)
    if generator is not None:
        path, name = generator
        return hashlib.sha256(f"{name}\0{_file_digest(existing(str(path)))}".encode()).hexdigest()
    path = existing(source)
    if path.is_file():
        return _file_digest(path)
    lines = [f"{file.relative_to(path).as_posix()}\0{_file_digest(file)}" for file, _ in find_images(path)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

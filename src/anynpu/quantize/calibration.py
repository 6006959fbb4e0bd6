"""Calibration data: loaded from where the user says, checked against the inputs it is for, never made up unasked."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import itertools
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.tasks.images import Preprocess, find_images, load_images
from anynpu.tensors import Array, TensorSpec

__all__ = [
    "Dataset",
    "Preprocess",
    "content_digest",
    "load_data",
    "read_arrays",
    "sample_digests",
    "source_digest",
    "split_holdout",
]

LABELS = "labels"
# More than any calibration needs; a generator that never ends stops here instead of filling the memory.
MAX_BYTES = 4 << 30
_FORMS = "give x.npy, x.npz, a folder of images, file.py:generator or random:COUNT[:SEED]"


@dataclass(frozen=True)
class Dataset:
    """Samples for every input of a model: name -> (count, *shape without the batch axis)."""

    inputs: dict[str, Array]
    labels: Array | None
    origin: str
    random: bool = False

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
        return {name: array[index : index + 1] for name, array in self.inputs.items()}

    def __getitem__(self, index: int) -> dict[str, Array]:
        return self.sample(index)

    def take(self, indices: Sequence[int]) -> Dataset:
        """Returns the samples at `indices`, in that order."""
        rows = np.asarray(indices, np.int64)
        labels = None if self.labels is None else self.labels[rows]
        return Dataset({name: array[rows] for name, array in self.inputs.items()}, labels, self.origin, self.random)


def load_data(
    source: str, inputs: Sequence[TensorSpec], preprocess: Preprocess | None = None, limit: int | None = None
) -> Dataset:
    """Returns the samples behind `source`, checked against `inputs`; `limit` keeps the first samples only."""
    if limit is not None and limit < 1:
        raise ConfigError(f"a limit of {limit} samples leaves none")
    _check_batch(inputs)
    arrays, labels = _read(source, inputs, preprocess, limit)
    _check_names(source, arrays, inputs)
    checked = {spec.name: _fitted(source, spec, arrays[spec.name], limit) for spec in inputs}
    return Dataset(checked, None if labels is None else labels[:limit], source, _is_random(source))


def read_arrays(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Returns the arrays of an .npy or .npz file as they are, by input name."""
    _existing(str(path))
    if path.suffix == ".npy":
        return {_only(str(path), inputs).name: np.array(_read_npy(path))}
    if path.suffix == ".npz":
        return _read_npz(path, inputs)[0]
    raise ConfigError(f"{path}: neither .npy nor .npz")


def _check_batch(inputs: Sequence[TensorSpec]) -> None:
    if not inputs:
        raise ConfigError("the model has no inputs to load data for")
    for spec in inputs:
        if not spec.shape or spec.shape[0] != 1:
            raise ConfigError(
                f"input {spec.name} has shape {list(spec.shape)}: data is fed one sample at a time",
                "export the model with a batch of one",
            )


def _is_random(source: str) -> bool:
    return source.startswith("random:")


def _read(
    source: str, inputs: Sequence[TensorSpec], preprocess: Preprocess | None, limit: int | None
) -> tuple[dict[str, Array], Array | None]:
    if _is_random(source):
        return _random(source, inputs), None
    generator = _generator(source)
    if generator is not None:
        return _read_generator(source, *generator, inputs, limit)
    path = _existing(source)
    if path.is_dir():
        return _read_images(path, inputs, preprocess, limit)
    if path.suffix == ".npy":
        return {_only(source, inputs).name: _read_npy(path)}, None
    if path.suffix == ".npz":
        return _read_npz(path, inputs)
    raise ConfigError(f"{source}: no such kind of calibration data", _FORMS)


def _existing(source: str) -> Path:
    path = Path(source)
    if not path.exists():
        raise ConfigError(f"{source}: no such file or folder", _FORMS)
    return path


def _only(source: str, inputs: Sequence[TensorSpec]) -> TensorSpec:
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise ConfigError(f"{source} holds one input, the model has {len(inputs)}", f"give an .npz with {names}")
    return inputs[0]


def _read_npy(path: Path) -> Array:
    with path.open("rb") as file:
        start = file.read(64)
    if not start.startswith(b"\x93NUMPY"):
        raise IntegrityError(f"{path} is not an .npy file", _lfs_hint(start))
    try:
        # Mapped, so that a limit reads no more than it keeps.
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> AnyNpuError:
    if "object" in str(error).lower():
        return ConfigError(f"{path} holds Python objects, which are never unpickled", "save plain number arrays")
    return IntegrityError(f"{path} is damaged: {error}")


def _lfs_hint(start: bytes) -> str:
    if start.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer: git lfs pull"
    return "the file is empty" if not start else ""


def _read_npz(path: Path, inputs: Sequence[TensorSpec]) -> tuple[dict[str, Array], Array | None]:
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            raise IntegrityError(f"{path} is not an .npz file", _lfs_hint(file.read(64)))
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_BYTES:
            raise ConfigError(f"{path} holds {size >> 20} MiB, at most {MAX_BYTES >> 20} are read")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error
    takes_labels = LABELS in {spec.name for spec in inputs}
    labels = None if takes_labels else arrays.pop(LABELS, None)
    return arrays, labels


def _read_images(
    folder: Path, inputs: Sequence[TensorSpec], preprocess: Preprocess | None, limit: int | None
) -> tuple[dict[str, Array], Array | None]:
    if preprocess is None:
        raise ConfigError(
            f"{folder} is a folder of images: their preprocessing is not stated",
            "state size, resize, channels, scale, mean and std",
        )
    spec = _only(str(folder), inputs)
    found = find_images(folder)[:limit]
    _check_size(str(folder), spec.nbytes * len(found))
    images = np.stack(list(load_images([file for file, _ in found], spec, preprocess)))
    labelled = found[0][1] is not None
    return {spec.name: images}, np.asarray([label for _, label in found], np.int64) if labelled else None


def _check_size(source: str, nbytes: int) -> None:
    if nbytes > MAX_BYTES:
        raise ConfigError(f"{source} gives more than {MAX_BYTES >> 20} MiB", "limit the number of samples")


def _random(source: str, inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Returns normal numbers for float inputs, 0 or 1 for integer ones (valid as mask and as index)."""
    count, seed = _random_numbers(source)
    _check_size(source, count * sum(spec.nbytes for spec in inputs))
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for spec in inputs:
        shape = (count, *spec.shape[1:])
        floating = np.dtype(spec.dtype).kind == "f"
        arrays[spec.name] = rng.standard_normal(shape, np.float32) if floating else rng.integers(0, 2, shape)
        arrays[spec.name] = arrays[spec.name].astype(spec.dtype)
    return arrays


def _random_numbers(source: str) -> tuple[int, int]:
    parts = source.split(":")[1:]
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() for part in parts) or int(parts[0]) < 1:
        raise ConfigError(f"{source}: not of the form random:COUNT[:SEED]", "for example random:64:0")
    return int(parts[0]), int(parts[1]) if len(parts) == 2 else 0


def _generator(source: str) -> tuple[Path, str] | None:
    path, colon, name = source.rpartition(":")
    return (Path(path), name) if colon and path.endswith(".py") else None


def _read_generator(
    source: str, path: Path, name: str, inputs: Sequence[TensorSpec], limit: int | None
) -> tuple[dict[str, Array], Array | None]:
    function = _load_function(path, name)
    rows: list[Mapping[str, Any]] = []
    nbytes = 0
    for sample in itertools.islice(_user_samples(source, function), limit):
        row = sample if isinstance(sample, Mapping) else {_only(source, inputs).name: sample}
        row = {key: np.asarray(value) for key, value in row.items()}
        nbytes += sum(value.nbytes for value in row.values())
        _check_size(source, nbytes)
        if rows and row.keys() != rows[0].keys():
            raise ConfigError(f"{source}: sample {len(rows)} has {sorted(row)}, the first {sorted(rows[0])}")
        rows.append(row)
    if not rows:
        raise ConfigError(f"{source} gives no samples")
    arrays = {key: _stacked(source, key, [row[key] for row in rows], inputs) for key in rows[0]}
    labels = None if LABELS in {spec.name for spec in inputs} else arrays.pop(LABELS, None)
    return arrays, labels


def _load_function(path: Path, name: str) -> Any:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file", _FORMS)
    spec = importlib.util.spec_from_file_location(f"anynpu_data_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} fails: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(f"{path} has no function {name}", _near(name, known))
    return function


def _user_samples(source: str, function: Any) -> Iterator[Any]:
    try:
        yield from function()
    except Exception as error:
        raise ConfigError(f"{source} fails: {type(error).__name__}: {error}") from error


def _stacked(source: str, name: str, values: list[Array], inputs: Sequence[TensorSpec]) -> Array:
    shapes = {value.shape for value in values}
    if len(shapes) != 1:
        raise ConfigError(f"{source}: samples of {name} differ in shape: {sorted(shapes)}")
    expected = next((spec.shape for spec in inputs if spec.name == name), None)
    # A generator may give a sample with or without its batch axis of one.
    return np.concatenate(values) if expected is not None and values[0].shape == expected else np.stack(values)


def _check_names(source: str, arrays: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> None:
    wanted = [spec.name for spec in inputs]
    missing = [name for name in wanted if name not in arrays]
    unexpected = [name for name in arrays if name not in wanted]
    if missing:
        found = ", ".join(arrays) or "nothing"
        raise ConfigError(f"{source} lacks input {missing[0]}; it holds {found}", _near(missing[0], unexpected))
    if unexpected:
        raise ConfigError(
            f"{source} holds {unexpected[0]}, which is no input of the model", "inputs: " + ", ".join(wanted)
        )


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"did you mean {close[0]}?" if close else ""


def _fitted(source: str, spec: TensorSpec, array: Array, limit: int | None) -> Array:
    """Returns the first samples in the input's type, or raises with what is wrong about them."""
    array = _with_samples(source, spec, array)[:limit]
    _check_size(source, array.nbytes)
    cast = _cast(source, spec, np.asarray(array))
    if cast.dtype.kind == "f" and cast.size:
        finite = np.isfinite(cast).reshape(len(cast), -1).all(axis=1)
        if not finite.all():
            raise IntegrityError(
                f"{source}: input {spec.name} holds NaN or infinity at sample {int(np.argmin(finite))}"
            )
    return cast


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
    return ""


def _cast(source: str, spec: TensorSpec, array: Array) -> Array:
    wanted = np.dtype(spec.dtype)
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
    if wanted.kind == "f" and array.dtype.kind in "iu":
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
    digests = []
    for index in range(data.count):
        digest = hashlib.sha256()
        for name in sorted(data.inputs):
            row = np.ascontiguousarray(data.inputs[name][index])
            digest.update(_described(name, row) + row.tobytes())
        digests.append(digest.hexdigest())
    return digests


def _described(name: str, array: Array) -> bytes:
    return f"{name}\0{array.dtype.str}\0{list(array.shape)}\0".encode()


def source_digest(source: str) -> str:
    """Returns a cheap identity of the data behind `source`, from the bytes of its files; nothing is parsed."""
    if _is_random(source):
        _random_numbers(source)
        return hashlib.sha256(source.encode()).hexdigest()
    generator = _generator(source)
    if generator is not None:
        path, name = generator
        return hashlib.sha256(f"{name}\0{_file_digest(_existing(str(path)))}".encode()).hexdigest()
    path = _existing(source)
    if path.is_file():
        return _file_digest(path)
    lines = [f"{file.relative_to(path).as_posix()}\0{_file_digest(file)}" for file, _ in find_images(path)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

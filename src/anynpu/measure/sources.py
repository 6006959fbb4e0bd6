"""Where samples come from: files of arrays, folders of images, generators of the user's, random numbers."""

from __future__ import annotations

import importlib.util
import itertools
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from anynpu import arrays as array_files
from anynpu.arrays import read_npy
from anynpu.errors import ConfigError
from anynpu.schema import near
from anynpu.tasks.images import Preprocess, class_folders, evenly, find_images, load_images
from anynpu.tensors import Array, TensorSpec

LABELS = "labels"
# More than any calibration needs; a generator that never ends stops here instead of filling the memory.
MAX_BYTES = 4 << 30
LABEL_FORMS = "an .npz needs an array `labels`, a folder sub-folders, a generator samples with an entry `labels`"
FORMS = "give x.npy, x.npz, a folder of images, texts.txt, file.py:generator or random:COUNT[:SEED]"


def is_random(source: str) -> bool:
    """Whether the user asks for random numbers."""
    return source.startswith("random:")


def is_folder(source: str) -> bool:
    """Whether the source is a folder of images, which preprocessing turns into inputs."""
    return not is_random(source) and generator_of(source) is None and Path(source).is_dir()


def read(
    source: str,
    inputs: Sequence[TensorSpec],
    preprocess: Preprocess | None,
    limit: int | None,
    index_sizes: Mapping[str, int] = MappingProxyType({}),
) -> tuple[dict[str, Array], Array | None]:
    """Returns the arrays behind `source` by input name, and the labels that come with them."""
    if preprocess is not None and not is_folder(source):
        raise ConfigError(f"-P has no effect: {source} holds arrays, which are taken as they are", "leave it out")
    if is_random(source):
        return _random(source, inputs, index_sizes), None
    generator = generator_of(source)
    if generator is not None:
        return read_generator(source, *generator, inputs, limit)
    path = existing(source)
    if path.is_dir():
        if preprocess is None:
            raise unstated(str(path))
        spec = only_input(str(path), inputs)
        labelled_files = evenly(find_images(path), limit)
        check_size(str(path), spec.nbytes * len(labelled_files))
        images = np.stack(list(load_images([file for file, _ in labelled_files], spec, preprocess)))
        labelled = labelled_files[0][1] is not None
        return {spec.name: images}, np.asarray([label for _, label in labelled_files], np.int64) if labelled else None
    if path.suffix == ".npy":
        return {only_input(source, inputs).name: read_npy(path)}, None
    if path.suffix == ".npz":
        return read_npz(path, inputs)
    raise ConfigError(f"{source}: no such kind of calibration data", FORMS)


def require(source: str) -> None:
    """Raises ConfigError unless the file or folder that a source names is there; nothing is read."""
    if is_random(source):
        random_numbers(source)
        return
    generator = generator_of(source)
    existing(str(generator[0]) if generator else source)


def lacks_labels(source: str) -> bool:
    """Whether a source can have no labels, by its form and the names in it; nothing is read, no generator runs."""
    if generator_of(source) is not None:
        return False
    if is_folder(source):
        return not class_folders(Path(source))
    if source.endswith(".npz") and zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            return f"{LABELS}.npy" not in archive.namelist()
    return not source.endswith(".npz")


def existing(source: str) -> Path:
    """Returns the path of a file or folder that is there."""
    path = Path(source)
    if not path.exists():
        raise ConfigError(f"{source}: no such file or folder", FORMS)
    return path


def only_input(source: str, inputs: Sequence[TensorSpec]) -> TensorSpec:
    """Returns the model's input, for data that says nothing about which it is for."""
    if len(inputs) != 1:
        names = ", ".join(spec.name for spec in inputs)
        raise ConfigError(f"{source} holds one input, the model has {len(inputs)}", f"give an .npz with {names}")
    return inputs[0]


def read_npz(path: Path, inputs: Sequence[TensorSpec]) -> tuple[dict[str, Array], Array | None]:
    """Returns the arrays of an .npz file and the labels in it."""
    arrays = array_files.read_npz(path)
    takes_labels = LABELS in {spec.name for spec in inputs}
    labels = None if takes_labels else arrays.pop(LABELS, None)
    return arrays, labels


def read_arrays(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Returns the arrays of an .npy or .npz file as they are, by input name."""
    existing(str(path))
    if path.suffix == ".npy":
        return {only_input(str(path), inputs).name: np.array(read_npy(path))}
    if path.suffix == ".npz":
        return read_npz(path, inputs)[0]
    raise ConfigError(f"{path}: neither .npy nor .npz")


def unstated(folder: str) -> ConfigError:
    """Returns the error for images that nobody says how to prepare."""
    return ConfigError(
        f"{folder} is a folder of images: their preprocessing is not stated",
        "state it as in training: -P size=96x96 -P resize=stretch -P channels=RGB -P mean=0.5 -P std=0.5, or --task",
    )


def check_size(source: str, nbytes: int) -> None:
    """Raises where the data is more than any calibration needs."""
    if nbytes > MAX_BYTES:
        raise ConfigError(f"{source} gives more than {MAX_BYTES >> 20} MiB", "limit the number of samples")


@dataclass(frozen=True)
class Random:
    """What random:COUNT[:SEED][,RANGE...] asks for; a range without a name is for every integer input."""

    count: int
    seed: int
    ranges: Mapping[str, tuple[float, float]]

    def range_of(self, spec: TensorSpec, index_sizes: Mapping[str, int]) -> tuple[float, float] | None:
        """Returns the smallest and the largest number for an input, or None for normal numbers."""
        kind = _kind(spec)
        if spec.name in self.ranges:
            return self.ranges[spec.name]
        if kind in "iu" and "" in self.ranges:
            return self.ranges[""]
        # 0 and 1 are valid as a mask and as an index of any table.
        return None if kind == "f" else (0, index_sizes.get(spec.name, 2) - 1)


def _random(source: str, inputs: Sequence[TensorSpec], index_sizes: Mapping[str, int]) -> dict[str, Array]:
    """Returns normal numbers for float inputs and whole ones for integers: 0 to the last row of the table that the
    model looks them up in, 0 and 1 where it has none; or all in the ranges that the source states."""
    asked = random_numbers(source)
    known = {each.name: np.dtype(each.dtype if _kind(each) != "f" else "float32") for each in inputs}
    for name in asked.ranges:
        if name and name not in known:
            raise ConfigError(f"{source}: the model has no input {name}{near(name, known)}")
    if "" in asked.ranges and not any(kind.kind in "iu" for kind in known.values()):
        raise ConfigError(
            f"{source}: a range is for integer inputs, and the model has none", "name=0..1 is for any input"
        )
    for each in inputs:
        stated, kind = asked.range_of(each, {}), known[each.name]
        if stated is None or kind.kind == "f":
            continue
        most = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
        if not most[0] <= stated[0] <= stated[1] <= most[1] or not all(float(end).is_integer() for end in stated):
            raise ConfigError(f"{source}: input {each.name} holds {each.dtype}, not {stated[0]:g} to {stated[1]:g}")
    check_size(source, asked.count * sum(spec.nbytes for spec in inputs))
    rng = np.random.default_rng(asked.seed)
    arrays: dict[str, Array] = {}
    for spec in inputs:
        shape, limits = (asked.count, *spec.shape[1:]), asked.range_of(spec, index_sizes)
        if limits is None and spec.quantization is not None:
            stored = np.iinfo(spec.dtype)
            values: Array = rng.integers(stored.min, stored.max, shape, dtype=np.dtype(spec.dtype), endpoint=True)
        elif limits is None:
            values = rng.standard_normal(shape, np.float32)
        elif _kind(spec) == "f":
            values = rng.uniform(*limits, shape)
        else:
            values = rng.integers(int(limits[0]), int(limits[1]) + 1, shape)
        arrays[spec.name] = values.astype(spec.dtype if limits is None or spec.quantization is None else "float32")
    return arrays


def _kind(spec: TensorSpec) -> str:
    """Returns numpy's letter for the numbers that an input takes: a quantised one takes real numbers."""
    return "f" if spec.quantization is not None else np.dtype(spec.dtype).kind


def random_numbers(source: str) -> Random:
    """Returns what random:COUNT[:SEED][,LOW..HIGH][,NAME=LOW..HIGH] asks for."""
    head, *stated = source.removeprefix("random:").split(",")
    parts = head.split(":")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts) or int(parts[0]) < 1:
        raise ConfigError(
            f"{source}: not of the form random:COUNT[:SEED][,LOW..HIGH]", "for example random:64, random:64:0,0..999"
        )
    ranges: dict[str, tuple[float, float]] = {}
    for text in stated:
        name, sign, limits = text.rpartition("=")
        try:
            low, high = (float(end) for end in limits.split(".."))
        except ValueError:
            low, high = 1.0, 0.0
        if low > high or not np.isfinite([low, high]).all() or (sign and not name) or name in ranges:
            raise ConfigError(f"{source}: {text} is not a range", "such as 0..999 or ids=0..999, each input once")
        ranges[name] = (low, high)
    return Random(int(parts[0]), int(parts[1]) if len(parts) == 2 else 0, ranges)


def generator_of(source: str) -> tuple[Path, str] | None:
    """Returns file and function of file.py:generator, or None for any other source."""
    path, colon, name = source.rpartition(":")
    return (Path(path), name) if colon and path.endswith(".py") else None


def read_generator(
    source: str, path: Path, name: str, inputs: Sequence[TensorSpec], limit: int | None
) -> tuple[dict[str, Array], Array | None]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file", FORMS)
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
        raise ConfigError(f"{path} has no function {name}{near(name, known)}")
    rows: list[Mapping[str, Array]] = []
    nbytes = 0
    for sample in itertools.islice(_user_samples(source, function), limit):
        row = sample if isinstance(sample, Mapping) else {only_input(source, inputs).name: sample}
        row = {key: np.asarray(value) for key, value in row.items()}
        nbytes += sum(value.nbytes for value in row.values())
        check_size(source, nbytes)
        if rows and row.keys() != rows[0].keys():
            raise ConfigError(f"{source}: sample {len(rows)} has {sorted(row)}, the first {sorted(rows[0])}")
        rows.append(row)
    if not rows:
        raise ConfigError(f"{source} gives no samples")
    shapes = {item.name: item.shape for item in inputs}
    arrays = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        if len(differing := {value.shape for value in values}) != 1:
            raise ConfigError(f"{source}: samples of {key} differ in shape: {sorted(differing)}")
        # A generator may give a sample with or without its batch axis of one.
        arrays[key] = np.concatenate(values) if values[0].shape == shapes.get(key) else np.stack(values)
    labels = None if LABELS in {spec.name for spec in inputs} else arrays.pop(LABELS, None)
    return arrays, labels


def _user_samples(source: str, function: Any) -> Iterator[Any]:
    try:
        yield from function()
    except Exception as error:
        raise ConfigError(f"{source} fails: {type(error).__name__}: {error}") from error

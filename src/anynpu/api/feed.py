"""Inputs as an artifact stores them: arrays, and what -i names: files, images, texts, zoo samples, random numbers.

Real numbers come in the layout of the model that the artifact was built from, as `build`, `eval` and `compare` take
them, or in the artifact's own; a note names what was moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anynpu.artifact import MANIFEST, Artifact
from anynpu.errors import ConfigError
from anynpu.measure import calibrated
from anynpu.tasks import card as cards
from anynpu.tasks.images import SUFFIXES, Preprocess, find_images, in_order, load_images
from anynpu.tasks.text import bind, read_lines
from anynpu.tensors import Array, Quantization, TensorSpec, by_name, relayout

if TYPE_CHECKING:
    from anynpu.quantize.calibration import Dataset

ZOO = "zoo:"
ZOO_SAMPLES = 500
FORMS = "give x.npy, x.npz, an image or a folder of them, texts.txt, zoo:NAME, file.py:generator or random:COUNT"


@dataclass(frozen=True)
class Feed:
    """One mapping of stored inputs a sample, and a sentence for everything that was moved to get there."""

    samples: tuple[Mapping[str, Array], ...]
    notes: tuple[str, ...] = ()
    moved: bool = False
    """Whether the inputs came in the layout of the source: the outputs go back to it."""


Specs = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]


def source_specs(artifact: Artifact) -> Specs:
    """Returns inputs and outputs in the layouts of the float model: that of the same build, or what is known of it."""
    if (model := float_model(artifact)) is not None:
        return model.manifest.inputs, model.manifest.outputs
    known = calibrated.read(artifact)
    own = [replace(s, dtype="float32", quantization=None) if s.quantization else s for s in artifact.manifest.inputs]
    return known.inputs if known is not None else tuple(own), artifact.manifest.outputs


def float_model(artifact: Artifact) -> Artifact | None:
    """Returns the float model of the build that an artifact lies in, or None."""
    place = artifact.path.absolute()
    for folder in (place.parent / "float", place.parents[1] / "float"):
        if (folder / MANIFEST).is_file():
            model = Artifact.open(folder)
            if model.manifest.fingerprint == artifact.manifest.fingerprint:
                return model
    return None


def read_feed(source: str, artifact: Artifact, preprocess: Preprocess | None, limit: int | None) -> Feed:
    """Returns the samples behind `source` as the artifact stores them."""
    specs, sources = artifact.manifest.inputs, source_specs(artifact)[0]
    suffix = Path(source).suffix.lower()
    is_array = suffix in (".npy", ".npz") and not source.startswith(ZOO)
    if suffix in (".npy", ".npz", ".txt", *SUFFIXES) and not Path(source).exists():
        raise ConfigError(f"{source}: no such file or folder", FORMS)
    if preprocess is not None and not (suffix in SUFFIXES or Path(source).is_dir()):
        raise ConfigError(f"-P has no effect: {source} is neither an image nor a folder of them", "leave it out")
    if is_array:
        from anynpu.measure.sources import read_arrays

        arrays = read_arrays(Path(source), specs)
    else:
        like = by_name(sources)
        wanted = tuple(like.get(spec.name, spec) for spec in specs)
        arrays = dict(_read(source, artifact, wanted, preprocess, limit))
        for spec in specs:  # indices and masks become the integers of the artifact, which may be narrower
            array = arrays.get(spec.name)
            plain = spec.quantization is None and spec.dtype[0] in "iu"
            if plain and array is not None and array.dtype.kind in "iu" and array.size:
                limits = np.iinfo(spec.dtype)
                if limits.min <= array.min() and array.max() <= limits.max:
                    arrays[spec.name] = array.astype(spec.dtype)
    return feed_of(arrays, specs, sources, is_array, limit)


def named_arrays(arrays: Array | Mapping[str, Array], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Returns arrays by input name; one alone is the only input of the model."""
    if not isinstance(arrays, Mapping):
        if len(specs) != 1:
            names = ", ".join(spec.name for spec in specs)
            raise ConfigError(f"the model has {len(specs)} inputs", f"give a mapping of arrays by name: {names}")
        arrays = {specs[0].name: arrays}
    return {name: np.asarray(array) for name, array in arrays.items()}


def feed_of(
    arrays: Mapping[str, Array],
    specs: Sequence[TensorSpec],
    sources: Sequence[TensorSpec],
    stored: bool = True,
    limit: int | None = None,
) -> Feed:
    """Returns arrays by input name as the artifact stores them: `specs` are its inputs, `sources` those of the float
    model. With `stored`, integers of an input's own type may be stored values.
    """
    like = by_name(sources)
    placed: dict[str, Array] = dict(arrays)  # a name that the model does not have is left for later
    notes, moved = [], False
    for spec in specs:
        if spec.name in arrays:
            placed[spec.name], note = _placed(arrays[spec.name], spec, like.get(spec.name, spec), stored)
            notes += [note] if note else []
            moved = moved or bool(note)
    return Feed(_samples(placed, specs, limit), tuple(notes), moved)


def read_one(source: str, artifact: Artifact) -> tuple[Mapping[str, Array], tuple[str, ...]]:
    """Returns the one sample behind `source`, for what runs one input again and again, and what was moved."""
    feed = read_feed(source, artifact, None, None)
    if len(feed.samples) != 1:
        raise ConfigError(f"{source}: holds {len(feed.samples)} samples, and one is run again and again", "give one")
    return feed.samples[0], feed.notes


def _read(
    source: str,
    artifact: Artifact,
    specs: Sequence[TensorSpec],
    preprocess: Preprocess | None,
    limit: int | None,
) -> Mapping[str, Array]:
    """Returns samples in the layouts of the source, the first axis counting them."""
    from anynpu.measure import sources

    path = Path(source)
    if source.startswith(ZOO):
        from anynpu.source import zoo

        return dict(zoo.samples(source.removeprefix(ZOO), "test", limit or 1).inputs)
    if path.suffix.lower() in SUFFIXES or (path.is_dir() and not sources.is_random(source)):
        sources.existing(source)
        files = [file for file, _ in find_images(path)] if path.is_dir() else [path]
        spec = sources.only_input(source, specs)
        own = cards.of(artifact).card.preprocess if artifact.manifest.task else None
        if own is not None and preprocess is not None:
            raise ConfigError("-P: the artifact's card says how images become inputs", "leave it out")
        known = calibrated.read(artifact)
        steps = own or preprocess or (known.preprocess if known is not None else None)
        if steps is None:
            sizes = dict(zip(spec.layout, spec.shape, strict=False))
            size = f"{sizes.get('H', 96)}x{sizes.get('W', 96)}"
            raise ConfigError(
                f"{source}: nothing says how images become inputs of this model",
                f"state it as in training: -P size={size} -P resize=stretch -P mean=0.5 -P std=0.5",
            )
        steps = in_order(steps, spec.channels)
        return {spec.name: np.stack(list(load_images(files[:limit], spec, steps)))}
    if path.suffix == ".txt":
        sources.existing(source)
        chosen = cards.of(artifact)
        if chosen.card.text is None:
            raise ConfigError(f"{source}: the model's card reads no text", FORMS)
        tokens = bind(chosen.card.text, chosen.files, tuple(specs))
        rows = [tokens([line]) for line in read_lines(path)[:limit]]
        return {name: np.concatenate([row[name][:1] for row in rows]) for name in rows[0]} if rows else {}
    if not sources.is_random(source) and sources.generator_of(source) is None:
        sources.existing(source)
        raise ConfigError(f"{source}: no such kind of input", FORMS)
    model = float_model(artifact)
    sizes = dict(model.manifest.details.get("index_sizes", {})) if model is not None else {}
    return sources.read(source, specs, None, limit, sizes)[0]


def remembered(source: str, stated: Preprocess | None, *artifacts: Artifact) -> Preprocess | None:
    """Returns how a folder of images is prepared: as stated, or as the first artifact that knows was calibrated."""
    if stated is not None or not Path(source).is_dir():
        return stated
    known = (calibrated.read(artifact) for artifact in artifacts)
    return next((each.preprocess for each in known if each is not None and each.preprocess is not None), None)


def judging_samples(
    source: str,
    inputs: Sequence[TensorSpec],
    stated: Preprocess | None,
    limit: int | None,
    *artifacts: Artifact,
) -> Dataset:
    """Returns the samples that artifacts are judged on; of the zoo those of its test split, 500 by default."""
    from anynpu.quantize.calibration import checked, load_data

    if not source.startswith(ZOO):
        return load_data(source, inputs, remembered(source, stated, *artifacts), limit)
    from anynpu.source import zoo

    if stated is not None:
        raise ConfigError(f"-P has no effect: {source} makes arrays", "leave it out")
    samples = zoo.samples(source.removeprefix(ZOO), "test", limit or ZOO_SAMPLES)
    return checked(source, samples.inputs, samples.labels, inputs, limit)


def usual_metric(source: str) -> str:
    """Returns the metric that a zoo model states for its samples, or nothing for other sources."""
    if not source.startswith(ZOO):
        return ""
    from anynpu.source import zoo

    return zoo.card(source.removeprefix(ZOO)).metric


def _placed(array: Array, spec: TensorSpec, like: TensorSpec, own_first: bool) -> tuple[Array, str]:
    """Returns an array in the artifact's own layout, and a sentence where it was moved there.

    Integers of the input's own type are stored values: they are in its own layout wherever that fits. Everything else
    is in the layout of the source where both fit.
    """
    stored = own_first and str(array.dtype) == spec.dtype and spec.quantization is not None
    for each in (spec, like) if stored else (like, spec):
        if array.shape == each.shape[1:] != () and array.ndim == len(each.shape) - 1:
            array = array[np.newaxis]
        if array.ndim == len(each.shape) and array.shape[1:] == each.shape[1:]:
            if each is spec or not each.layout or not spec.layout or each.layout == spec.layout:
                return array, ""
            note = f"input {spec.name}: taken as {like.layout}, the layout of its source, and moved to {spec.layout}"
            return relayout(array, like.layout, spec.layout), note
    return array, ""


def _samples(
    arrays: Mapping[str, Array], specs: Sequence[TensorSpec], limit: int | None
) -> tuple[Mapping[str, Array], ...]:
    """Returns the arrays as they are stored, cut along their first axis where the model takes one sample at a time."""
    counts = {len(arrays[spec.name]) for spec in specs if spec.name in arrays and arrays[spec.name].ndim}
    whole = any(not spec.shape or spec.shape[0] != 1 for spec in specs) or len(counts) != 1
    if (
        whole
        or counts == {1}
        or any(arrays[spec.name].shape[1:] != spec.shape[1:] for spec in specs if spec.name in arrays)
    ):
        return ({**arrays, **_stored(arrays, specs)},)
    taken = min(counts.pop(), limit or 1 << 62)
    if not taken:
        raise ConfigError("the input holds no samples", FORMS)
    cut = ({name: array[at : at + 1] for name, array in arrays.items()} for at in range(taken))
    return tuple({**sample, **_stored(sample, specs)} for sample in cut)


def _stored(arrays: Mapping[str, Array], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Returns the model's inputs as it stores them."""
    stored = {}
    for spec in specs:
        if (array := arrays.get(spec.name)) is None:
            continue
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ConfigError(f"input {spec.name} holds NaN or infinite values")
        if str(array.dtype) != spec.dtype:
            # Numbers of words are what they are in any type that holds them.
            counts = spec.quantization in (None, Quantization((1.0,), (0,))) and np.dtype(spec.dtype).kind in "iu"
            if array.dtype.kind == "f":
                array = spec.to_stored(array)
            elif counts and np.array_equal(array, array.astype(spec.dtype)):
                array = array.astype(spec.dtype)
            else:
                raise ConfigError(f"input {spec.name} holds {array.dtype}; {spec.dtype} or real numbers were expected")
        stored[spec.name] = array
    return stored

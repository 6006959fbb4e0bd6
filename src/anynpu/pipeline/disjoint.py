"""Calibration and evaluation samples must be apart: which of the samples to score with calibrated the artifact?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.measure.calibrated import Calibrated, read
from anynpu.quantize.calibration import Dataset, sample_digests
from anynpu.tasks.card import Card
from anynpu.tasks.images import Preprocess, load_images
from anynpu.tasks.text import bind


@dataclass(frozen=True)
class Overlap:
    """Names of samples that also calibrated the artifact; `unchecked` says why nothing could be looked up."""

    names: tuple[str, ...] = ()
    unchecked: str = ""
    calibrated: int = 0


def known_of(artifact: Artifact) -> Calibrated | Overlap:
    """Returns the samples that calibrated an artifact, or why there are none to look up."""
    calibrated = read(artifact)
    if calibrated is not None:
        return calibrated
    step = artifact.manifest.step
    if step is not None and "data" in step.inputs:
        return Overlap(unchecked="the artifact does not keep the samples that calibrated it")
    return Overlap()


def of_arrays(known: Calibrated, data: Dataset) -> Overlap:
    """Returns the samples of a set that calibrated the artifact."""
    digests = set(known.sample_digests)
    return _found(known, (f"sample {at}" for at, digest in enumerate(sample_digests(data)) if digest in digests))


def of_images(known: Calibrated, files: Sequence[Path], preprocess: Preprocess | None) -> Overlap:
    """Returns the image files that calibrated the artifact, by their pixels as the model got them."""
    steps = known.preprocess or preprocess
    if len(known.inputs) != 1 or steps is None:
        return Overlap(unchecked="it was not calibrated with images", calibrated=len(known.sample_digests))
    digests, spec, same = set(known.sample_digests), known.inputs[0], []
    for file in files:
        try:
            (pixels,) = load_images([file], spec, steps)
        except AnyNpuError as error:
            if isinstance(error, ConfigError) and file.is_file() and str(file) not in error.message:
                return Overlap(unchecked=error.message, calibrated=len(known.sample_digests))
            continue  # what cannot be read is not scored either
        if sample_digests(Dataset({spec.name: pixels[None]}, None, str(file)))[0] in digests:
            same.append(str(file))
    return _found(known, same)


def of_texts(known: Calibrated, texts: Sequence[str], card: Card, files: Mapping[str, Path]) -> Overlap:
    """Returns the texts that calibrated the artifact, by their tokens."""
    if card.text is None:
        return Overlap(unchecked="its card reads no text", calibrated=len(known.sample_digests))
    tokens, digests = bind(card.text, files, known.inputs), set(known.sample_digests)
    same = []
    for text in dict.fromkeys(texts):
        rows = {name: values[:1] for name, values in tokens([text]).items()}
        if sample_digests(Dataset(rows, None, "text"))[0] in digests:
            same.append(repr(text[:60]))
    return _found(known, same)


def _found(known: Calibrated, names: Iterable[str]) -> Overlap:
    return Overlap(tuple(names), calibrated=len(known.sample_digests))


def require(overlap: Overlap, allowed: bool, artifact: Path) -> list[str]:
    """Returns what is to be said of an overlap; raises where there is one that nobody allowed."""
    if overlap.unchecked:
        return [f"{artifact}: not known to be apart from the calibration samples: {overlap.unchecked}"]
    if not overlap.names:
        return []
    count = len(overlap.names)
    shared = f"{count} of the samples also calibrated {artifact}, such as {overlap.names[0]}"
    if not allowed:
        raise ConfigError(shared, "a score on them flatters the model; take other samples, or say --allow-overlap")
    return [f"OVERLAP: {shared}: the score flatters the model"]

"""Where the samples of a build come from: the zoo, files of texts and the user's generators; and their labels."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anynpu import schema, tool
from anynpu.artifact import Artifact
from anynpu.errors import ConfigError
from anynpu.measure import sources
from anynpu.measure.labels import Labels, read_labels, require_fit
from anynpu.measure.samples import read_samples
from anynpu.quantize.calibration import Dataset, checked
from anynpu.source import zoo
from anynpu.source.dependencies import Dependencies
from anynpu.tasks import card
from anynpu.tasks.text import bind, read_lines

ZOO_COUNTS = {"calibration": 256, "test": 500, "training": 4096}


def zoo_samples(name: str, role: str, limit: int) -> Dataset:
    """Returns samples of a zoo model: those that it was tested with to prove, others to calibrate and train."""
    count = ZOO_COUNTS[role] if role == "training" else min(ZOO_COUNTS[role], limit)
    samples = zoo.samples(name, "test" if role == "test" else "calibration", count)
    return Dataset(dict(samples.inputs), samples.labels, f"zoo:{name}")


def text_samples(path: Path, chosen: card.Chosen | None, model: Artifact, limit: int) -> Dataset:
    """Returns the lines of a text file as the inputs of the model, by the tokenizer of the task."""
    if chosen is None or chosen.card.text is None:
        raise ConfigError(f"{path}: a file of texts needs a task that reads text", "give --task and --tokenizer")
    tokens = bind(chosen.card.text, chosen.files, model.manifest.inputs)
    lines = read_lines(path)[:limit]
    rows = [tokens(lines[at : at + tokens.batch]) for at in range(0, len(lines), tokens.batch)]
    names = [spec.name for spec in model.manifest.inputs]
    return Dataset({n: np.concatenate([row[n] for row in rows] or [np.zeros(0)]) for n in names}, None, str(path))


def generated_samples(source: str, model: Artifact, limit: int, log: Path) -> tuple[Dataset, Dependencies]:
    """Returns what a user's generator gives, and what it read meanwhile: it runs in a child that records that."""
    inputs = model.manifest.inputs
    with tempfile.TemporaryDirectory(prefix="anynpu-samples-") as folder:
        record = tool.call(
            "anynpu.quantize.generator:run_generator",
            {"source": source, "inputs": inputs, "limit": limit, "out": folder},
            scratch=Path(folder),
            log=log,
            whole_environment=True,
        )
        samples = read_samples(Path(folder))
    dataset = checked(source, samples.inputs, samples.labels, inputs, limit)
    return dataset, schema.from_dict(Dependencies, record, "what was read")


def labels_for(data: Dataset, model: Artifact, metric: str, names: Sequence[str], required: bool) -> Labels | None:
    """Returns the labels as the metric takes them; a metric that is required and cannot be had raises."""
    manifest = model.manifest
    if data.labels is None:
        if required:
            raise ConfigError(f"--metric {metric}: {data.origin} has no labels", sources.LABEL_FORMS)
        return None
    if not metric:
        return Labels(data.labels, (f"{data.origin} has labels, which nothing scores without a --metric",))
    require_fit(metric, manifest.inputs, manifest.outputs)
    return read_labels(metric, data.labels, data.folders, manifest.outputs, names, data.origin)


def overlap(calibration: Artifact | None, test: Artifact) -> int:
    """Returns how many test samples also occur in the calibration data."""
    if calibration is None:
        return 0
    known = set(calibration.manifest.details["sample_digests"])
    return sum(digest in known for digest in test.manifest.details["sample_digests"])


def require_samples(data: Artifact | None) -> Artifact:
    """Returns the test samples, or says that a build needs some to prove its result."""
    if data is None:
        raise ConfigError(
            "there are no samples to prove the result with",
            "give --data (part of it is held out) or --test; --data random:64 proves the arithmetic only",
        )
    return data

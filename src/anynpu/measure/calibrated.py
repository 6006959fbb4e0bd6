"""With which samples an artifact was calibrated: a file next to the model, so that no score is taken on the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from anynpu import schema
from anynpu.artifact import Artifact, hash_file
from anynpu.errors import ConfigError, IntegrityError
from anynpu.tasks.images import Preprocess
from anynpu.tensors import TensorSpec

FILE = "calibration.json"


@dataclass(frozen=True)
class Calibrated:
    """The samples by digest, the inputs they were made for, and how images became them."""

    data: str
    random: bool
    inputs: tuple[TensorSpec, ...]
    sample_digests: tuple[str, ...]
    preprocess: Preprocess | None = None
    schema_version: int = 1


def keep(folder: Path, data: Artifact | None, model: Artifact) -> None:
    """Writes into an artifact that is being made which samples calibrated it, or those that calibrated its model."""
    if data is None:
        if _entry(model) is not None:
            shutil.copyfile(model.file(FILE), folder / FILE)
        return
    details, step = data.manifest.details, data.manifest.step
    stated = step.options.get("preprocess") if step is not None else None
    calibrated = Calibrated(
        data.digest,
        bool(details["random"]),
        data.manifest.inputs,
        tuple(details["sample_digests"]),
        schema.from_dict(Preprocess, dict(stated), "preprocess") if stated else None,
    )
    text = json.dumps(schema.to_dict(calibrated), indent=1, sort_keys=True, allow_nan=False)
    (folder / FILE).write_text(text + "\n", "utf-8")


def read(artifact: Artifact) -> Calibrated | None:
    """Returns the samples that calibrated an artifact, or None where it says nothing about any."""
    digest = _entry(artifact)
    if digest is None:
        return None
    path = artifact.file(FILE)
    if hash_file(path) != digest:
        raise IntegrityError(f"{path}: not the file that the artifact was made with")
    try:
        calibrated: Calibrated = schema.from_dict(Calibrated, schema.read_json(path), str(path))
    except ConfigError as error:
        raise IntegrityError(error.message, error.hint) from None
    return calibrated


def _entry(artifact: Artifact) -> str | None:
    return next((entry.sha256 for entry in artifact.manifest.files if entry.path == FILE), None)

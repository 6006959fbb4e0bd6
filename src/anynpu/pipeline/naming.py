"""The card's words, title and labels, are written into the artifacts last: a label that changes repeats no conversion.

Until then artifacts carry the number of each class in place of its name. The named artifact has the step of the other,
whose digest is one more input of it, so that evidence on either speaks of both.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from anynpu import schema
from anynpu.artifact import Artifact, Manifest
from anynpu.pipeline.result import BuildResult
from anynpu.pipeline.steps import Steps
from anynpu.store import Store
from anynpu.tasks.card import Card

UNNAMED = "unnamed"


def name_classes(steps: Steps, result: BuildResult) -> None:
    """Gives the float model and every artifact of the chips the title and labels of the user's card."""
    card = steps.chosen.card if steps.chosen else None
    if card is None or not (card.title or card.labels):
        return
    named: dict[str, Artifact] = {}

    def once(artifact: Artifact) -> Artifact:
        if artifact.digest not in named and artifact.manifest.step is not None:
            named[artifact.digest] = _named(steps.store, artifact, card, named)
        return named.get(artifact.digest, artifact)

    if result.model is not None:
        result.model = once(result.model)
    result.chips = [replace(chip, artifacts=tuple(map(once, chip.artifacts))) for chip in result.chips]


def _named(store: Store, artifact: Artifact, card: Card, others: Mapping[str, Artifact]) -> Artifact:
    """Returns an artifact with the card's words; its inputs are the named ones where those are there."""
    task = {**artifact.manifest.task, "title": card.title, "labels": list(card.labels)}
    step = artifact.manifest.step
    assert step is not None
    inputs = {UNNAMED: artifact.digest, "words": schema.digest([card.title, card.labels])}
    for name, digest in step.inputs.items():
        inputs[name] = others[digest].digest if digest in others else digest
        if digest in others:
            inputs[f"{UNNAMED} {name}"] = digest

    def make(out: Path, log: Path) -> Manifest:
        for entry in artifact.manifest.files:
            (out / entry.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artifact.file(entry.path), out / entry.path)
        return replace(artifact.manifest, task=task)

    return store.build(replace(step, inputs=inputs), make).artifact

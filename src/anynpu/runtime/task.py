"""An artifact as the model of a task: its card, the colour order of its pictures, and a session that runs it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, SuspectWarning
from anynpu.runtime.base import open_artifact
from anynpu.runtime.noe.artifact import sealed
from anynpu.runtime.noe.hub_cards import like
from anynpu.runtime.versions import versions_of
from anynpu.runtime.watch import DIFFERENT_INPUTS, watch
from anynpu.tasks import card as cards
from anynpu.tasks.model import Model


@dataclass(frozen=True)
class Subject:
    """An artifact and the card that says what it is for."""

    artifact: Artifact
    chosen: cards.Chosen


def read_subject(
    path: Path,
    kinds: tuple[str, ...],
    *,
    task: str = "",
    tokenizer: str = "",
    channels: str = "",
    strict: bool = False,
) -> Subject:
    """Returns an artifact with its card, or with the card `task` in its place, if that is of one of the kinds."""
    artifact = open_artifact(path, strict)
    chosen = cards.of(artifact, task, tokenizer)
    if chosen.card.kind not in kinds:
        raise ConfigError(
            f"{path}: its card is of kind {chosen.card.kind}, this needs {' or '.join(kinds)}",
            "choose another artifact, or say with --task what the model is for",
        )
    return Subject(_with_channels(artifact, chosen.card, channels, own_card=task.endswith(".toml")), chosen)


def model_of(subject: Subject, session: Any) -> Model:
    """Returns the model as tasks see it, its first answers looked at by the rules of its kind."""
    card, files = subject.chosen.card, subject.chosen.files
    # Two texts never have one vector, and neither a vector nor a detector's boxes are one number throughout.
    watch(session, 2 if card.kind == "embed-text" else DIFFERENT_INPUTS, card.kind != "classify")
    return Model(card, files, session.inputs, session.outputs, session.run, session.what, versions_of(session))


def _with_channels(artifact: Artifact, card: cards.Card, channels: str, own_card: bool) -> Artifact:
    """Returns the artifact with the colour order of its pictures where it does not state one: a bare .cix file.

    What the user says counts first, then the hub's model that has these tensors, then the card, with a warning unless
    the card is the user's own.
    """
    stated = channels.upper()
    inputs = artifact.manifest.inputs
    if card.preprocess is None or not artifact.path.is_file() or any(spec.channels for spec in inputs):
        if stated:
            raise ConfigError(
                "--channels is for bare .cix files of models that take pictures",
                "an artifact states the order itself, and a card in [preprocess] channels",
            )
        return artifact
    order, twin = stated or card.preprocess.channels, None if stated else like(artifact.manifest)
    if order == "GRAY" or (own_card and not stated):
        return artifact
    if twin is not None:
        order = next((tensor.channels for tensor in twin.inputs if tensor.channels), order)
        why = f"as the hub's model {twin.name}, which has the same tensors"
    else:
        why = "as the card has it: nothing in a .cix file says so"
    if not stated:
        other = "BGR" if order == "RGB" else "RGB"
        sentence = f"{artifact.path}: pictures are fed as {order}, {why}; --channels {other} if the model wants that"
        warnings.warn(sentence, SuspectWarning, stacklevel=2)
    ordered = tuple(replace(spec, channels=order) if {*"CHW"} <= {*spec.layout} else spec for spec in inputs)
    return sealed(Artifact(artifact.path, replace(artifact.manifest, inputs=ordered)))

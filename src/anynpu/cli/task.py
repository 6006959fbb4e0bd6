"""What the verbs of tasks share: their flags, and an artifact opened as the model of a task."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from anynpu.artifact import Artifact
from anynpu.cli import options
from anynpu.cli.run import DEVICE, STRICT, TIMEOUT, open_on
from anynpu.errors import ConfigError, SuspectWarning
from anynpu.runtime.base import open_artifact
from anynpu.runtime.noe.artifact import sealed
from anynpu.runtime.versions import versions_of
from anynpu.runtime.watch import DIFFERENT_INPUTS, watch
from anynpu.tasks import card as cards
from anynpu.tasks.model import Model

CHANNELS = click.option(
    "--channels",
    type=click.Choice(("RGB", "BGR"), case_sensitive=False),
    help="Colour order of a bare .cix file's pictures. Its hub's or its card's if not said.",
)
FLAGS = (*options.TASK, DEVICE, CHANNELS, STRICT, TIMEOUT)


@contextmanager
def opened(path: Path, kind: str | tuple[str, ...], given: Mapping[str, Any]) -> Iterator[Model]:
    """Gives the model in an artifact, on the device that the flags name, if its card is of (one of) the kinds."""
    artifact = open_artifact(path, bool(given.get("strict")))
    chosen = cards.of(artifact, given.get("task") or "", given.get("tokenizer") or "")
    kinds = (kind,) if isinstance(kind, str) else kind
    if chosen.card.kind not in kinds:
        raise ConfigError(
            f"{path}: its card is of kind {chosen.card.kind}, this needs {' or '.join(kinds)}",
            "choose another artifact, or say with --task what the model is for",
        )
    artifact = _with_channels(artifact, chosen.card, given)
    session, _ = open_on(artifact, given)
    # Two texts never have one vector, and neither a vector nor a detector's boxes are one number throughout.
    watch(session, 2 if chosen.card.kind == "embed-text" else DIFFERENT_INPUTS, chosen.card.kind != "classify")
    try:
        versions = versions_of(session)
        yield Model(chosen.card, chosen.files, session.inputs, session.outputs, session.run, session.what, versions)
    finally:
        session.close()


def _with_channels(artifact: Artifact, card: cards.Card, given: Mapping[str, Any]) -> Artifact:
    """Returns the artifact with the colour order of its pictures where it does not state one: a bare .cix file.

    What --channels says counts first, then the hub's model that has these tensors, then the card, with a warning unless
    the card is the user's own.
    """
    from anynpu.source import hub

    said = (given.get("channels") or "").upper()
    inputs = artifact.manifest.inputs
    if card.preprocess is None or not artifact.path.is_file() or any(spec.channels for spec in inputs):
        if said:
            raise ConfigError(
                "--channels is for bare .cix files of models that take pictures",
                "an artifact states the order itself, and a card in [preprocess] channels",
            )
        return artifact
    order, known = said or card.preprocess.channels, None if said else hub.like(artifact.manifest)
    own_card = str(given.get("task") or "").endswith(".toml")
    if order == "GRAY" or (own_card and not said):
        return artifact
    if known is not None:
        order = next((tensor.channels for tensor in known.inputs if tensor.channels), order)
        why = f"as the hub's model {known.name}, which has the same tensors"
    else:
        why = "as the card has it: nothing in a .cix file says so"
    if not said:
        other = "BGR" if order == "RGB" else "RGB"
        sentence = f"{artifact.path}: pictures are fed as {order}, {why}; --channels {other} if the model wants that"
        warnings.warn(sentence, SuspectWarning, stacklevel=2)
    ordered = tuple(replace(spec, channels=order) if {*"CHW"} <= {*spec.layout} else spec for spec in inputs)
    return sealed(Artifact(artifact.path, replace(artifact.manifest, inputs=ordered)))

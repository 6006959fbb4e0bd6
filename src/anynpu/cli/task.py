"""What the verbs of tasks share: their flags, and an artifact opened as the model of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anynpu.cli import options
from anynpu.cli.run import DEVICE, TIMEOUT, open_on
from anynpu.errors import ConfigError
from anynpu.runtime.base import open_artifact
from anynpu.tasks import card as cards
from anynpu.tasks.model import Model

FLAGS = (*options.TASK, DEVICE, TIMEOUT)


@contextmanager
def opened(path: Path, kind: str | tuple[str, ...], given: Mapping[str, Any]) -> Iterator[Model]:
    """Gives the model in an artifact, on the device that the flags name, if its card is of (one of) the kinds."""
    artifact = open_artifact(path)
    chosen = cards.of(artifact, given.get("task") or "", given.get("tokenizer") or "")
    kinds = (kind,) if isinstance(kind, str) else kind
    if chosen.card.kind not in kinds:
        raise ConfigError(
            f"{path}: its card is of kind {chosen.card.kind}, this needs {' or '.join(kinds)}",
            "choose another artifact, or say with --task what the model is for",
        )
    session, _ = open_on(artifact, given)
    try:
        yield Model(chosen.card, chosen.files, session.inputs, session.outputs, session.run, session.what)
    finally:
        session.close()

"""What the verbs of tasks share: their flags, and an artifact opened as the model of a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from anynpu.cli import flags
from anynpu.cli.run import DEVICE, STRICT, TIMEOUT, open_on
from anynpu.runtime import task
from anynpu.tasks.model import Model

CHANNELS = click.option(
    "--channels",
    type=click.Choice(("RGB", "BGR"), case_sensitive=False),
    help="Colour order of a bare .cix file's pictures. Its hub's or its card's if not said.",
)
FLAGS = (*flags.TASK, DEVICE, CHANNELS, STRICT, TIMEOUT)


@contextmanager
def opened(path: Path, kind: str | tuple[str, ...], given: Mapping[str, Any]) -> Iterator[Model]:
    """Gives the model in an artifact, on the device that the flags name, if its card is of (one of) the kinds."""
    subject = task.read_subject(
        path,
        (kind,) if isinstance(kind, str) else kind,
        task=given.get("task") or "",
        tokenizer=given.get("tokenizer") or "",
        channels=given.get("channels") or "",
        strict=bool(given.get("strict")),
    )
    with open_on(subject.artifact, given) as session:
        yield task.model_of(subject, session.runtime)

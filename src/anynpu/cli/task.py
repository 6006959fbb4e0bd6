"""What the verbs of tasks share: their flags, and an artifact opened as the model of a task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import click

from anynpu.cli.run import STRICT_HELP, OnDevice, open_on
from anynpu.cli.verb import flag
from anynpu.runtime import task
from anynpu.tasks.model import Model

CHANNELS = click.Choice(("RGB", "BGR"), case_sensitive=False)


@dataclass(frozen=True, kw_only=True)
class TaskFlags(OnDevice):
    """What a model is for, and what its artifact does not say."""

    task: str = flag("What the model is for: yolov8, clip-text, ... or card.toml.", "", metavar="CARD")
    tokenizer: str = flag("The tokenizer of a task that reads text.", "", metavar="FILE")
    channels: str | None = flag(
        "Colour order of a bare .cix file's pictures. By default that of its hub or card.", None, type=CHANNELS
    )
    strict: bool = flag(STRICT_HELP, False)


@contextmanager
def opened(path: Path, kind: str | tuple[str, ...], asked: TaskFlags) -> Iterator[Model]:
    """Gives the model in an artifact, on the device that the flags name, if its card is of (one of) the kinds."""
    subject = task.read_subject(
        path,
        (kind,) if isinstance(kind, str) else kind,
        task=asked.task,
        tokenizer=asked.tokenizer,
        channels=asked.channels or "",
        strict=asked.strict,
    )
    with open_on(subject.artifact, asked) as session:
        yield task.model_of(subject, session.runtime)


def second_model(asked: TaskFlags) -> TaskFlags:
    """Returns the flags for the second model of a verb: --task, --tokenizer and --on speak of the first."""
    return replace(asked, task="", tokenizer="", device=None)

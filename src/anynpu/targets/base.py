"""What a compiler is to the rest of anynpu."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from anynpu.artifact import Artifact, Manifest
from anynpu.errors import Finding
from anynpu.platform import Platform

Progress = Callable[[int, int], None]
"""Called with (done, total) while a long step works."""


class Target(Protocol):
    """A compiler: from format `accepts` to format `produces`.

    `Options` is a frozen dataclass; each field has a default and `metadata={"help": ...}` (see `option`). `Facts` is a
    frozen dataclass for the platform's `facts` table. Both may be empty dataclasses.
    """

    name: str
    accepts: str
    produces: str
    Options: type[Any]
    Facts: type[Any]

    def tools(self) -> Mapping[str, str]:
        """Returns the tools this compiler runs with their versions, without importing them, or raises ToolMissing."""
        ...

    def needs_data(self, options: Any) -> bool:
        """Whether `compile` needs calibration data."""
        ...

    def check(self, model: Artifact, platform: Platform, options: Any) -> tuple[Finding, ...]:
        """Returns why the model would not run whole on that chip; empty when nothing is in the way."""
        ...

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: Any, out: Path, progress: Progress
    ) -> Manifest:
        """Writes the compiled model into the folder `out` and returns what it is."""
        ...


def option(default: Any, help: str) -> Any:
    """A field of an Options dataclass with its help text."""
    from dataclasses import field

    return field(default=default, metadata={"help": help})

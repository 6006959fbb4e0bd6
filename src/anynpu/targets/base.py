"""What a compiler is to the rest of anynpu."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from anynpu.artifact import Artifact, Manifest
from anynpu.errors import Finding
from anynpu.platform import Platform
from anynpu.schema import option

__all__ = ["Move", "NoFacts", "Target", "Work", "option", "other_version", "platform_tools", "scratch"]


@dataclass(frozen=True)
class NoFacts:
    """For a compiler that needs to know nothing of the chip."""


@dataclass(frozen=True)
class Work:
    """What a step may use besides its inputs: a log for its tools, and a way to tell (done, total) while it works."""

    log: Path
    progress: Callable[[int, int], None]


class Target(Protocol):
    """A compiler: from format `accepts` to format `produces`.

    `Options` is a frozen dataclass; each field has a default and `metadata={"help": ...}` (see `option`). `Facts` is a
    frozen dataclass for the platform's `facts` table. Both may be empty dataclasses. What a compiler may offer beyond
    this, `Exact`, `Repeats`, `PlatformTools`, `Settles` and `Searched`, is declared below.
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
        self, model: Artifact, data: Artifact | None, platform: Platform, options: Any, out: Path, work: Work
    ) -> Manifest:
        """Writes the compiled model into the folder `out` and returns what it is."""
        ...


@runtime_checkable
class Exact(Protocol):
    """A compiler with `exact = True` promises that its result repeats, bit by bit, what the artifact it was given
    computes; verification checks it."""

    exact: bool


@runtime_checkable
class Repeats(Protocol):
    """A compiler with `repeats = True` means to: its result and what it was given are executed on part of the samples,
    and a difference is reported, with the figures of what was executed in place of the others."""

    repeats: bool


@runtime_checkable
class PlatformTools(Protocol):
    """A compiler whose result also depends on tools of the chip: their versions become part of the step's address."""

    def platform_tools(self, platform: Platform) -> Mapping[str, str]:
        """Returns those tools with their versions."""
        ...


@runtime_checkable
class Settles(Protocol):
    """A compiler whose defaults depend on model and chip; chips for which they come out the same share the step."""

    def settled(self, options: Any, model: Artifact, platform: Platform) -> Any:
        """Returns the options that count."""
        ...


@dataclass(frozen=True)
class Move:
    """A step of a search: options that are set, and those that fall back to their defaults with it."""

    settings: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    worst: str = ""
    """An option that takes names of tensors: it gets those with the largest errors, one, two, four and so on."""
    costly: bool = False
    """Whether it costs the chip memory, time or bits: such steps come last."""


@runtime_checkable
class Searched(Protocol):
    """A compiler with options that `anynpu sweep --search` tries, promising ones first; the way back to a default needs
    no move."""

    moves: tuple[Move, ...]


@runtime_checkable
class AsksAgreement(Protocol):
    """Options of a compiler that refuses a result too far from the same file on the CPU."""

    agreement_db: float


def moves_of(target: Target) -> tuple[Move, ...]:
    """Returns what a search tries with a compiler."""
    return target.moves if isinstance(target, Searched) else ()


def is_exact(target: Target) -> bool:
    """Returns whether a compiler promises to repeat what it was given."""
    return isinstance(target, Exact) and target.exact


def means_to_repeat(target: Target) -> bool:
    """Returns whether a compiler means to repeat what it was given."""
    return isinstance(target, Repeats) and target.repeats


def platform_tools(target: Target, platform: Platform) -> Mapping[str, str]:
    """Returns the tools that a compiler uses for this chip only, with their versions; most use none."""
    if isinstance(target, PlatformTools) and platform.target == target.name:
        return target.platform_tools(platform)
    return {}


@contextmanager
def scratch(room: Path) -> Iterator[Path]:
    """Makes a folder for a tool to work in and removes it: tools leave dozens of files behind."""
    room.mkdir()
    try:
        yield room
    finally:
        shutil.rmtree(room, ignore_errors=True)


def other_version(tool: str, written_for: str, version: str) -> tuple[str, ...]:
    """Returns the note for a tool of another version than the one that its compiler was written for, if it is."""
    return () if version == written_for else (f"written for {tool} {written_for}, this is {version}",)

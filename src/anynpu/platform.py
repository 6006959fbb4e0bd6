"""Chips as facts: one TOML file each, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from anynpu import schema

T = TypeVar("T")


@dataclass(frozen=True)
class Memory:
    """What the chip has for a model; None where the chip does not bound it."""

    sram_kib: int | None = None
    flash_kib: int | None = None


@dataclass(frozen=True)
class Quirk:
    """Something that surprises users of the chip or its tools, with its source and when it was seen."""

    text: str
    source: str
    seen: str


@dataclass(frozen=True)
class Platform:
    """A chip that a model can be built for.

    `target` names the last compiler of the chain, `facts` holds what that compiler needs to know of the chip; the
    compiler's own `Facts` dataclass reads them strictly. `npu` is empty for a chip without one. `device` names the
    session that must execute the result, where just one speaks for the chip. `boards` are those that carry the chip, as
    their makers call them; `families` are makers' families of parts that a platform for a kind of processor serves, as
    part numbers begin; `clock_mhz` is the NPU's, where it is known.
    """

    name: str
    title: str
    vendor: str
    target: str
    npu: str = ""
    device: str = ""
    aliases: tuple[str, ...] = ()
    boards: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    clock_mhz: float | None = None
    dtypes: tuple[str, ...] = ()
    memory: Memory = field(default_factory=Memory)
    facts: Mapping[str, Any] = field(default_factory=dict)
    quirks: tuple[Quirk, ...] = ()
    source: str = ""

    @property
    def digest(self) -> str:
        return schema.digest(self)

    def facts_as(self, cls: type[T]) -> T:
        """Returns the facts as the dataclass that the compiler declares."""
        return schema.from_dict(cls, self.facts, f"platform {self.name}: facts")


def read_platform(path: Path) -> Platform:
    """Returns the platform that a TOML file describes."""
    return schema.from_dict(Platform, schema.read_toml(path), path.name)

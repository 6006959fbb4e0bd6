"""The record of kind check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anynpu.errors import Finding
from anynpu.schema import Whole, about


@dataclass(frozen=True, kw_only=True)
class ChipFindings(Whole):
    """What is in the way of a model on one chip."""

    chip: str
    findings: tuple[Finding, ...] = ()
    error: str | None = about("what kept the findings from being made", None)


@dataclass(frozen=True, kw_only=True)
class CheckRecord(Whole):
    """What the compilers say of a model before they compile it."""

    schema_version: int = about("the form of this kind of record", 1, minimum=1)
    kind: Literal["check"] = "check"
    chips: tuple[ChipFindings, ...]

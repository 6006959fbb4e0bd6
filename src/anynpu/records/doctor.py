"""The record of kind doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anynpu.schema import Throughout, about


@dataclass(frozen=True, kw_only=True)
class FoundDevice:
    """An NPU of the machine."""

    name: str
    title: str = ""
    found: str = about("where it was seen", "")


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A check of a device, or of the machine itself."""

    check: str
    device: str = ""
    sentence: str = about("what ought to be", "")
    status: Literal["ok", "failed", "unknown", "missing", "skipped"]
    evidence: str = ""
    fix: str = about("the command that fixes it, or that tells more", "")


@dataclass(frozen=True, kw_only=True)
class DoctorRecord(Throughout):
    """The state of a machine."""

    schema_version: int = about("the form of this kind of record", 1, minimum=1)
    kind: Literal["doctor"] = "doctor"
    root: str = ""
    board: str = ""
    kernel: str = ""
    devices: tuple[FoundDevice, ...] = ()
    checks: tuple[Examined, ...] = ()
    first_problem: Examined | None = about("the one to fix before looking again", None)
    healthy: bool

"""A check and what it found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from anynpu.drivers.doctor.machine import Machine
from anynpu.errors import AnyNpuError, IntegrityError, ToolMissing

Status = Literal["ok", "failed", "unknown", "missing", "skipped"]
"""`missing`: something optional is not installed, which is not a problem. `skipped`: an earlier problem comes first."""


@dataclass(frozen=True)
class Result:
    """What a check found: the evidence for it and, unless all is well, the command that fixes it or tells more."""

    status: Status
    evidence: str
    fix: str = ""


Look = Callable[[Machine], Result | None]
"""Looks at a machine; None where there is nothing to look at."""


@dataclass(frozen=True)
class Check:
    """A function whose docstring is the sentence that the user reads; `needs` names checks that must not fail."""

    look: Look
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.look.__name__.replace("_", "-")

    @property
    def sentence(self) -> str:
        return inspect.getdoc(self.look) or ""


@dataclass(frozen=True)
class Finding:
    """A check of one device, or of the machine itself, with its result."""

    check: str
    sentence: str
    device: str
    result: Result


def ok(evidence: str) -> Result:
    """Returns that all is well."""
    return Result("ok", evidence)


def failed(evidence: str, fix: str) -> Result:
    """Returns a problem and the command that fixes it."""
    return Result("failed", evidence, fix)


def unknown(evidence: str, fix: str) -> Result:
    """Returns that the check could not be done, and the command that would tell."""
    return Result("unknown", evidence, fix)


def missing(evidence: str, fix: str) -> Result:
    """Returns that something optional is not there, and the command that brings it."""
    return Result("missing", evidence, fix)


def examine(checks: Iterable[Check], machine: Machine) -> tuple[Finding, ...]:
    """Returns what each check finds, in order; one whose ground is missing is skipped."""
    findings: list[Finding] = []
    stopped: set[str] = set()
    for check in checks:
        blocking = next((need for need in check.needs if need in stopped), "")
        result = Result("skipped", f"{blocking} comes first") if blocking else _look(check, machine)
        if result is None:
            continue
        if result.status in ("failed", "skipped"):
            stopped.add(check.name)
        findings.append(Finding(check.name, check.sentence, machine.device.name if machine.device else "", result))
    return tuple(findings)


def _look(check: Check, machine: Machine) -> Result | None:
    """Looks; what cannot be read is unknown, never well."""
    try:
        return check.look(machine)
    except IntegrityError as error:
        return failed(error.message, error.hint or "install that file again")
    except ToolMissing as error:
        return unknown(error.message, error.hint)
    except AnyNpuError as error:
        return unknown(error.message, error.hint or "sudo anynpu doctor")
    except OSError as error:
        return unknown(f"{error.filename or check.name}: {error.strerror}", "sudo anynpu doctor")

"""anynpu doctor: what is wrong with this machine's NPU, and the command that mends it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anynpu.cli.verb import Common, flag, verb
from anynpu.records.doctor import DoctorRecord, Examined, FoundDevice
from anynpu.records.parts import as_json
from anynpu.schema import to_dict

if TYPE_CHECKING:
    from anynpu.drivers.doctor import Examination
    from anynpu.drivers.doctor.result import Finding

COLOURS = {"ok": "green", "failed": "red", "unknown": "yellow", "missing": "cyan", "skipped": "bright_black"}
WORDS = {"failed": "fix", "missing": "get"}
NO_PROBLEM, PROBLEM = 0, 1


@dataclass(frozen=True, kw_only=True)
class Doctor(Common):
    """What is examined."""

    root: Path = flag(
        "Examine the files of another machine below this folder; nothing outside of it is read.",
        Path("/"),
        metavar="DIR",
    )
    model: tuple[str, ...] = flag("Examine a model file too. Repeat for more.", (), metavar="FILE")
    everything: bool = flag("Show every sentence, and what an earlier problem left out.", False, "--all")


@verb(Doctor)
def doctor(asked: Doctor) -> int:
    """Examine this machine: its NPU, driver, device node, vendor library, packages, and what anynpu stands on.

    Nothing is changed and no vendor library is loaded. Every problem comes with the command that mends it; the last
    line names the first one, which is the one to begin with. Exit status 1 if there is a problem.

    \b
    anynpu doctor
    anynpu doctor --model clip_txt.cix
    anynpu doctor --root /mnt/sdcard --all
    """
    from anynpu.drivers.doctor import diagnose

    told = diagnose(asked.root, tuple(_inside(asked.root, name) for name in asked.model), asked.cache_dir)
    if asked.json:
        click.echo(as_json(to_dict(_record(told))), nl=False)
    else:
        _show(told, asked.everything)
    return PROBLEM if told.first_problem else NO_PROBLEM


def _inside(root: Path, name: str) -> str:
    """Returns the absolute path of a model: on this machine, or as the other machine names it."""
    return str(Path(name).absolute()) if root == Path("/") else str(Path("/") / name)


def _record(told: Examination) -> DoctorRecord:
    first = told.first_problem
    return DoctorRecord(
        root=told.root,
        board=told.board,
        kernel=told.kernel,
        devices=tuple(FoundDevice(name=d.name, title=d.title, found=d.found) for d in told.devices),
        checks=tuple(_row(finding) for finding in told.findings),
        first_problem=_row(first) if first else None,
        healthy=first is None,
    )


def _row(finding: Finding) -> Examined:
    return Examined(check=finding.check, device=finding.device, sentence=finding.sentence, **vars(finding.result))


def _show(told: Examination, everything: bool) -> None:
    click.echo(f"machine  {told.board or 'a computer'}, Linux {told.kernel}" if told.kernel else "machine  no Linux")
    for device in told.devices:
        click.echo(f"NPU      {device.name}: {device.title}, {device.found}")
    if not told.devices:
        click.echo("NPU      none that anynpu knows")
    shown = [f for f in told.findings if everything or f.result.status != "skipped"]
    width = max((len(finding.check) for finding in shown), default=0)
    for finding in shown:
        _line(finding, width, everything)
    first = told.first_problem
    if first is None:
        open_questions = told.count("unknown")
        tail = f", {open_questions} could not be answered" if open_questions else ""
        click.echo(f"no problem found in {told.count('ok')} checks{tail}")
        return
    click.echo(f"first problem: {first.check}: {first.result.evidence}; fix: {first.result.fix}")


def _line(finding: Finding, width: int, everything: bool) -> None:
    """Prints what was found; the sentence says what ought to be, so one that holds is printed only when asked for."""
    result = finding.result
    status = f"{result.status:<8}"
    shown = status if os.environ.get("NO_COLOR") else click.style(status, fg=COLOURS[result.status])
    if result.status == "ok" and not everything:
        click.echo(f"{shown} {finding.check:<{width}}  {result.evidence}")
        return
    click.echo(f"{shown} {finding.check:<{width}}  {finding.sentence}")
    pad = " " * (11 + width)
    click.echo(f"{pad}{result.evidence}")
    if result.fix:
        click.echo(f"{pad}{WORDS.get(result.status, 'try')}: {result.fix}")

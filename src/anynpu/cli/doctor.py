"""anynpu doctor: what is wrong with this machine's NPU, and the command that fixes it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anynpu.cli.table import print_record
from anynpu.cli.verb import Common, flag, verb
from anynpu.records.doctor import DoctorRecord, Examined, FoundDevice

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

    Nothing is changed and no vendor library is loaded. Every problem comes with the command that fixes it; the last
    line names the first one, which is the one to begin with. Exit status 1 if there is a problem.

    \b
    anynpu doctor
    anynpu doctor --model clip_txt.cix
    anynpu doctor --root /mnt/sdcard --all
    """
    from anynpu.drivers.doctor import diagnose

    here = asked.root == Path("/")  # another machine names its models by its own root
    models = tuple(str(Path(name).absolute()) if here else str(Path("/") / name) for name in asked.model)
    examination = diagnose(asked.root, models, asked.cache_dir)
    first = examination.first_problem
    if asked.json:
        print_record(
            DoctorRecord(
                root=examination.root,
                board=examination.board,
                kernel=examination.kernel,
                devices=tuple(FoundDevice(name=d.name, title=d.title, found=d.found) for d in examination.devices),
                checks=tuple(_row(finding) for finding in examination.findings),
                first_problem=_row(first) if first else None,
                healthy=first is None,
            )
        )
    else:
        _show(examination, asked.everything)
    return PROBLEM if first else NO_PROBLEM


def _row(finding: Finding) -> Examined:
    return Examined(check=finding.check, device=finding.device, sentence=finding.sentence, **vars(finding.result))


def _show(examined: Examination, everything: bool) -> None:
    linux = f"machine  {examined.board or 'a computer'}, Linux {examined.kernel}"
    click.echo(linux if examined.kernel else "machine  no Linux")
    for device in examined.devices:
        click.echo(f"NPU      {device.name}: {device.title}, {device.found}")
    if not examined.devices:
        click.echo("NPU      none that anynpu knows")
    findings = [f for f in examined.findings if everything or f.result.status != "skipped"]
    width = max((len(finding.check) for finding in findings), default=0)
    pad = " " * (11 + width)
    for finding in findings:
        result = finding.result
        status = f"{result.status:<8}"
        if not os.environ.get("NO_COLOR"):
            status = click.style(status, fg=COLOURS[result.status])
        if result.status == "ok" and not everything:  # the sentence says what ought to be, so it adds nothing
            click.echo(f"{status} {finding.check:<{width}}  {result.evidence}")
            continue
        click.echo(f"{status} {finding.check:<{width}}  {finding.sentence}")
        click.echo(f"{pad}{result.evidence}")
        if result.fix:
            click.echo(f"{pad}{WORDS.get(result.status, 'try')}: {result.fix}")
    first = examined.first_problem
    if first is None:
        unanswered = examined.count("unknown")
        tail = f", {unanswered} could not be answered" if unanswered else ""
        click.echo(f"no problem found in {examined.count('ok')} checks{tail}")
    else:
        click.echo(f"first problem: {first.check}: {first.result.evidence}; fix: {first.result.fix}")

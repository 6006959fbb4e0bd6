"""The processes that this one started, and those that they started: a session's worker is part of what is measured.

A vendor's runtime in a process of its own, an emulator, a compiled program: their processor time and memory are the
model's. Time is conserved: a process that ends leaves what it used to its parent, which the kernel adds up.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Used:
    """Processor seconds of this process and all it started, and which processes those are."""

    user_s: float
    system_s: float
    own_s: float
    """What this process used by itself."""
    workers: tuple[int, ...]


def stat_fields(root: Path, pid: str) -> list[str]:
    """Returns the fields of a process's stat from its state on; nothing for one that has ended."""
    try:
        # The name, in brackets, may hold anything, brackets and blanks too.
        return (root / "proc" / pid / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def below(root: Path, parents: set[int]) -> dict[int, list[str]]:
    """Returns the fields of every process that some processes started, and that those started in turn."""
    try:
        names = [each.name for each in (root / "proc").iterdir() if each.name.isdecimal()]
    except OSError:
        return {}
    processes = {int(name): fields for name in names if len(fields := stat_fields(root, name)) > 14}
    started: dict[int, list[str]] = {}
    while parents:
        parents = {pid for pid, fields in processes.items() if int(fields[1]) in parents and pid not in started}
        started |= {pid: processes[pid] for pid in parents}
    return started


def used(root: Path) -> Used:
    """Returns what this process and all it started have used until now."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    started, tick = below(root, {os.getpid()}), os.sysconf("SC_CLK_TCK")
    # utime, stime, and those of children that have ended and been waited for
    times = [[int(fields[at]) / tick for at in (11, 12, 13, 14)] for fields in started.values()]
    return Used(
        own.ru_utime + ended.ru_utime + sum(t[0] + t[2] for t in times),
        own.ru_stime + ended.ru_stime + sum(t[1] + t[3] for t in times),
        own.ru_utime + own.ru_stime,
        tuple(started),
    )


def memory(root: Path, name: str, process: int | str = "self") -> int | None:
    """Returns a line of a process's status ("VmRSS", "VmHWM") in bytes; None where there is none."""
    try:
        lines = (root / "proc" / str(process) / "status").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), None)


def forget_peak(root: Path, process: int | str = "self") -> bool:
    """Makes the kernel count the peak of a process's memory anew; False where it does not let us."""
    try:
        (root / "proc" / str(process) / "clear_refs").write_text("5")
    except OSError:
        return False
    return True

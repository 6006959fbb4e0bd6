"""Checks for every machine: what anynpu itself stands on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from anynpu import plugins
from anynpu.drivers.doctor import fixes
from anynpu.drivers.doctor.machine import Machine
from anynpu.drivers.doctor.result import Check, Result, failed, missing, ok
from anynpu.errors import ToolFailed, ToolMissing

OLDEST_PYTHON = (3, 11)
LEAST_FREE_GIB = 1
COMPILERS = {
    "cc": "build-essential",
    "make": "build-essential",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "riscv64-unknown-elf-gcc": "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
}
EMULATORS = {"qemu-system-arm": "qemu-system-arm"}


def python(machine: Machine) -> Result:
    """Python is new enough for anynpu."""
    version = ".".join(str(part) for part in machine.python)
    if machine.python >= OLDEST_PYTHON:
        return ok(f"Python {version}")
    if not any(machine.python):
        return failed("no python3", fixes.apt("python3 python3-venv"))
    return failed(f"Python {version}: anynpu needs 3.11 or later", fixes.apt("python3.11 python3.11-venv"))


def compilers(machine: Machine) -> Result:
    """The compilers of firmware projects and kernel modules are installed."""
    return _programs(machine, COMPILERS)


def emulators(machine: Machine) -> Result:
    """The emulators that run firmware without a board are installed."""
    return _programs(machine, EMULATORS)


def _programs(machine: Machine, wanted: dict[str, str]) -> Result:
    paths = {name: machine.program(name) for name in wanted}
    lost = [name for name, path in paths.items() if not path]
    if not lost:
        return ok(", ".join(paths.values()))
    packages = " ".join(dict.fromkeys(wanted[name] for name in lost))
    return missing(f"no {', '.join(lost)}", fixes.apt(packages))


def toolchains(machine: Machine) -> Result:
    """The compilers that anynpu drives are ready."""

    def lacks(name: str) -> str:
        try:
            plugins.load("targets", name)().tools()
        except ToolMissing as error:
            return error.hint or error.message
        return ""

    return _plugins("targets", lacks)


def runtimes(machine: Machine) -> Result:
    """The runtimes that execute artifacts here are ready."""

    def lacks(name: str) -> str:
        missing: str = plugins.load("sessions", name).missing()
        return missing

    return _plugins("sessions", lacks)


def _plugins(kind: str, lacks: Callable[[str], str]) -> Result:
    ready, lost = [], {}
    for name in plugins.names(kind):
        try:
            lacking = lacks(name)
        except ToolFailed as error:
            return failed(error.message, error.hint or "anynpu tool list")
        if lacking:
            lost[name] = lacking
        else:
            ready.append(name)
    evidence = f"ready: {', '.join(ready) or 'none'}"
    if not lost:
        return ok(evidence)
    return missing(f"{evidence}; not installed: {', '.join(lost)}", "anynpu tool list    # says how to get each")


def cache(machine: Machine) -> Result:
    """The cache can be written and its disk has room."""
    folder = machine.cache.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(there, os.W_OK):
        return failed(f"{there} cannot be written", "export ANYNPU_CACHE_DIR=$HOME/anynpu-cache")
    free = shutil.disk_usage(there).free / 2**30
    if free < LEAST_FREE_GIB:
        return failed(f"{free:.1f} GiB free in {_short(folder)}", "anynpu cache prune --max-size 1G")
    return ok(f"{free:.1f} GiB free in {_short(folder)}")


def _short(folder: Path) -> str:
    home = str(Path.home())
    return str(folder).replace(home, "~", 1) if str(folder).startswith(home + "/") else str(folder)


EVERYWHERE = (Check(python), Check(compilers), Check(emulators))
OF_THIS_PROCESS = (Check(toolchains), Check(runtimes), Check(cache))
"""About the program that runs now: only asked of the machine that runs it."""

"""Emulated microcontrollers: QEMU's Arm boards with their UART as the line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from anynpu.errors import ConfigError
from anynpu.runtime.device.program import Program
from anynpu.schema import near

PROGRAM = "qemu-system-arm"
PACKAGE = "apt install qemu-system-arm"
MACHINES: Mapping[str, str] = MappingProxyType({"mps2-an386": "Cortex-M4F", "mps3-an547": "Cortex-M55"})


def command(machine: str, elf: Path) -> list[str]:
    """Returns the argv that runs a firmware with its UART on stdin and stdout.

    With -icount shift=0 the clock of the emulated board advances by one nanosecond per instruction: what the firmware
    measures is a count of instructions, the same in every run.
    """
    if machine not in MACHINES:
        raise ConfigError(
            f"no such emulated board: {machine}{near(machine, MACHINES)}", "known: " + ", ".join(MACHINES)
        )
    quiet = ["-display", "none", "-monitor", "none", "-nodefaults"]
    semihosting = ["-semihosting-config", "enable=on,target=native"]
    line = ["-chardev", "stdio,id=line,signal=off", "-serial", "chardev:line"]
    return [PROGRAM, "-M", machine, *quiet, *line, *semihosting, "-icount", "shift=0", "-kernel", str(elf)]


def line_to(machine: str, elf: Path) -> Program:
    """Returns the line to an emulated board that runs the firmware `elf`."""
    where = f"QEMU {machine} ({MACHINES.get(machine, '?')})"
    return Program(command(machine, elf), elf.parent, where, hint=PACKAGE)

"""Debug probes: the commands of OpenOCD, pyOCD and probe-rs that write a firmware, check it and start it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from anynpu import tool
from anynpu.errors import ConfigError, ToolMissing


@dataclass(frozen=True)
class Wiring:
    """What the probe's program must know: the chip and the probe as it names them, and where plain bytes go."""

    chip: str = ""
    probe: str = ""
    address: int | None = None


@dataclass(frozen=True)
class Programmer:
    """A program that drives debug probes."""

    name: str
    kinds: tuple[str, ...]
    install: str
    commands: Callable[[Path, Wiring], list[list[str]]]


def _openocd(image: Path, wiring: Wiring) -> list[list[str]]:
    if set(str(image)) & set("{}\\"):
        raise ConfigError(f"{image}: OpenOCD cannot be given a path with braces or backslashes", "copy the file")
    files = [name if name.endswith(".cfg") else f"interface/{name}.cfg" for name in _given(wiring.probe)]
    files += [name if name.endswith(".cfg") else f"target/{name}.cfg" for name in _given(wiring.chip)]
    at = f" {_address(image, wiring):#x}" if image.suffix == ".bin" else ""
    flags = [word for name in files for word in ("-f", name)]
    return [["openocd", *flags, "-c", f"program {{{image}}}{at} verify reset exit"]]


def _pyocd(image: Path, wiring: Wiring) -> list[list[str]]:
    flags = ["--no-wait", "--target", wiring.chip]  # it would wait for a probe for ever
    flags += ["--uid", wiring.probe] if wiring.probe else []
    flags += ["--base-address", f"{_address(image, wiring):#x}"] if image.suffix == ".bin" else []
    return [["pyocd", "flash", *flags, "--format", image.suffix[1:], str(image)]]


def _probe_rs(image: Path, wiring: Wiring) -> list[list[str]]:
    flags = ["--chip", wiring.chip]
    flags += ["--probe", wiring.probe] if wiring.probe else []
    kind = ["--binary-format", image.suffix[1:]]
    kind += ["--base-address", f"{_address(image, wiring):#x}"] if image.suffix == ".bin" else []
    return [["probe-rs", "download", *flags, *kind, "--verify", str(image)], ["probe-rs", "reset", *flags]]


def _given(text: str) -> list[str]:
    return [text] if text else []


def _address(image: Path, wiring: Wiring) -> int:
    if wiring.address is None:
        raise ConfigError(f"{image}: plain bytes do not say where they go", "give --address, such as 0x08000000")
    return wiring.address


KINDS = (".elf", ".hex", ".bin")
PROGRAMMERS: Mapping[str, Programmer] = MappingProxyType(
    {
        "openocd": Programmer("openocd", KINDS, "apt install openocd", _openocd),
        "pyocd": Programmer("pyocd", KINDS, "pip install pyocd", _pyocd),
        "probe-rs": Programmer("probe-rs", KINDS, "cargo install probe-rs-tools --locked", _probe_rs),
    }
)


def commands(programmer: Programmer, image: Path, wiring: Wiring) -> list[list[str]]:
    """Returns the argv lists that write the firmware, check it and start it."""
    if not wiring.chip and not (programmer.name == "openocd" and wiring.probe.endswith(".cfg")):
        raise ConfigError(f"{programmer.name} must know the chip", "give --chip, such as " + EXAMPLES[programmer.name])
    return programmer.commands(image.absolute(), wiring)


EXAMPLES = {"openocd": "stm32f4x with --probe stlink", "pyocd": "stm32f407vg", "probe-rs": "STM32F407VG"}


def shown(argv: list[str]) -> str:
    """Returns a command as one would type it."""
    return shlex.join(argv)


def flash(programmer: Programmer, argvs: list[list[str]], log: Path, timeout_s: float) -> None:
    """Runs the commands one after the other; each ends within `timeout_s`."""
    for argv in argvs:
        try:
            tool.run(argv, cwd=log.parent, log=log, timeout_s=timeout_s, hint=HINT)
        except ToolMissing as missing:
            raise ToolMissing(missing.message, programmer.install) from None


HINT = "is the probe plugged in, the board powered, and the chip's name right?"

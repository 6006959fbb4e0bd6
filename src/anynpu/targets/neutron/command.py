"""Calling neutron-converter: where it is, which version, which chips it knows, and one conversion."""

from __future__ import annotations

import functools
import os
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

from anynpu import tool
from anynpu.capsules import toolchain
from anynpu.capsules.toolchain import Installed
from anynpu.errors import ConfigError, ToolFailed
from anynpu.targets.base import option

TOOLCHAIN, NAME = "eiq", "neutron-converter"
WRITTEN_FOR = ("2.0.2", "3.1.1")
"""The versions whose output is public: the log of the first, the list of chips of the second."""
KNOWN_TARGETS = ("mcxn54x", "mcxn94x", "imxrt700", "imx95", "imx943", "imx952", "s32k5", "s32n79", "imxrt2660")
INPUT, OUTPUT = "model.tflite", "model_neutron.tflite"
ASK_S = 60


@dataclass(frozen=True)
class NeutronFacts:
    """What neutron-converter calls the chip."""

    target: str


@dataclass(frozen=True)
class NeutronOptions:
    """What the user may choose."""

    neutron_target: str | None = option(None, "the name that neutron-converter has for the chip, instead of the chip's")
    use_sequencer: bool = option(False, "give --use-sequencer: Neutron bytecode, for chips that have a sequencer")
    fetch_constants_to_sram: bool = option(
        False, "give --fetch-constants-to-sram: weights stay in flash and are fetched layer by layer (Neutron-C)"
    )
    converter_arguments: str = option("", "more arguments for neutron-converter, as in a shell")
    time_limit_s: float = option(1800.0, "seconds after which a conversion counts as hanging")

    def __post_init__(self) -> None:
        if self.time_limit_s <= 0:
            raise ConfigError(f"time_limit_s={self.time_limit_s:g}: more than zero seconds were expected")


def find() -> Installed:
    """Returns the converter that EIQ_NEUTRON_PATH names or the PATH holds, or raises ToolMissing."""
    return toolchain.find(TOOLCHAIN)


def environment(installed: Installed) -> dict[str, str]:
    """Returns the variables that it runs with: the SDK keeps its libraries in `lib` next to `bin`."""
    variables = installed.environment()
    own = installed.program.parent.parent / "lib"
    paths = [str(own)] if own.is_dir() else []
    paths += filter(None, (variables.get("LD_LIBRARY_PATH") or os.environ.get("LD_LIBRARY_PATH", "")).split(":"))
    return variables | ({"LD_LIBRARY_PATH": ":".join(paths)} if paths else {})


def version(installed: Installed) -> str:
    """Returns the version that the program says, or an empty string where it says none."""
    match = re.search(r"version\s+v?(\d+(?:\.\d+)+[^\s,;]*)", _asked(installed, "--version"))
    return match[1] if match else ""


def targets(installed: Installed) -> tuple[str, ...]:
    """Returns the chips that the program lists; empty where this version has no list that is understood."""
    words = re.findall(r"\b[a-z][a-z0-9]*\d[a-z0-9]*\b", _asked(installed, "--show-targets"))
    return tuple(dict.fromkeys(words)) if set(words) & set(KNOWN_TARGETS) else ()


def _asked(installed: Installed, flag: str) -> str:
    # The digest of the program is part of the key: one that was replaced is asked again.
    return _answer(installed.program, installed.version, flag, tuple(environment(installed).items()))


@functools.lru_cache
def _answer(program: Path, identity: str, flag: str, variables: tuple[tuple[str, str], ...]) -> str:
    """Returns what the program prints for a question, or an empty string where it fails over it."""
    with tempfile.TemporaryDirectory(prefix="anynpu-") as name:
        room = Path(name)
        try:
            argv = [str(program), flag]
            return tool.run(argv, cwd=room, log=room / "log", timeout_s=ASK_S, environment=dict(variables)).output
        except ToolFailed:
            return ""


def require_target(installed: Installed, target: str) -> str:
    """Returns a note where the list of chips could not be asked; a chip that is not in it raises."""
    listed = targets(installed)
    if not listed:
        return f"this {NAME} lists no chips: {target} was not checked beforehand"
    if target not in listed:
        chips = ", ".join(word for word in listed if word in KNOWN_TARGETS)
        hint = f"it lists {chips}; another release of the eIQ Neutron SDK may have it"
        raise ConfigError(f"{NAME} {version(installed) or installed.version} has no target {target}", hint)
    return ""


def arguments(target: str, options: NeutronOptions) -> list[str]:
    """Returns the arguments of one conversion."""
    argv = ["--input", INPUT, "--output", OUTPUT, "--target", target]
    argv += ["--use-sequencer"] if options.use_sequencer else []
    argv += ["--fetch-constants-to-sram"] if options.fetch_constants_to_sram else []
    try:
        return argv + shlex.split(options.converter_arguments)
    except ValueError as error:
        raise ConfigError(f"-O converter_arguments: {error}") from None


def convert(installed: Installed, room: Path, target: str, options: NeutronOptions, log: Path) -> str:
    """Converts INPUT in the folder `room` and returns what the program printed; OUTPUT is there afterwards."""
    argv = [str(installed.program), *arguments(target, options)]
    variables, limit = environment(installed), options.time_limit_s
    output = installed.run(argv, cwd=room, log=log, timeout_s=limit, environment=variables, called=NAME).output
    installed.toolchain.require_file(room / OUTPUT, NAME, log, argv, output)
    return output

"""Calling Vela: its configuration, its argument list, and the figures it writes."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from importlib import resources, util
from pathlib import Path
from typing import Literal

from anynpu import tool
from anynpu.errors import ConfigError, ToolFailed, ToolMissing
from anynpu.targets.base import option

INSTALL = "pip install 'anynpu[build]'"
CHIPS_OWN = {"internal-default": "none"}
"""What older versions of Vela called a system that no chip has; the chip's own takes its place."""


@dataclass(frozen=True)
class VelaFacts:
    """What Vela must know of a chip; `config` is one of anynpu's own files or one that comes with Vela."""

    accelerator: str
    config: str
    system_config: str
    memory_mode: str


@dataclass(frozen=True)
class VelaOptions:
    """What the user may choose."""

    optimise: Literal["best-latency", "best-size", "performance", "size"] = option(
        "best-latency",
        "compile for performance and for size and keep the better for the goal, or only for one",
        unpu="vela_optimise",
    )
    arena_cache_size: int | None = option(None, "SRAM in bytes that Vela may use, instead of the memory mode's own")
    memory_mode: str | None = option(
        None, "memory mode of the configuration file, instead of the chip's", unpu_values=CHIPS_OWN
    )
    system_config: str | None = option(
        None,
        "system configuration of the file, instead of the chip's",
        unpu="config_vela_system",
        unpu_values=CHIPS_OWN,
    )
    config: Path | None = option(None, "a Vela configuration file (.ini) of your own", unpu="config_vela")
    ignore_ops: str | None = option(None, "operator kinds to leave to the CPU, such as ARG_MAX,GELU")
    tensor_allocator: Literal["HillClimb", "Greedy", "LinearAlloc"] | None = option(None, "how tensors are packed")
    cpu_tensor_alignment: int | None = option(None, "alignment in bytes of tensors that the CPU touches (16)")
    force_symmetric_int_weights: bool = option(False, "set the zero points of integer weights to 0; changes results")
    max_block_dependency: int | None = option(None, "deprecated by Vela 5, 0 to 3")
    hillclimb_max_iterations: int | None = option(None, "deprecated by Vela 5")
    recursion_limit: int | None = option(None, "deprecated by Vela 5")


LEAVE = "leave the operator that the log names to the CPU with -O ignore_ops=KIND"
KNOWN = {
    "Could not find a valid OFM microblock": LEAVE,
    "operation (And) could not run on NPU": "this NPU has no outputs of type bool: end the model with a Cast to float",
    "could not run on NPU": LEAVE,
    "Does not have valid TFLite Semantics": "TFLite has no such operator for these types: quantise it to int8",
}
"""Last words of Vela 5.2 when it fails, and what helps."""

PASSED_ON = (
    "ignore_ops",
    "arena_cache_size",
    "tensor_allocator",
    "cpu_tensor_alignment",
    "max_block_dependency",
    "hillclimb_max_iterations",
    "recursion_limit",
)


@dataclass(frozen=True)
class Figures:
    """What Vela estimates of one compilation; latency and cycles are of the NPU alone."""

    latency_ms: float
    cycles: int
    sram_bytes: int
    dram_bytes: int
    flash_bytes: int


@dataclass(frozen=True)
class Compiled:
    """One compilation: its goal, the model file, Vela's figures and everything it printed."""

    goal: str
    model: Path
    per_layer: Path
    database: Path
    figures: Figures
    output: str


def config_path(name: str, own: Path | None = None) -> Path:
    """Returns the configuration file: the user's own, one of anynpu's, or one that comes with Vela."""
    if own is not None:
        path = own.absolute()
        if not path.is_file():
            raise ConfigError(f"vela config: {own}: no such file")
        return path
    ours = Path(str(resources.files("anynpu.data.vela"))) / name
    if ours.is_file():
        return ours
    package = util.find_spec("ethosu")
    for folder in package.submodule_search_locations or () if package else ():
        if (path := Path(folder) / "config_files" / name).is_file():
            return path
    raise ToolMissing(f"vela config {name}: it comes with ethos-u-vela, which is not installed", INSTALL)


def check_sections(path: Path, system_config: str, memory_mode: str) -> None:
    """Raises unless the configuration file has that system and that memory mode."""
    import configparser

    parser = configparser.ConfigParser()
    try:
        parser.read_string(path.read_text("utf-8"), path.name)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name}: not a Vela configuration file: {error}") from None
    for kind, name in (("System_Config", system_config), ("Memory_Mode", memory_mode)):
        names = {s.removeprefix(kind + ".") for s in parser.sections() if s.startswith(kind + ".")}
        if name not in names:
            raise ConfigError(f"{path.name}: no {kind} {name}", f"it has {', '.join(sorted(names))}")


def arguments(model: Path, facts: VelaFacts, options: VelaOptions, goal: str, folder: str) -> list[str]:
    """Returns the argument list that compiles `model` for `goal` ("performance" or "size")."""
    config = config_path(facts.config, options.config)
    system, mode = options.system_config or facts.system_config, options.memory_mode or facts.memory_mode
    check_sections(config, system, mode)
    # As a module: the script `vela` is not on the path of an environment that is not activated.
    argv = [sys.executable, "-m", "ethosu.vela", str(model), "--accelerator-config", facts.accelerator]
    # Vela warns about the full path of its own files.
    own = "config_files" in config.parts and options.config is None
    argv += ["--config", facts.config if own else str(config), "--system-config", system, "--memory-mode", mode]
    argv += ["--optimise", goal.capitalize(), "--output-dir", folder]
    # Not --show-cpu-operations: Vela 5.2 ends with a KeyError over ARG_MAX then, and counts without it as well.
    # The debug database says which layer each operation of the stream comes from.
    argv += ["--verbose-performance", "--enable-debug-db"]
    for name in PASSED_ON:
        if (value := getattr(options, name)) is not None:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    return [*argv, "--force-symmetric-int-weights"] if options.force_symmetric_int_weights else argv


def run(model: Path, facts: VelaFacts, options: VelaOptions, goal: str, out: Path, log: Path) -> Compiled:
    """Compiles into a folder below `out`, and leaves in `out/logs` what Vela said, the same for the same build."""
    folder = out / f"vela-{goal}"
    argv = arguments(model.absolute(), facts, options, goal, folder.name)
    # Vela prints from Python and from C++: unbuffered, the two come in their order.
    environment = {**tool.python_environment(), "PYTHONUNBUFFERED": "1"}
    try:
        ran = tool.run(argv, cwd=out, log=log, environment=environment, called="Vela", spawned_by=tool.forked)
        output = ran.output
    except ToolFailed as failure:
        last = "\n".join(failure.last_lines)
        failure.hint = next((hint for words, hint in KNOWN.items() if words in last), "the log has Vela's own words")
        raise
    kept = out / "logs" / f"vela-{goal}.log"
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Without the folders of this machine the same build has the same digest.
    source, config = argv[3], argv[argv.index("--config") + 1]
    kept.write_text(output.replace(source, Path(source).name).replace(config, Path(config).name), "utf-8")

    def file_of(ending: str) -> Path:
        return tool.require_file(folder / f"{model.stem}_{ending}", "Vela", log, argv)

    return Compiled(
        goal,
        model=file_of("vela.tflite"),
        per_layer=file_of("per-layer.csv"),
        database=file_of("debug.xml"),
        figures=_figures(file_of(f"summary_{argv[argv.index('--system-config') + 1]}.csv")),
        output=output,
    )


def _figures(summary: Path) -> Figures:
    with summary.open(encoding="utf-8", newline="") as stream:
        row: dict[str, str] = next(csv.DictReader(stream), {})
    try:
        kib = {key: float(row[f"{key}_memory_used"]) for key in ("sram", "dram", "on_chip_flash", "off_chip_flash")}
        return Figures(
            latency_ms=float(row["inference_time"]) * 1000,
            cycles=int(float(row["cycles_total"])),
            sram_bytes=round(kib["sram"] * 1024),
            dram_bytes=round(kib["dram"] * 1024),
            flash_bytes=round((kib["on_chip_flash"] + kib["off_chip_flash"]) * 1024),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ToolFailed(f"Vela's summary {summary.name} is not as expected: {error}") from None

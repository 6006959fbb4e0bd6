"""A build as µNPU-Bench asks for it: formats and hardware instead of chips, a source tree for every board."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from anynpu import plugins
from anynpu.artifact import Artifact, Manifest
from anynpu.errors import AnyNpuError, ConfigError, ToolMissing
from anynpu.firmware.project.answers import FILE as VECTORS
from anynpu.firmware.project.boards import BOARDS
from anynpu.firmware.project.tree import make_project
from anynpu.pipeline.result import BuildResult, ChipResult
from anynpu.pipeline.unpu_flags import FORMATS, bits, closure
from anynpu.platform import Platform
from anynpu.records.parts import error_record
from anynpu.schema import JsonObject, near
from anynpu.tensors import TensorSpec

ALL = "all"
SOURCES = (".c", ".h", ".cpp", ".md", ".json", "")
PROJECT = ("Makefile", "CMakeLists.txt", "project.mk")


@dataclass(frozen=True)
class Wanted:
    """One format for one chip: our chip that gives it, or the reason why none does."""

    format: str
    hardware: str
    chip: str = ""
    error: AnyNpuError | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in closure((self.format,)) if name != self.format)


@dataclass(frozen=True)
class Row:
    """What one wanted format came to: the chip's result, its files and the folder of its source tree."""

    wanted: Wanted
    result: ChipResult | None = None
    file: str = ""
    tree: str = ""
    error: AnyNpuError | None = None

    @property
    def exit_status(self) -> int:
        if self.error is not None:
            return self.error.exit_status
        return self.result.exit_status if self.result else 0

    @property
    def status(self) -> str:
        if self.error is not None:
            return type(self.error).__name__
        return self.result.status if self.result else ""


def wanted(formats: Sequence[str], hardware: Sequence[str], stated: bool) -> tuple[Wanted, ...]:
    """Returns the pairs of format and hardware that exist; one that nothing serves raises ConfigError.

    `stated` says whether the user named the hardware: formats that serve every chip ask no default for its name.
    """
    lenient = not stated or not all(FORMATS[name].registered for name in formats)
    platforms = {}
    for name in hardware:
        try:
            platform = plugins.platform(name)
            platforms[platform.name] = platform
        except ConfigError as error:
            if not lenient:
                raise ConfigError(f"--target_hardware {name}: {error.message}", error.hint) from None
    chips = list(platforms.values())
    pairs: list[Wanted] = []
    for name in formats:
        format = FORMATS[name]
        if format.chip:
            pairs.append(Wanted(name, ALL, format.chip))
            # A core without an NPU gets what TFLite-Micro computes as C, which needs no interpreter on the chip.
            pairs += [Wanted(name, c.name, c.name) for c in chips if name == "tflm" and c.target == "mcu_c"]
        elif not format.registered:
            missing = ToolMissing(f"format {name}: this anynpu has no compiler {format.compiler}", "update anynpu")
            pairs.append(Wanted(name, ",".join(hardware), error=missing))
        elif own := [c for c in chips if c.target == format.compiler]:
            pairs += [Wanted(name, c.name, c.name) for c in own]
        else:
            known = ", ".join(format.hardware()) or "no chip here"
            raise ConfigError(f"format {name} does not build for {', '.join(hardware)}", f"it builds for {known}")
    for chip in () if any(FORMATS[name].chip for name in formats) else chips:
        if chip.target not in {FORMATS[name].compiler for name in formats}:
            able = [f.name for f in FORMATS.values() if f.chip or f.compiler == chip.target]
            raise ConfigError(f"{chip.name}: {', '.join(formats)} does not build for it", f"{', '.join(able)} do")
    return tuple(pairs)


def with_bits(pairs: Iterable[Wanted], width: str) -> tuple[tuple[Wanted, ...], dict[str, str]]:
    """Returns the pairs, those that have no such bit width with the reason, and the options of the others."""
    able: list[Wanted] = []
    options: dict[str, str] = {}
    for pair in pairs:
        try:
            dtypes = plugins.platform(pair.chip).dtypes if pair.chip else ()
            options |= {} if pair.error else bits(width, pair.format, dtypes)
            able.append(pair)
        except AnyNpuError as error:
            able.append(Wanted(pair.format, pair.hardware, error=error))
    return tuple(able), options


def check_tensors(
    model: Manifest, inputs: Mapping[str, tuple[int, ...] | None], outputs: Sequence[str], shapes: Sequence[Any]
) -> list[str]:
    """Raises where the model is not as stated; returns a sentence for a shape that only holds as many values."""
    names = [spec.name for spec in model.inputs]
    for name, shape in inputs.items():
        spec = _named("--input_names", name, model.inputs, names)
        if shape and spec.shape != shape:
            raise ConfigError(f"--input_shape {_plain(shape)}: input {name} of the model is {_plain(spec.shape)}")
    for name in outputs:
        _named("--output_names", name, model.outputs, [spec.name for spec in model.outputs])
    notes = []
    real = "; ".join(f"{spec.name}: {_plain(spec.shape)}" for spec in model.outputs)
    for shape in map(tuple, shapes):
        if any(shape in (spec.shape, spec.shape[1:]) for spec in model.outputs):  # with or without its batch axis
            continue
        flag = f"--output_shape {_plain(shape)}"
        if any(math.prod(shape) == math.prod(spec.shape) for spec in model.outputs):
            notes.append(f"{flag}: the model's own shape is kept: {real}")
        elif len(model.outputs) > 1:  # one flag cannot describe several: µNPU-Bench's own example states none of them
            notes.append(f"{flag}: no output of the model has it, not used; it gives {real}")
        else:
            raise ConfigError(f"{flag}: no output of the model has it", f"the model gives {real}")
    return notes


def _named(flag: str, name: str, specs: Sequence[TensorSpec], known: Sequence[str]) -> TensorSpec:
    for spec in specs:
        if spec.name == name:
            return spec
    raise ConfigError(f"{flag} {name}: the model has no such tensor{near(name, known)}", f"it has {', '.join(known)}")


def _plain(shape: Iterable[int]) -> str:
    return " ".join(map(str, shape))


def deliver(result: BuildResult, pairs: Iterable[Wanted], name: str) -> tuple[list[Row], dict[str, bytes]]:
    """Returns what each pair came to and the files that go to the output folder: models by name, source trees."""
    by_chip = {chip.chip: chip for chip in result.chips}
    rows: list[Row] = []
    files: dict[str, bytes] = {}
    for pair in pairs:
        chip = by_chip.get(pair.chip)
        if chip is None or chip.error is not None or chip.artifact is None:
            rows.append(Row(pair, chip, error=pair.error or (chip.error if chip else None)))
            continue
        file = file_name(name, pair, chip.artifact)
        if file:
            files[file] = chip.artifact.main.read_bytes()
        tree, sources, error = _source_tree(pair, chip)
        files |= {f"{tree}/{path}": data for path, data in sources.items()}
        rows.append(Row(pair, chip, file, tree, error))
    return rows, files


def file_name(name: str, pair: Wanted, artifact: Artifact) -> str:
    """Returns where the model file of a pair goes: models/NAME_FORMAT[_HARDWARE].SUFFIX; nowhere if it is sources."""
    if artifact.main.suffix in SOURCES:
        return ""
    hardware = "" if pair.hardware == ALL else f"_{pair.hardware}"
    return f"models/{name}_{pair.format}{hardware}{artifact.main.suffix}"


def board_of(platform: Platform) -> str:
    """Returns the board whose project a chip's artifact goes into, or an empty string."""
    if platform.name in BOARDS:
        return platform.name
    general = {"vela": "ethos-u", "mcu_c": "cmsis"}.get(platform.target, "")
    takes = BOARDS[general].chips if general else ()
    return general if not takes or platform.name in takes else ""


def is_c(chip: str) -> bool:
    """Whether the chip gets generated C."""
    return plugins.platform(chip).target == "mcu_c"


def _source_tree(pair: Wanted, chip: ChipResult) -> tuple[str, dict[str, bytes], AnyNpuError | None]:
    """Returns the folder of the project for the board, the files that are yet to be written there, and what failed."""
    artifact, board = chip.artifact, board_of(chip.platform)
    assert artifact is not None
    own = [PurePosixPath(f.path).parent for f in artifact.manifest.files if PurePosixPath(f.path).name in PROJECT]
    if own:  # the compiler wrote a project itself
        return str(PurePosixPath(chip.chip, min(own))), {}, None
    if not board or pair.hardware == ALL:
        return "", {}, None
    try:
        vectors = chip.evidence.file(VECTORS) if chip.evidence else None
        project = make_project(artifact, board, vectors)
    except AnyNpuError as error:
        return "", {}, error
    return f"firmware/{pair.hardware}", dict(project.files), None


def record(rows: Iterable[Row], name: str, notes: Sequence[str]) -> JsonObject:
    """Returns the run as plain data."""
    rows = tuple(rows)
    formats: list[JsonObject] = [
        {
            "format": row.wanted.format,
            "hardware": row.wanted.hardware,
            "chip": row.wanted.chip,
            "needs": list(row.wanted.needs),
            "status": row.status,
            "exit_status": row.exit_status,
            "error": None if row.error is None else error_record(row.error),
            "file": row.file,
            "source_tree": row.tree,
        }
        for row in rows
    ]
    return {
        "schema_version": 1,
        "kind": "unpu-bench",
        "model_name": name,
        "formats": formats,
        "notes": list(notes),
        "exit_status": exit_status(rows),
    }


def exit_status(rows: Iterable[Row]) -> int:
    """Returns the status of the first format that did not go well, or zero."""
    return next((row.exit_status for row in rows if row.exit_status), 0)

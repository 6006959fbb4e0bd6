"""The model's part of the tree: the generated C as it is, or a compiled TFLite file behind the same interface."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from anynpu import schema
from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, IntegrityError, Unsupported
from anynpu.firmware.generator import source
from anynpu.firmware.project.boards import BOARDS, Board
from anynpu.runtime.device.elf import Footprint, Section
from anynpu.tensors import TensorSpec

HEADER = "anynpu_model.h"
C_FORMAT = "c"
VELA_FORMAT = "tflite-vela"
DEFINE = re.compile(r"^#define (ANYNPU_\w+) +(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Model:
    """What the tree needs to know of the model, and the files that hold it."""

    name: str
    fingerprint: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arena_bytes: int
    files: dict[str, bytes] = field(repr=False)
    memory: Footprint
    notes: tuple[str, ...] = ()
    npu_files: dict[str, bytes] = field(default_factory=dict, repr=False)
    """C that executes the NPU's commands where there is no NPU."""
    npu_fast_bytes: int = 0
    """Memory that the NPU alone uses, on top of the arena."""


def read_model(artifact: Artifact, board: Board, compiled: Path | None = None) -> Model:
    """Returns the model of an artifact for a board; one that does not fit the board raises Unsupported."""
    artifact.verify()
    if compiled is not None and board.engine != "neutron":
        raise ConfigError(f"board {board.name} takes no --compiled file", "anynpu compiles for it: name that artifact")
    if board.engine == "c":
        return _emulated(artifact, board) if artifact.manifest.format == VELA_FORMAT else _generated(artifact, board)
    if board.engine == "cviruntime":
        from anynpu.firmware.project.cvi_linux import read_cvi

        return read_cvi(artifact, board)
    from anynpu.firmware.project.tflm import interpreted

    return _for_npu(artifact, board) if board.engine == "ethos-u" else interpreted(artifact, board, compiled)


def _emulated(artifact: Artifact, board: Board) -> Model:
    """Returns a Vela file for a board without an NPU: the processor executes the NPU's commands."""
    from anynpu.firmware.project.direct import direct

    if not board.reference:
        takes = ", ".join(b.name for b in BOARDS.values() if b.reference or b.engine == "ethos-u")
        raise Unsupported(f"board {board.name} does not run what Vela compiles", hint=f"boards that do: {takes}")
    model = direct(artifact)
    if isinstance(model, Model):
        return model
    raise Unsupported(
        f"board {board.name} has no TFLite-Micro, which the model needs: " + "; ".join(map(str, model[:5])),
        model,
        "-b ethos-u writes a tree for TFLite-Micro; anynpu run without --on executes the file here",
    )


def _for_npu(artifact: Artifact, board: Board) -> Model:
    """Returns a Vela file for a board with an NPU: plain C, or TFLite-Micro where an operator has no C kernel."""
    from anynpu.firmware.project.direct import direct
    from anynpu.firmware.project.tflm import check_compiled, interpreted

    check_compiled(artifact, board)
    model = direct(artifact)
    if isinstance(model, Model):
        return model
    words = f"TFLite-Micro runs the model: {'; '.join(map(str, model[:5]))}"
    whole = interpreted(artifact, board, None)
    return replace(whole, notes=(*whole.notes, words, "make check has no TFLite-Micro: check on the board"))


def _generated(artifact: Artifact, board: Board) -> Model:
    manifest = artifact.manifest
    if manifest.format != C_FORMAT:
        hint = "build for cortex-m4, cortex-m55, riscv32 or host to get C"
        raise Unsupported(f"board {board.name} takes generated C, and {artifact.path} is {manifest.format}", hint=hint)
    chip = manifest.step.platform if manifest.step else ""
    if board.chips and chip not in board.chips:
        hint = "build for one of " + ", ".join(board.chips)
        raise Unsupported(
            f"board {board.name} does not run what is generated for {chip or 'an unknown chip'}", hint=hint
        )
    names = [f.path for f in manifest.files if f.path.endswith((".c", ".h")) and "/" not in f.path]
    files = {name: artifact.file(name).read_bytes() for name in sorted(names)}
    defined = defines(artifact.file(HEADER))
    check_header(artifact.file(HEADER), defined, manifest.inputs)
    fingerprint = defined["ANYNPU_MODEL_FINGERPRINT"].strip('"')
    arena = int(defined["ANYNPU_ARENA_BYTES"].strip("()uUlL"))
    name = defined["ANYNPU_MODEL_NAME"].strip('"')
    sections = manifest.details.get("memory", {}).get("sections", [vars(Section(".bss arena", 0, arena))])
    memory = Footprint(tuple(schema.from_dict(Section, each, "details.memory.sections") for each in sections))
    return Model(name, fingerprint, manifest.inputs, manifest.outputs, arena, files, memory)


def defines(path: Path) -> dict[str, str]:
    """Returns what the model's header defines; one without the names the application needs raises."""
    if not path.is_file():
        raise IntegrityError(f"{path}: the generated C has no such file")
    defined = dict(DEFINE.findall(path.read_text("utf-8")))
    for name in ("ANYNPU_MODEL_NAME", "ANYNPU_MODEL_FINGERPRINT", "ANYNPU_ARENA_BYTES"):
        if name not in defined:
            raise IntegrityError(f"{path}: does not define {name}")
    return defined


def check_header(path: Path, defined: dict[str, str], inputs: tuple[TensorSpec, ...]) -> None:
    """Raises where height, width or channels in the header are not those of the manifest."""
    for index, spec in enumerate(inputs):
        for word, value in dimensions(spec).items():
            macro = f"ANYNPU_INPUT_{index}_{word}"
            stated = defined.get(macro, str(value)).strip("()uUlL")
            if stated != str(value):
                raise IntegrityError(f"{path}: {macro} is {stated}, but input {spec.name} has {value}")


def dimensions(spec: TensorSpec) -> dict[str, int]:
    """Returns height, width and channels of an image tensor by the names of the macros."""
    return source.dimensions(spec.shape, spec.layout)

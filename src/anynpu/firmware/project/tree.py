"""The whole tree of a firmware project, as paths and contents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import on_one_line
from anynpu.firmware.generator.source import comment
from anynpu.firmware.project import answers as known
from anynpu.firmware.project import cvi_linux, templates
from anynpu.firmware.project.boards import Board, find
from anynpu.firmware.project.carray import identifier
from anynpu.firmware.project.model import Model, read_model
from anynpu.schema import Json, JsonObject

REPORT = "report.json"
VECTORS = 5


@dataclass(frozen=True)
class Project:
    """A tree that is ready to be written, and what there is to say of it."""

    board: Board
    model: Model
    answers: known.Answers
    files: Mapping[str, bytes]
    report: Mapping[str, Json]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said of the model and of its known answers."""
        return (*self.model.notes, *self.answers.notes)


def make_project(
    artifact: Artifact, board_name: str, vectors: Path | None = None, compiled: Path | None = None, count: int = VECTORS
) -> Project:
    """Returns the project of an artifact for a board with at most `count` known answers; the same every time."""
    board = find(board_name)
    model = read_model(artifact, board, compiled)
    path = vectors or known.evidence_of(artifact)
    if board.engine == "cviruntime":
        return _linux_project(artifact, board, model, path, count)
    answers = known.read_answers(path, artifact, model.inputs, model.outputs, count)
    report = _report(artifact, board, model, answers)
    files = {REPORT: json.dumps(report, indent=1, allow_nan=False) + "\n"}
    filled = values(artifact, board, model, answers)
    files |= _board_files(board, filled)
    if board.engine == "ethos-u" and model.npu_files:
        files |= _checks(filled)
    parts = {
        "app": {name: text for name, text in templates.folder("app").items() if board.main or name != "main.c"},
        "model": {name: data.decode("utf-8") for name, data in model.files.items()},
        "vectors": {
            "anynpu_vectors.h": known.header(answers, model.fingerprint),
            "anynpu_vectors.c": known.source(answers),
        },
        "npu": {name: data.decode("utf-8") for name, data in model.npu_files.items()},
    }
    for part, contents in parts.items():
        for name, text in contents.items():
            files[f"{board.placed.get(PurePosixPath(name).suffix, part)}/{name}"] = text
    return Project(board, model, answers, {name: files[name].encode("utf-8") for name in sorted(files)}, report)


def _linux_project(artifact: Artifact, board: Board, model: Model, path: Path, count: int) -> Project:
    """Returns the project of a program for Linux, which reads the model and the known answers from files."""
    inputs, outputs, notes = cvi_linux.real_answers(path, artifact, model, count)
    answers = known.Answers(np.concatenate(inputs, axis=1), np.concatenate(outputs, axis=1), tuple(notes))
    filled = {
        **values(artifact, board, model, answers),
        "EXECUTED": cvi_linux.executed(path),
        "TOLERANCE": f"{100 * cvi_linux.TOLERANCE:g} %",
    }
    report = _report(artifact, board, model, answers)
    files = {name: text.encode("utf-8") for name, text in _board_files(board, filled).items()}
    files |= cvi_linux.generated(artifact, model, inputs, outputs)
    files[REPORT] = (json.dumps(report, indent=1, allow_nan=False) + "\n").encode("utf-8")
    return Project(board, model, answers, {name: files[name] for name in sorted(files)}, report)


def _board_files(board: Board, filled: Mapping[str, object]) -> dict[str, str]:
    """Returns the board's own files; those of its kind first, so that a board may replace one."""
    files: dict[str, str] = {}
    for folder in board.files:
        files |= {name: templates.fill(text, filled) for name, text in templates.folder(folder).items()}
    return files


def _checks(filled: Mapping[str, object]) -> dict[str, str]:
    """Returns what builds the same tree for this computer and for QEMU, with C in the place of the NPU's driver."""
    files: dict[str, str] = {}
    for name, folders in (("host", ("host",)), ("qemu", ("qemu", "qemu-mps3-an547"))):
        for path, text in ((p, t) for folder in folders for p, t in templates.folder(folder).items()):
            if path == "Makefile":
                files[f"check/{name}.mk"] = templates.fill(text, filled)
            elif path.startswith("board/"):
                files[f"check/{name}/{path.removeprefix('board/')}"] = templates.fill(text, filled)
    return files


def values(artifact: Artifact, board: Board, model: Model, answers: known.Answers) -> dict[str, object]:
    """Returns what the templates may ask for."""
    accelerator = str(artifact.manifest.details.get("accelerator", ""))
    family, _, macs = accelerator.removeprefix("ethos-").partition("-")
    estimates = artifact.manifest.estimates
    # In this mode the arena lies in slow memory and the NPU keeps a fast one for itself.
    dedicated = "Dedicated" in str(artifact.manifest.details.get("memory_mode", ""))
    lines = []
    for kind, specs in (("input", model.inputs), ("output", model.outputs)):
        for spec in specs:
            scaled = spec.quantization
            how = f", scale {scaled.scale[0]:.9g}, zero point {scaled.zero_point[0]}" if scaled else ""
            layout = f" {spec.layout}" if spec.layout else ""
            name = on_one_line(spec.name).replace("`", "'")  # it stands between two of them
            lines.append(f"- {kind} `{name}`: {spec.dtype} {'x'.join(map(str, spec.shape))}{layout}{how}")
    plain: dict[str, object] = {
        "BOARD": board.name,
        "TITLE": board.title,
        "MODEL": comment(model.name).replace("`", "'"),
        "MODEL_ID": identifier(model.name),
        "FINGERPRINT": model.fingerprint,
        "ARENA": model.arena_bytes,
        "VECTORS": answers.count,
        "CHIP": artifact.manifest.step.platform if artifact.manifest.step else "",
        "ACCELERATOR": accelerator,
        "CONVERTER": comment(str(artifact.manifest.details.get("converter") or "its version is not known here")),
        "NPU_FAMILY": family or "u55",
        "NPU_MACS": macs or "128",
        "FAST_MEMORY": model.npu_fast_bytes or ((estimates.sram_bytes or 0) if dedicated and estimates else 0),
        "TENSORS": "\n".join(lines),
        **board.values,
    }
    readme = "npu.md" if model.npu_files and board.reference else "common.md"
    common = templates.fill(templates.folder("readme")["common.md"], plain)
    return {**plain, "COMMON": templates.fill(templates.folder("readme")[readme], {**plain, "COMMON": common})}


def _report(artifact: Artifact, board: Board, model: Model, answers: known.Answers) -> JsonObject:
    # Nothing here names a path or a time: the same artifact gives the same tree, byte for byte.
    return {
        "schema_version": 1,
        "kind": "firmware",
        "board": board.name,
        "engine": board.engine,
        "model": model.name,
        "fingerprint": model.fingerprint,
        "artifact": artifact.digest,
        "chip": artifact.manifest.step.platform if artifact.manifest.step else "",
        "arena_bytes": model.arena_bytes,
        "memory": model.memory.to_json(),
        "vectors": answers.count,
        "vector_bytes": int(answers.inputs.nbytes + answers.outputs.nbytes),
        "notes": [*model.notes, *answers.notes],
    }

"""A Linux project around a .cvimodel: a C++ program over cviruntime, the model, and known answers as real numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import IntegrityError, Unsupported
from anynpu.firmware.generator.source import comment, number, quoted
from anynpu.firmware.project import answers as known
from anynpu.firmware.project.boards import Board
from anynpu.firmware.project.model import Model
from anynpu.runtime.device.elf import Footprint, Section
from anynpu.tensors import Array, TensorSpec

FORMAT, ENDING = "tpu-model", ".cvimodel"
MODEL_FILE, VECTORS_FILE, TENSORS_FILE = "model/{}", "vectors/vectors.bin", "src/anynpu_tensors.h"
TOLERANCE = 0.02
"""The share of an output's largest known magnitude that a value may be off: two to three steps of 8 bits."""
EXACT_INTEGER = 1 << 24


def read_cvi(artifact: Artifact, board: Board) -> Model:
    """Returns the model of an artifact for cviruntime; any other raises Unsupported."""
    manifest = artifact.manifest
    chip = str(manifest.details.get("processor", "")) or (manifest.step.platform if manifest.step else "")
    if manifest.format != FORMAT:
        hint = "build for one of " + ", ".join(board.chips)
        raise Unsupported(f"board {board.name} takes a .cvimodel, and {artifact.path} is {manifest.format}", hint=hint)
    if not manifest.main.endswith(ENDING):
        raise Unsupported(
            f"board {board.name} runs .cvimodel files through cviruntime; {manifest.main} for {chip} needs SOPHON's "
            "bmruntime, for which there is no project",
            hint="build for one of " + ", ".join(board.chips),
        )
    if chip not in board.chips:
        raise Unsupported(f"board {board.name} does not run what is compiled for {chip or 'an unknown chip'}")
    name = str(manifest.details.get("name", "")) or f"model-{manifest.fingerprint[:8]}"
    data = artifact.main.read_bytes()
    taken = Footprint((Section(f"{Path(manifest.main).name} on the file system", len(data), 0),))
    files = {MODEL_FILE.format(Path(manifest.main).name): data}
    return Model(name, manifest.fingerprint, manifest.inputs, manifest.outputs, 0, files, taken)


def real_answers(path: Path, artifact: Artifact, model: Model, most: int) -> tuple[list[Array], list[Array], list[str]]:
    """Returns inputs and outputs of the known answers as float32, one row a sample, and what is to be said of them."""
    stored, wanted, notes = known.read_arrays(path, artifact, model.inputs, model.outputs)
    rows_in = [_real(spec, array[:most]) for spec, array in zip(model.inputs, stored, strict=True)]
    rows_out = [_real(spec, array[:most]) for spec, array in zip(model.outputs, wanted, strict=True)]
    return rows_in, rows_out, notes


def _real(spec: TensorSpec, stored: Array) -> Array:
    real = np.asarray(spec.to_real(stored))
    if real.dtype.kind in "iu" and np.abs(real.astype(np.int64)).max(initial=0) > EXACT_INTEGER:
        raise IntegrityError(f"known answers of {spec.name}: integers beyond {EXACT_INTEGER} do not fit a 32-bit float")
    return real.astype(np.float32).reshape(len(stored), -1)


def generated(artifact: Artifact, model: Model, inputs: Sequence[Array], outputs: Sequence[Array]) -> dict[str, bytes]:
    """Returns the files that depend on the model: the model itself, its tensors, the known answers."""
    rows = np.concatenate([*inputs, *outputs], axis=1)
    return {
        **model.files,
        TENSORS_FILE: tensors_header(artifact, model, len(rows), outputs).encode(),
        VECTORS_FILE: rows.astype("<f4").tobytes(),
    }


def tensors_header(artifact: Artifact, model: Model, vectors: int, outputs: Sequence[Array]) -> str:
    """Returns the header that names the tensors as the runtime does."""
    names: Mapping[str, Mapping[str, str]] = artifact.manifest.details.get("names", {})
    peaks = [float(np.abs(array).max(initial=0)) for array in outputs]
    if not np.isfinite(peaks).all():
        raise IntegrityError("the known answers hold numbers that are not finite")
    file = Path(artifact.manifest.main).name
    return (
        f"/* {comment(model.name)}: generated, do not edit. */\n"
        '#ifndef ANYNPU_TENSORS_H\n#define ANYNPU_TENSORS_H\n\n#include "cvi_model.h"\n\n'
        f"#define ANYNPU_FINGERPRINT {quoted(model.fingerprint)}\n"
        f"#define ANYNPU_MODEL_FILE {quoted(file)}\n"
        f"#define ANYNPU_VECTORS {vectors}u\n#define ANYNPU_TOLERANCE {TOLERANCE}\n"
        f"#define ANYNPU_INPUTS {len(model.inputs)}u\n#define ANYNPU_OUTPUTS {len(model.outputs)}u\n\n"
        + _table("inputs", model.inputs, names.get("inputs", {}), [0.0] * len(model.inputs))
        + _table("outputs", model.outputs, names.get("outputs", {}), peaks)
        + "\n#endif\n"
    )


def _table(kind: str, specs: Sequence[TensorSpec], names: Mapping[str, str], peaks: Sequence[float]) -> str:
    rows = "".join(
        f"    {{{quoted(spec.name)}, {quoted(str(names.get(spec.name, spec.name)))}, {spec.size}u, {number(peak)}}},\n"
        for spec, peak in zip(specs, peaks, strict=True)
    )
    return f"static const anynpu::Tensor anynpu_{kind}[] = {{\n{rows}}};\n"


def executed(path: Path) -> str:
    """Returns what gave the known answers, as the evidence says."""
    try:
        record = json.loads((path.parent / "verification.json").read_text("utf-8"))
        return str(record["executed"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return "the file that was named"

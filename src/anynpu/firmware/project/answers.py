"""Known answers: the stored inputs and outputs that a build verified, as C arrays for the firmware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu.arrays import read_npz
from anynpu.artifact import MANIFEST, Artifact
from anynpu.errors import ConfigError, IntegrityError
from anynpu.firmware.generator.source import quoted
from anynpu.firmware.project.carray import byte_rows
from anynpu.tensors import Array, TensorSpec

FILE = "vectors.npz"


@dataclass(frozen=True)
class Answers:
    """Inputs and outputs of the verified samples, all tensors of a sample as one row of bytes, or of real numbers."""

    inputs: Array
    outputs: Array
    notes: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.inputs)


def evidence_of(artifact: Artifact) -> Path:
    """Returns the known answers that the build left next to the artifact."""
    path = artifact.path.absolute()
    file = path.parent / "evidence" / path.name / FILE
    if not file.is_file():
        hint = "build it again with `anynpu build`, or name the file with --vectors"
        raise ConfigError(f"{artifact.path}: no known answers next to it ({file} is not there)", hint)
    return file


def read_answers(
    path: Path, artifact: Artifact, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], most: int
) -> Answers:
    """Returns at most `most` known answers for these tensors; answers of another network raise."""
    stored, wanted, notes = read_arrays(path, artifact, inputs, outputs)
    return Answers(_bytes(stored, most), _bytes(wanted, most), tuple(notes))


def read_arrays(
    path: Path, artifact: Artifact, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> tuple[list[Array], list[Array], list[str]]:
    """Returns the stored inputs and outputs, an array per tensor with a first axis of samples, and what to say."""
    try:
        arrays = read_npz(path)
    except IntegrityError as error:
        raise IntegrityError(f"{path}: is not a file of known answers ({error.message})") from None
    notes = _check_origin(path, artifact, arrays)
    stored, wanted = _samples(path, "input", arrays, inputs), _samples(path, "output", arrays, outputs)
    if len({len(a) for a in (*stored, *wanted)}) != 1 or not len(stored[0]):
        raise IntegrityError(f"{path}: its arrays do not hold the same number of samples")
    return stored, wanted, notes


def _check_origin(path: Path, artifact: Artifact, arrays: dict[str, Array]) -> list[str]:
    """Raises unless the answers come from this artifact or from the one it was compiled from."""
    step = artifact.manifest.step
    lineage = {artifact.digest, *(step.inputs.values() if step else ())}
    if (path.parent / MANIFEST).is_file():
        proof = Artifact.open(path.parent)
        verified = proof.manifest.step
        if verified is not None and verified.name == "verify" and verified.inputs.get("candidate") not in lineage:
            hint = "take the file from the same build, out/evidence/CHIP/" + FILE
            raise ConfigError(f"{path}: its answers are those of another network than {artifact.path}", hint)
        return []
    if "fingerprint" not in arrays:
        return [f"{path.name} does not say of which network it is; names, shapes and types are right"]
    if str(arrays["fingerprint"]) != artifact.manifest.fingerprint:
        raise ConfigError(f"{path}: its answers are those of another network than {artifact.path} (fingerprint)")
    return []


def _samples(path: Path, kind: str, arrays: dict[str, Array], specs: Sequence[TensorSpec]) -> list[Array]:
    """Returns an array per tensor with a first axis of samples before the tensor's own shape."""
    wanted = {f"{kind}:{spec.name}" for spec in specs}
    stored = {name for name in arrays if name.startswith(f"{kind}:")}
    if wanted != stored:
        raise ConfigError(f"{path}: holds {_list(stored)}, but the model has {_list(wanted)}")
    stacked = []
    for spec in specs:
        array = arrays[f"{kind}:{spec.name}"]
        # The samples were joined along the tensor's own first axis, which is the batch and almost always 1.
        batch = spec.shape[0] if spec.shape else 1
        if array.ndim and len(array) % batch == 0:
            for start in range(0, len(array), batch):
                spec.check(array[start : start + batch])
            stacked.append(array.reshape(-1, *spec.shape))
        else:
            spec.check(array)
            stacked.append(array[None])
    return stacked


def _bytes(arrays: Sequence[Array], most: int) -> Array:
    rows = []
    for array in arrays:
        whole = np.ascontiguousarray(array[:most])
        plain = whole.astype(whole.dtype.newbyteorder("<")).tobytes()
        rows.append(np.frombuffer(plain, np.uint8).reshape(len(whole), -1))
    return np.concatenate(rows, axis=1)


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def header(answers: Answers, fingerprint: str) -> str:
    """Returns the declarations of the known answers."""
    return (
        "/* Known answers: stored inputs, and the outputs that the verified model gave for them. */\n"
        "#ifndef ANYNPU_VECTORS_H\n#define ANYNPU_VECTORS_H\n\n#include <stdint.h>\n\n"
        f"#define KAT_FINGERPRINT {quoted(fingerprint)}\n"
        f"#define KAT_VECTORS {answers.count}u\n"
        f"#define KAT_INPUT_BYTES {answers.inputs.shape[1]}u\n"
        f"#define KAT_OUTPUT_BYTES {answers.outputs.shape[1]}u\n\n"
        '#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
        "/* All tensors of a sample one after another, little-endian. */\n"
        "extern const uint8_t kat_inputs[KAT_VECTORS][KAT_INPUT_BYTES];\n"
        "extern const uint8_t kat_outputs[KAT_VECTORS][KAT_OUTPUT_BYTES];\n\n"
        "#ifdef __cplusplus\n}\n#endif\n\n#endif\n"
    )


def source(answers: Answers) -> str:
    """Returns the definitions of the known answers."""
    text = '#include "anynpu_vectors.h"\n'
    for name, rows in (("input", answers.inputs), ("output", answers.outputs)):
        text += f"\nconst uint8_t kat_{name}s[KAT_VECTORS][KAT_{name.upper()}_BYTES] = {{\n"
        text += "".join("    {\n" + byte_rows(row.tobytes(), "        ") + "    },\n" for row in rows)
        text += "};\n"
    return text

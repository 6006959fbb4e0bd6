"""A .cix file as an artifact, for those who have the file and no folder around it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from anynpu.artifact import SCHEMA_VERSION, Artifact, FileEntry, Manifest, hash_file
from anynpu.runtime.noe.cix import Cix, CixTensor, read_cix
from anynpu.tensors import TensorSpec

FORMAT = "cix"
COLOURS = (1, 3)
FEWEST_PIXELS = 8


def artifact_of(path: Path, strict: bool | None = None) -> Artifact:
    """Returns a .cix file as an artifact whose only file is the file itself."""
    cix = read_cix(path, strict)
    manifest = manifest_of(cix, ".")
    size, digest = cix.file_size, hash_file(path)
    manifest = replace(manifest, files=(FileEntry(".", digest, size),), schema_version=SCHEMA_VERSION)
    return sealed(Artifact(path, manifest))


def sealed(artifact: Artifact) -> Artifact:
    """Returns an artifact that is one file, after something was added to what it says."""
    manifest = replace(artifact.manifest, seal="")
    return Artifact(artifact.path, replace(manifest, seal=manifest.digest))


def manifest_of(cix: Cix, main: str) -> Manifest:
    """Returns the manifest of an artifact whose model file `main` is this .cix file; the program is its fingerprint."""
    inputs = tuple(_with_layout(tensor) for tensor in cix.inputs)
    return Manifest(
        FORMAT,
        main,
        inputs,
        tuple(tensor.spec for tensor in cix.outputs),
        fingerprint=hashlib.sha256(cix.elf).hexdigest(),
        notes=(
            *(f"layout {t.layout} of input {t.name} follows from its shape" for t in inputs if t.layout),
            *cix.warnings,
        ),
        details={"name": cix.name, "target": str(cix.target), "build_version": cix.build_version},
    )


def _with_layout(tensor: CixTensor) -> TensorSpec:
    """Returns the input with its layout where the shape leaves one only: one axis can hold colours, two hold pixels."""
    shape, spec = tensor.shape, tensor.spec
    if len(shape) != 4:
        return spec
    fits = [
        layout
        for layout in ("NCHW", "NHWC")
        if shape[layout.index("C")] in COLOURS
        and min(shape[layout.index("H")], shape[layout.index("W")]) >= FEWEST_PIXELS
    ]
    return replace(spec, layout=fits[0]) if len(fits) == 1 else spec

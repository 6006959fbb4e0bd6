"""A .cix file as an artifact, for those who have the file and no folder around it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from anynpu.artifact import SCHEMA_VERSION, Artifact, FileEntry, Manifest, hash_file
from anynpu.runtime.noe.cix import Cix, read_cix

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
    inputs = []
    for tensor in cix.inputs:
        # A layout is stated where the shape leaves one only: one axis can hold colours, two hold pixels.
        places = {"NCHW": (1, 2, 3), "NHWC": (3, 1, 2)} if len(tensor.shape) == 4 else {}
        fits = [
            layout
            for layout, (c, h, w) in places.items()
            if tensor.shape[c] in COLOURS and min(tensor.shape[h], tensor.shape[w]) >= FEWEST_PIXELS
        ]
        inputs.append(replace(tensor.spec, layout=fits[0]) if len(fits) == 1 else tensor.spec)
    return Manifest(
        FORMAT,
        main,
        tuple(inputs),
        tuple(tensor.spec for tensor in cix.outputs),
        fingerprint=hashlib.sha256(cix.elf).hexdigest(),
        notes=(
            *(f"layout {t.layout} of input {t.name} follows from its shape" for t in inputs if t.layout),
            *cix.warnings,
        ),
        details={"name": cix.name, "target": str(cix.target), "build_version": cix.build_version},
    )

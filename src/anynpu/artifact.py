"""The one type that crosses every arrow: a folder with files and a manifest that says what they are."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from anynpu import schema
from anynpu.errors import ConfigError, IntegrityError
from anynpu.files import hash_file as hash_file  # known from here to all who hash a file of an artifact
from anynpu.files import hashes
from anynpu.tensors import TensorSpec

MANIFEST = "manifest.json"
EVIDENCE = "evidence"
"""The folder, in an artifact or next to it, that holds what proved it."""
SCHEMA_VERSION = 1
AGAIN = "build or fetch it again: a sealed folder is not edited (another task card: --task)"


@dataclass(frozen=True)
class FileEntry:
    """A file of the artifact, relative to its folder."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class OperatorPlacement:
    """Where one operator runs, and, if that is not the NPU, why."""

    name: str
    kind: str
    device: Literal["npu", "cpu"]
    reason: str = ""
    macs: int | None = None


@dataclass(frozen=True)
class Placement:
    """The receipt: every operator of the compiled model and where it runs."""

    npu: str
    operators: tuple[OperatorPlacement, ...]
    source: str = ""
    """Where it is known from, unless the compiler itself has placed the operators: a rule, the profile of a run."""

    @property
    def on_npu(self) -> int:
        return sum(op.device == "npu" for op in self.operators)

    @property
    def operator_share(self) -> float:
        """The share of operators on the NPU, 0 to 1."""
        return self.on_npu / len(self.operators) if self.operators else 0.0

    @property
    def mac_share(self) -> float | None:
        """The share of MACs on the NPU, or None where some operator's MACs are not known or there are none."""
        counts = [op.macs for op in self.operators]
        known = [c for c in counts if c is not None]
        if len(known) != len(counts) or not sum(known):
            return None
        return sum(op.macs or 0 for op in self.operators if op.device == "npu") / sum(known)

    @property
    def share(self) -> float:
        """The share that `--require-npu` judges: the lower of operators and MACs."""
        macs = self.mac_share
        return self.operator_share if macs is None else min(macs, self.operator_share)

    def elsewhere(self) -> tuple[OperatorPlacement, ...]:
        """The operators that do not run on the NPU."""
        return tuple(op for op in self.operators if op.device != "npu")


@dataclass(frozen=True)
class Estimates:
    """Figures nobody measured: counted from the graph or estimated by a compiler, as `source` says."""

    source: str
    macs: int | None = None
    parameters: int | None = None
    sram_bytes: int | None = None
    flash_bytes: int | None = None
    cycles: int | None = None
    latency_ms: float | None = None


@dataclass(frozen=True)
class Step:
    """What made an artifact; its digest is the address in the store."""

    name: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    platform: str = ""
    platform_digest: str = ""

    @property
    def address(self) -> str:
        return schema.digest(self)


@dataclass(frozen=True)
class PassEffect:
    """What a pass did to the graph of an artifact (`graph/passes.py`)."""

    name: str
    changed: int = 0
    """In how many places."""
    operators: int = 0
    """How many operators it added, or took away."""
    dropped: str = ""
    """Why it was left out, where it was."""


@dataclass(frozen=True)
class Made:
    """When and how long; no part of the digest."""

    at: str
    seconds: float


@dataclass(frozen=True)
class Manifest:
    """What an artifact is. A step returns it without `files`, `step` and `made`; sealing fills them in."""

    format: str
    main: str
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    fingerprint: str = ""
    placement: Placement | None = None
    estimates: Estimates | None = None
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] = field(default_factory=dict)
    """What the model is for, as tasks/card.py reads it; empty where nobody said."""
    passes: tuple[PassEffect, ...] = ()
    """What was done to the graph, in order."""
    files: tuple[FileEntry, ...] = ()
    step: Step | None = None
    made: Made | None = None
    schema_version: int = 0
    seal: str = ""

    @functools.cached_property
    def digest(self) -> str:
        """The sha256 of everything but the time of making; `seal` holds it, so that a changed manifest shows."""
        return schema.digest(replace(self, made=None, seal=""))


@dataclass(frozen=True)
class Artifact:
    """A sealed folder and its manifest."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path) -> Artifact:
        """Returns the artifact in folder `path`, verified: manifest and files are as they were sealed."""
        artifact = cls.read(path)
        artifact.verify()
        return artifact

    @classmethod
    def read(cls, path: Path) -> Artifact:
        """Returns the artifact in folder `path` as its manifest describes it; whether that is true is not looked at."""
        if path.is_file():
            raise ConfigError(
                f"{path}: is a file, and an artifact is a folder that `anynpu build` made",
                f"name the folder {path.parent}"
                if (path.parent / MANIFEST).is_file()
                else "anynpu build -m MODEL -t CHIP -o out",
            )
        if not path.is_dir():
            raise ConfigError(f"{path}: no such folder", "an artifact is a folder that `anynpu build` made")
        file = path / MANIFEST
        if not file.is_file():
            raise ConfigError(f"{path}: no {MANIFEST} in it", "name the folder of one chip, such as out/ethos-u55-128")
        try:
            manifest = schema.from_dict(Manifest, schema.read_json(file), str(file))
        except ConfigError as error:
            raise IntegrityError(error.message) from None
        if manifest.schema_version != SCHEMA_VERSION:
            raise IntegrityError(
                f"{file}: schema version {manifest.schema_version}, this anynpu reads {SCHEMA_VERSION}"
            )
        artifact = cls(path, manifest)
        for entry in manifest.files:
            artifact.file(entry.path)  # a name that leads out of the folder raises
        return artifact

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def main(self) -> Path:
        """The model file itself."""
        return self.file(self.manifest.main)

    def file(self, relative: str) -> Path:
        """Returns the path of a file of this artifact; a name that leads out of the folder raises."""
        parts = PurePosixPath(relative)
        if parts.is_absolute() or ".." in parts.parts:
            raise IntegrityError(f"{self.path / MANIFEST}: {relative}: leads out of the folder")
        return self.path / relative

    def verify(self, anew: bool = False) -> None:
        """Raises IntegrityError unless manifest and files are as they were sealed.

        A file is hashed once for as long as it stays as it is (`files.hashes`), or `anew`.
        """
        entries = {entry.path: entry for entry in self.manifest.files}
        for name, entry in entries.items():
            target = self.file(name)
            if not target.is_file():
                raise IntegrityError(f"{target}: is missing", AGAIN)
            if (size := target.stat().st_size) != entry.size:
                raise IntegrityError(f"{target}: has changed since it was made: {size} bytes, not {entry.size}", AGAIN)
        try:
            digest = self.digest
        except ValueError:  # NaN or Infinity, which no manifest of ours holds
            digest = ""
        if self.manifest.seal != digest or self.manifest.main not in entries:
            raise IntegrityError(f"{self.path / MANIFEST}: has changed since it was made", AGAIN)
        try:
            sums = hashes(self.path, list(entries), anew)
        except ConfigError as error:
            raise IntegrityError(error.message, error.hint) from None
        for name, entry in entries.items():
            if sums[name] != entry.sha256:
                raise IntegrityError(f"{self.file(name)}: has changed since it was made", AGAIN)


def seal(folder: Path, manifest: Manifest, step: Step, making: Made) -> Artifact:
    """Hashes the files of `folder`, writes the manifest last and returns the artifact."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    files = tuple(FileEntry(p.relative_to(folder).as_posix(), hash_file(p), p.stat().st_size) for p in paths)
    if manifest.main not in {f.path for f in files}:
        raise IntegrityError(f"step {step.name}: it made no file {manifest.main}")
    whole = replace(manifest, files=files, step=step, made=making, schema_version=SCHEMA_VERSION)
    # Read back before it is sealed: a whole number in a field of real numbers has another digest afterwards.
    whole = schema.from_dict(Manifest, schema.to_dict(whole), f"step {step.name}: its manifest")
    whole = replace(whole, seal=whole.digest)
    text = json.dumps(schema.to_dict(whole), indent=1, sort_keys=True, allow_nan=False) + "\n"
    (folder / MANIFEST).write_text(text, "utf-8")
    return Artifact(folder, whole)

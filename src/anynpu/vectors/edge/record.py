"""What a folder of vectors says of itself, so that another version does not misread it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anynpu import schema
from anynpu.errors import ConfigError, IntegrityError
from anynpu.files import write_whole
from anynpu.vectors.edge.engine import engine_version

FORMAT = 1
STORE, LOCK = "store.json", "lock"


@dataclass(frozen=True)
class StoreRecord:
    """What a folder says of itself, so that another version does not misread it."""

    kind: str
    format: int
    engine: str


def check_record(folder: Path) -> None:
    """Makes a new folder a store; raises if it is a store of another kind, or something else."""
    path = folder / STORE
    if not path.exists():
        strangers = sorted(
            entry.name for entry in folder.iterdir() if entry.name not in (LOCK, "socket", "log", "start")
        )
        if strangers:
            raise ConfigError(f"{folder} is not a store of vectors: it holds {strangers[0]}", "choose an empty folder")
        write_whole(path, schema.canonical_json(StoreRecord("anynpu-vectors", FORMAT, engine_version())))
        return
    record = schema.from_dict(StoreRecord, schema.read_json(path), str(path))
    if record.kind != "anynpu-vectors":
        raise IntegrityError(f"{path}: is of kind {record.kind!r}, not a store of vectors")
    if record.format != FORMAT:
        raise IntegrityError(
            f"{folder}: has format {record.format}, this version reads {FORMAT}",
            "export its collections with the version that made it, and import them here",
        )
    if _numbers(record.engine) > _numbers(engine_version()):
        raise IntegrityError(
            f"{folder}: was written by Qdrant Edge {record.engine}, here is {engine_version()}",
            f"pip install 'qdrant-edge-py>={record.engine}', or export and import its collections",
        )
    if record.engine != engine_version():
        write_whole(path, schema.canonical_json(StoreRecord(record.kind, FORMAT, engine_version())))


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:3]
    if not all(part.isdigit() for part in parts):
        raise IntegrityError(f"{version!r} is not a version of Qdrant Edge")
    return tuple(int(part) for part in parts)

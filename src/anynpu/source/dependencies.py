"""What the user's Python read while it ran, kept next to the result and checked before that is used again.

Files it opened, looked for or imported, folders it listed, environment variables. What cannot be known (a program, the
network, the clock, random numbers of the system) is recorded as such. Of an environment variable only a salted hash of
its value is kept.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sysconfig
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from anynpu import schema
from anynpu.artifact import Artifact, hash_file
from anynpu.errors import AnyNpuError

ABSENT, FOLDER, OTHER = "absent", "folder", "other"
YOUNG_S = 2.0
"""A file changed so recently may change again without its time showing it: it is hashed every time."""


@dataclass(frozen=True)
class FileState:
    """A file's content, and by what its change shows without reading it."""

    sha256: str
    signature: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dependencies:
    """What a run of the user's code has read."""

    result: str = ""
    """The hash of the main file that was made of it: another result has another record."""
    salt: str = ""
    files: Mapping[str, FileState] = field(default_factory=dict)
    looked_for: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()


def installed(path: str) -> bool:
    """Whether a file belongs to Python or an installed package."""
    return path.startswith(_places()) or "/site-packages/" in path or "/dist-packages/" in path


@functools.cache
def _places() -> tuple[str, ...]:
    names = ("purelib", "platlib", "stdlib", "platstdlib")
    places = {Path(sysconfig.get_path(name)) for name in names}
    return tuple(f"{place}{os.sep}" for each in places for place in {each, each.resolve()})


def environment() -> dict[str, str]:
    """Returns the environment as the child process that runs the user's code sees it."""
    return {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", **os.environ}


def file_state(path: str) -> FileState:
    """Returns what a file holds now."""
    try:
        stat = Path(path).stat()
        if not Path(path).is_file():
            return FileState(FOLDER)
        old = time.time() - stat.st_mtime > YOUNG_S and time.time() - stat.st_ctime > YOUNG_S
        return FileState(hash_file(Path(path)), _signature(stat) if old else ())
    except (OSError, AnyNpuError, ValueError):
        return FileState(ABSENT)


def _signature(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def looked(path: str, whole: bool) -> str:
    """Returns what a look at a path finds now; an empty path is the working folder."""
    if not path:
        return hashlib.sha256(os.fsencode(Path.cwd())).hexdigest()
    try:
        stat = Path(path).stat()
    except (OSError, ValueError):
        return ABSENT
    if Path(path).is_dir():
        return FOLDER
    return f"{stat.st_size} bytes of {stat.st_mtime_ns}" if whole else OTHER


def listing(path: str) -> str:
    """Returns a hash of the names in a folder."""
    try:
        names = sorted(os.fsencode(entry.name) for entry in Path(path).iterdir())
        return hashlib.sha256(b"\0".join(names)).hexdigest()
    except OSError:
        return ABSENT


def value_hash(name: str, values: Mapping[str, str], salt: str) -> str:
    """Returns a hash of a variable's value, empty where it is not set; `*` is all names."""
    text = "\0".join(sorted(values)) if name == "*" else values.get(name)
    return "" if text is None else hashlib.sha256(f"{salt}{text}".encode("utf-8", "surrogateescape")).hexdigest()


def write(path: Path, dependencies: Dependencies) -> None:
    """Writes a record in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_text(json.dumps(schema.to_dict(dependencies), sort_keys=True), "utf-8")
    partial.replace(path)


def read(path: Path) -> Dependencies | None:
    """Returns a record, or None where there is none that can be read."""
    try:
        record: Dependencies = schema.from_dict(Dependencies, schema.read_json(path), str(path))
    except (AnyNpuError, OSError):
        return None
    return record


def changed(record: Dependencies | None, artifact: Artifact) -> str:
    """Returns what is no longer as it was when an artifact was made, or an empty string."""
    hashes = {entry.path: entry.sha256 for entry in artifact.manifest.files}
    if record is None or record.result != hashes.get(artifact.manifest.main):
        return "what it was made from is not known"
    if record.unknown:
        return record.unknown[0]
    values = environment()
    for name, value in record.environment.items():
        if value_hash(name, values, record.salt) != value:
            return f"the environment variable {name}" if name != "*" else "the names of environment variables"
    for path, state in record.files.items():
        if not _as_it_was(path, state):
            return path
    for path, seen in record.looked_for.items():
        if looked(path, "bytes of" in seen) != seen:
            return path or "the working folder"
    return next((path for path, seen in record.folders.items() if listing(path) != seen), "")


def _as_it_was(path: str, state: FileState) -> bool:
    with suppress(OSError, ValueError):
        if state.signature and _signature(Path(path).stat()) == state.signature:
            return True
    return file_state(path).sha256 == state.sha256

"""The first run of an artifact on this machine is in a child process: a file that kills its runtime kills nobody else.

<cache>/trials/ab12...   one that was survived, by the artifact's digest, the session and its package's version
"""

from __future__ import annotations

import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import schema, tool
from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError, IntegrityError, ToolFailed, ToolMissing
from anynpu.files import default_cache_dir, writing
from anynpu.runtime.abilities import LoadsHere
from anynpu.runtime.base import choose, open_session, run_stored

TRIALS = "trials"
DAMAGED = "the file is damaged, or not of the kind its manifest says: build or fetch it again"


def require(artifact: Artifact, device: str | None = None) -> None:
    """Raises IntegrityError for an artifact that the runtime which would load it into this process does not survive."""
    kind = choose(artifact.manifest.format, device)
    if not _loads_here(kind) or _memo(artifact, kind).exists():
        return
    with tempfile.TemporaryDirectory(prefix="anynpu-trial-") as name, writing(Path(name)):
        arguments = {"artifact": str(artifact.path), "device": device}
        try:
            tool.call("anynpu.runtime.trial:attempt", arguments, scratch=Path(name), log=Path(name) / "log")
        except ToolFailed as failure:
            why = failure.message if failure.status is None else tool.status_name(failure.status)
            raise IntegrityError(f"{artifact.main}: {kind.what} ends with {why}", DAMAGED) from failure
        except AnyNpuError:
            return  # survived; its message comes again, in its place
    passed(artifact, kind)


def _loads_here(kind: object) -> bool:
    return isinstance(kind, LoadsHere) and bool(kind.package)


def passed(artifact: Artifact, kind: Any) -> None:
    """Notes that a session has run an artifact and lived."""
    if not _loads_here(kind):
        return
    with suppress(OSError):  # a read-only cache: it is tried again the next time
        _memo(artifact, kind).parent.mkdir(parents=True, exist_ok=True)
        _memo(artifact, kind).touch()


def _memo(artifact: Artifact, kind: Any) -> Path:
    try:
        version = tool.version_of(kind.package)
    except ToolMissing:  # another distribution of it
        version = ""
    return default_cache_dir() / TRIALS / schema.digest([artifact.digest, kind.name, version])


def attempt(artifact: str, device: str | None) -> None:
    """Runs an artifact once on zeros (in a child process)."""
    with closing(open_session(Artifact.open(Path(artifact)), device)) as session:
        run_stored(session, {spec.name: np.zeros(spec.shape, spec.dtype) for spec in session.inputs})

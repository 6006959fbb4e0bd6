"""What sessions on a vendor's simulator share: is the tool here, are the files whole, where does the log stay."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from anynpu.artifact import Artifact, hash_file
from anynpu.errors import IntegrityError, ToolMissing
from anynpu.files import default_cache_dir


def missing(tool: str) -> str:
    """Returns what to install before a tool's simulator can run here, or an empty string."""
    from anynpu.capsules.capsule import find

    try:
        find(tool)
    except ToolMissing as error:
        return f"{error.message}: {error.hint}"
    return ""


def require_sound(artifact: Artifact) -> None:
    """Raises unless the files are those that were sealed: vendors' runtimes crash on a damaged one."""
    for entry in artifact.manifest.files:
        path = artifact.file(entry.path)
        if not path.is_file() or hash_file(path) != entry.sha256:
            raise IntegrityError(f"{path}: has changed since it was made")


class SessionLog:
    """A log in a folder that goes with its session; after a failure it is kept in the cache folder."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._room = tempfile.TemporaryDirectory(prefix=f"anynpu-{tool}-")
        self.folder = Path(self._room.name)
        self.path = self.folder / "log.txt"

    def keep(self, error: BaseException) -> None:
        """Saves the log and names its new place in an error that names a log."""
        if not hasattr(error, "log") or not self.path.is_file():
            return
        kept = default_cache_dir() / "logs" / f"simulator-{self._tool}.log"
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.path, kept)
            error.log = str(kept)

    def close(self) -> None:
        """Removes the folder."""
        self._room.cleanup()

"""The content-addressed store: each step is built once, whole or not at all.

    <cache>/store/ab/abcd...   a sealed artifact; the name is the address of its step
    <cache>/scratch/...        builds under way; what a killed build leaves here is swept by the next one
    <cache>/locks/abcd....lock held by the one process that builds the step
    <cache>/logs/abcd....log   what the tools of the step printed

A folder appears under store/ by one rename, after its manifest was written last. The operating system releases the
lock of a killed process, so nothing needs repair.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from anynpu.artifact import MANIFEST, Artifact, Made, Manifest, Step, seal
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError

ALIVE = "alive.lock"
Make = Callable[[Path, Path], Manifest]
"""Fills the folder (first path) and returns the manifest; tools log to the file (second path)."""


@dataclass(frozen=True)
class Built:
    """An artifact and how it was come by."""

    artifact: Artifact
    hit: bool
    seconds: float


@dataclass(frozen=True)
class Entry:
    """One artifact of the store, for listing."""

    address: str
    artifact: Artifact
    size: int
    used: float


_CHOSEN = "ANYNPU_COMMAND_CACHE_DIR"


@contextmanager
def cache_chosen(path: Path) -> Iterator[None]:
    """Makes a folder the cache of all that this process and its children do in the meantime."""
    before = os.environ.get(_CHOSEN, "")
    os.environ[_CHOSEN] = str(path.expanduser().absolute())
    try:
        yield
    finally:
        os.environ[_CHOSEN] = before


def default_cache_dir() -> Path:
    """Returns the cache folder: the chosen one, or the usual one."""
    return Path(chosen) if (chosen := os.environ.get(_CHOSEN)) else usual_cache_dir()


def usual_cache_dir() -> Path:
    """Returns ANYNPU_CACHE_DIR, or anynpu under the user's cache folder."""
    if chosen := os.environ.get("ANYNPU_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "anynpu" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anynpu"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns the errors of a full, read-only or forbidden disk into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ConfigError(f"{path}: no space left on the disk", "free some, or choose another folder") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise ConfigError(f"{path}: cannot be written ({error.strerror})", "choose another folder") from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
            raise ConfigError(f"{path}: cannot be a folder here ({error.strerror})", "choose another folder") from error
        raise


class Store:
    """The artifacts under one cache folder."""

    def __init__(self, cache: Path | None = None) -> None:
        self.cache = cache or default_cache_dir()

    def path(self, address: str) -> Path:
        return self.cache / "store" / address[:2] / address

    def log(self, address: str) -> Path:
        return self.cache / "logs" / f"{address}.log"

    def find(self, address: str) -> Artifact | None:
        """Returns the artifact at `address`, or None; a damaged one counts as absent and is set aside."""
        path = self.path(address)
        if not (path / MANIFEST).is_file():
            return None
        try:
            artifact = Artifact.open(path)
        except AnyNpuError:
            return None
        step = artifact.manifest.step
        if step is None or step.address != address:
            return None
        return artifact

    def build(self, step: Step, make: Make) -> Built:
        """Returns the artifact of `step`, building it only if it is new; of several that want it, one builds."""
        started = time.monotonic()
        address = step.address
        if found := self.find(address):
            self._touch(found.path)
            return Built(found, True, time.monotonic() - started)
        with writing(self.cache):
            for folder in ("locks", "logs", "scratch", "store"):
                (self.cache / folder).mkdir(parents=True, exist_ok=True)
            with FileLock(self.cache / "locks" / f"{address}.lock"):
                if found := self.find(address):
                    return Built(found, True, time.monotonic() - started)
                self.sweep()
                artifact = self._build(step, address, make)
        return Built(artifact, False, time.monotonic() - started)

    def _build(self, step: Step, address: str, make: Make) -> Artifact:
        started = time.monotonic()
        scratch = Path(tempfile.mkdtemp(prefix=f"{address[:16]}.", dir=self.cache / "scratch"))
        with FileLock(scratch / ALIVE):
            folder = scratch / "artifact"
            folder.mkdir()
            self.log(address).write_text("")
            try:
                manifest = make(folder, self.log(address))
                made = Made(datetime.now(UTC).isoformat(timespec="seconds"), round(time.monotonic() - started, 3))
                seal(folder, manifest, step, made)
                self._publish(folder, self.path(address))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return Artifact.open(self.path(address))

    def _publish(self, folder: Path, final: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                _sync(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists():  # find() did not accept it: damaged
            aside = self.cache / "scratch" / f"damaged-{final.name}.{os.getpid()}.{time.monotonic_ns()}"
            final.replace(aside)
            shutil.rmtree(aside, ignore_errors=True)
        folder.replace(final)
        _sync(final.parent)

    def sweep(self, older_than_s: float = 60) -> int:
        """Removes what killed builds left in scratch and returns how many there were."""
        removed = 0
        for path in (self.cache / "scratch").glob("*"):
            # A young folder may belong to a build that has not yet taken its lock.
            if _age_s(path) > older_than_s and _owner_gone(path / ALIVE):
                shutil.rmtree(path, ignore_errors=True)
                if path.is_file():
                    path.unlink(missing_ok=True)
                removed += 1
        return removed

    def entries(self) -> Iterator[Entry]:
        """Yields every readable artifact of the store."""
        for path in sorted((self.cache / "store").glob("??/*")):
            if artifact := self.find(path.name):
                size = sum(entry.size for entry in artifact.manifest.files)
                yield Entry(path.name, artifact, size, (path / MANIFEST).stat().st_mtime)

    def verify(self) -> Iterator[tuple[str, str]]:
        """Yields (address, complaint) for every artifact, with an empty complaint for a sound one."""
        for path in sorted((self.cache / "store").glob("??/*")):
            try:
                artifact = Artifact.open(path)
                artifact.verify()
                step = artifact.manifest.step
                if step is None or step.address != path.name:
                    raise IntegrityError(f"{path}: its step has another address")
            except AnyNpuError as error:
                yield path.name, error.message
            else:
                yield path.name, ""

    def remove(self, address: str) -> None:
        """Removes one artifact and its log."""
        with writing(self.cache):
            (self.cache / "locks").mkdir(parents=True, exist_ok=True)
        with writing(self.cache), FileLock(self.cache / "locks" / f"{address}.lock"):
            if self.path(address).exists():
                aside = self.cache / "scratch" / f"removed-{address}.{os.getpid()}"
                aside.parent.mkdir(parents=True, exist_ok=True)
                self.path(address).replace(aside)
                shutil.rmtree(aside, ignore_errors=True)
            self.log(address).unlink(missing_ok=True)

    def _touch(self, path: Path) -> None:
        # `cache prune` drops what was used longest ago; a read-only cache still gives hits.
        try:
            os.utime(path / MANIFEST)
        except OSError:
            return


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _owner_gone(lock: Path) -> bool:
    try:
        with FileLock(lock, timeout=0):
            return True
    except (Timeout, FileNotFoundError):
        return False
    except (NotADirectoryError, FileExistsError):  # a stray file where a folder was expected
        return True


def _sync(path: Path) -> None:
    """Flushes a file or folder to the disk, so that a power cut after the rename cannot leave holes."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

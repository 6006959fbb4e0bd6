"""The content-addressed store: each step is built once, whole or not at all.

    <cache>/store/ab/abcd...   a sealed artifact; the name is the address of its step
    <cache>/scratch/...        builds under way; what a killed build leaves here is swept by the next one
    <cache>/locks/abcd....lock held by the one process that builds the step
    <cache>/logs/abcd....log   what the tools of the step printed
    <cache>/leases/.../abcd... the steps that a process uses: nobody removes them while it lives
    <cache>/reads/abcd....json what the user's own code read in the step
    <cache>/training/abcd....npz where an interrupted training goes on
    <cache>/settled/abcd....json options that depend on model and chip, as they came out

A folder appears under store/ by one rename, after its manifest was written last. The operating system releases the
lock of a killed process, so nothing needs repair.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from anynpu.artifact import MANIFEST, Artifact, Made, Manifest, Step, seal
from anynpu.errors import AnyNpuError, IntegrityError
from anynpu.files import default_cache_dir, forget_hashes, replace_file, writing
from anynpu.schema import JsonObject, digest, read_json

ALIVE = "alive.lock"
Make = Callable[[Path, Path], Manifest]
"""Fills the folder (first path) and returns the manifest; tools log to the file (second path)."""


@dataclass(frozen=True)
class Built:
    """An artifact and how it was come by."""

    artifact: Artifact
    hit: bool
    seconds: float
    damage: str = ""
    """What was wrong with the one that was there, if that is why it was built again."""


@dataclass(frozen=True)
class Entry:
    """One artifact of the store, for listing."""

    address: str
    artifact: Artifact
    size: int
    used: float


class Store:
    """The artifacts under one cache folder."""

    def __init__(self, cache: Path | None = None) -> None:
        self.cache = cache or default_cache_dir()
        self._leases: Path | None = None

    def path(self, address: str) -> Path:
        return self.cache / "store" / address[:2] / address

    def log(self, address: str) -> Path:
        return self.cache / "logs" / f"{address}.log"

    def reads(self, address: str) -> Path:
        """Returns where the record of what the user's own code read lies; a step without such code has none."""
        return self.cache / "reads" / f"{address}.json"

    def find(self, address: str) -> Artifact | None:
        """Returns the artifact at `address`, or None; a damaged one counts as absent."""
        try:
            return self._sound(address)
        except AnyNpuError:
            return None

    def _sound(self, address: str) -> Artifact | None:
        """Returns the artifact at `address`, verified, or None; a damaged one raises."""
        path = self.path(address)
        return _addressed(Artifact.open(path)) if path.exists() else None

    def build(self, step: Step, make: Make, fresh: Callable[[Artifact], bool] = lambda artifact: True) -> Built:
        """Returns the artifact of `step`, building it only if it is new; of several that want it, one builds.

        `fresh` says whether a kept artifact is still what the step would make.
        """
        started = time.monotonic()
        address = step.address
        self._lease(address)
        if (kept := self.find(address)) and fresh(kept):
            # `cache prune` drops what was used longest ago; a read-only cache still gives hits.
            with suppress(OSError):
                os.utime(kept.path / MANIFEST)
            return Built(kept, True, time.monotonic() - started)
        damage = ""
        with writing(self.cache):
            for folder in ("locks", "logs", "scratch", "store"):
                (self.cache / folder).mkdir(parents=True, exist_ok=True)
            with FileLock(self.cache / "locks" / f"{address}.lock"):
                try:
                    if (kept := self._sound(address)) and fresh(kept):
                        return Built(kept, True, time.monotonic() - started)
                except AnyNpuError as error:
                    damage = error.message
                self.sweep()
                artifact = self._build(step, address, make)
        return Built(artifact, False, time.monotonic() - started, damage)

    def recall(self, address: str, find_out: Callable[[], JsonObject]) -> JsonObject:
        """Returns what was found out under an address before, or finds it out now and keeps it."""
        path = self.cache / "settled" / f"{address}.json"
        with suppress(AnyNpuError):
            kept = read_json(path)
            if isinstance(kept, list) and len(kept) == 2 and digest(kept[0]) == kept[1]:
                answer: JsonObject = kept[0]
                return answer
        record = find_out()
        with suppress(OSError):  # a read-only cache: it is found out again the next time
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps([record, digest(record)]))
        return record

    def _lease(self, address: str) -> None:
        """Says that this process uses an entry: others do not remove it as long as this store lives."""
        # Under the entry's lock, which `remove` holds while it looks: either it sees the lease, or we see no entry.
        with suppress(OSError, NotImplementedError):  # from a read-only cache nobody removes anything
            (self.cache / "locks").mkdir(parents=True, exist_ok=True)
            if self._leases is None:
                parent = self.cache / "leases"
                parent.mkdir(parents=True, exist_ok=True)
                folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}.", dir=parent))
                lock = FileLock(folder / ALIVE)
                lock.acquire()
                process = os.getpid()

                def give_back() -> None:
                    if os.getpid() == process:  # not a fork of it
                        lock.release()
                        shutil.rmtree(folder, ignore_errors=True)

                weakref.finalize(self, give_back)
                self._leases = folder
            with FileLock(self.cache / "locks" / f"{address}.lock"):
                (self._leases / address).touch()

    def _build(self, step: Step, address: str, make: Make) -> Artifact:
        started = time.monotonic()
        scratch = Path(tempfile.mkdtemp(prefix=f"{address[:16]}.", dir=self.cache / "scratch"))
        with FileLock(scratch / ALIVE):
            folder = scratch / "artifact"
            folder.mkdir()
            self.log(address).write_text("")
            try:
                manifest = make(folder, self.log(address))
                making = Made(datetime.now(UTC).isoformat(timespec="seconds"), round(time.monotonic() - started, 3))
                sealed = seal(folder, manifest, step, making)
                final = self.path(address)
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
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return Artifact(self.path(address), sealed.manifest)

    def sweep(self, older_than_s: float = 60) -> int:
        """Removes what killed builds left in scratch and returns how many there were."""
        removed = 0
        for path in (*(self.cache / "scratch").glob("*"), *(self.cache / "leases").glob("*")):
            # A young folder may belong to a build that has not yet taken its lock.
            if _age_s(path) > older_than_s and _owner_gone(path / ALIVE):
                shutil.rmtree(path, ignore_errors=True)
                if path.is_file():
                    path.unlink(missing_ok=True)
                removed += path.parent.name == "scratch"
        return removed

    def addresses(self) -> list[str]:
        """Returns the address of everything that is kept, sound or not."""
        return sorted(path.name for path in (self.cache / "store").glob("??/*"))

    def entries(self) -> Iterator[Entry]:
        """Yields every artifact of the store whose manifest can be read; its files are not hashed."""
        for address in self.addresses():
            with suppress(AnyNpuError, OSError):
                path = self.path(address)
                artifact = _addressed(Artifact.read(path))
                size = sum(entry.size for entry in artifact.manifest.files)
                yield Entry(address, artifact, size, (path / MANIFEST).stat().st_mtime)

    def verify(self) -> Iterator[tuple[str, str]]:
        """Yields (address, complaint) for every artifact, with an empty complaint for a sound one; all is hashed."""
        for address in self.addresses():
            try:
                artifact = Artifact.read(self.path(address))
                artifact.verify(anew=True)
                _addressed(artifact)
            except AnyNpuError as error:
                yield address, error.message
            else:
                yield address, ""

    def remove(self, address: str) -> bool:
        """Removes one artifact and its log, and returns True; one that another process uses stays."""
        aside = self.cache / "scratch" / f"removed-{address}.{os.getpid()}"
        with writing(self.cache):
            (self.cache / "locks").mkdir(parents=True, exist_ok=True)
            aside.parent.mkdir(parents=True, exist_ok=True)
            try:
                # Whoever builds it at this moment holds the lock, maybe for long.
                with FileLock(self.cache / "locks" / f"{address}.lock", timeout=1):
                    held = (lease.parent for lease in (self.cache / "leases").glob(f"*/{address}"))
                    if any(folder != self._leases and not _owner_gone(folder / ALIVE) for folder in held):
                        return False
                    if self.path(address).exists():
                        self.path(address).replace(aside)
                    self.log(address).unlink(missing_ok=True)
                    self.reads(address).unlink(missing_ok=True)
            except Timeout:
                return False
            shutil.rmtree(aside, ignore_errors=True)
        return True

    def drop_trainings(self, before: float) -> tuple[int, int]:
        """Removes interrupted trainings that nothing was added to since a time; returns how many, and their bytes."""
        removed, size = 0, 0
        for path in (self.cache / "training").glob("*.npz"):
            lock = FileLock(self.cache / "locks" / f"{path.stem}.lock", timeout=0)
            with suppress(OSError, Timeout), lock:  # who trains at this moment holds it
                if path.stat().st_mtime < before:
                    size += path.stat().st_size
                    path.unlink()
                    removed += 1
        return removed, size

    def clear(self) -> int:
        """Removes all that no other process uses, and returns how much stays because one does."""
        logged = {path.stem for path in (self.cache / "logs").glob("*.log")}
        kept = sum(not self.remove(address) for address in sorted({*self.addresses(), *logged}))
        self.sweep()
        forget_hashes(self.cache, everything=True)
        for folder in ("trials", "settled"):
            shutil.rmtree(self.cache / folder, ignore_errors=True)
        self.drop_trainings(math.inf)
        return kept


def _addressed(artifact: Artifact) -> Artifact:
    """Returns an artifact of the store if it lies where its step says."""
    step = artifact.manifest.step
    if step is None or step.address != artifact.path.name:
        raise IntegrityError(f"{artifact.path}: its step has another address")
    return artifact


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

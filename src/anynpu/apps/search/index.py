"""An index of folders: it follows what is added, changed, moved and removed, and computes every content once.

INDEX/index.json     which models it was made with, and where its vectors are
INDEX/files.sqlite   the files, by path, with the hashes of their contents; small pictures
INDEX/store/         the vectors, one point a picture and one a paragraph, by the hash of the content

The vectors of a batch are acknowledged by the store before the files are noted: whatever dies, the next run finds what
was computed, and computes only what was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from anynpu import schema
from anynpu.apps.search import reading
from anynpu.apps.search.intake import Intake, Job, Progress, Summary, batches
from anynpu.apps.search.ledger import FileRow, Ledger
from anynpu.apps.search.models import Models
from anynpu.apps.search.points import DOCUMENTS, FIELDS, IMAGES, Contents
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.files import write_whole, writing
from anynpu.vectors.base import Collection, CollectionSpec, Store
from anynpu.vectors.places import open_store

RECORD, LEDGER, STORE, LOCK = "index.json", "files.sqlite", "store", "indexing.lock"
FORMAT = 1


@dataclass(frozen=True)
class IndexRecord:
    """What an index remembers between commands."""

    format: int = FORMAT
    store: str = ""
    image_model: str = ""
    question_model: str = ""
    text_model: str = ""


def read_record(folder: Path) -> IndexRecord:
    """Returns what an index remembers; ConfigError if there is none."""
    path = folder / RECORD
    if not path.exists():
        raise ConfigError(f"{folder}: there is no index", "make one: anynpu search index FOLDER")
    data = schema.read_json(path)
    if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
        raise IntegrityError(f"{path}: has format {data['format']}, this version reads {FORMAT}")
    return schema.from_dict(IndexRecord, data, str(path))


class Index:
    """An index, opened with the models it is to use."""

    def __init__(self, folder: Path, models: Models, store: str = "", token: str = "") -> None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder, self.models = folder, models
        before = read_record(folder) if (folder / RECORD).exists() else IndexRecord()
        place = store or before.store
        if before.store and store and store != before.store:
            raise ConfigError(f"{folder}: its vectors are in {before.store}, not in {store}", "choose another --index")
        self.ledger = Ledger(folder / LEDGER)
        self.store: Store = open_store(place or str(folder / STORE), token=token)
        self._collections: dict[str, Collection] = {}
        self.contents = Contents(self._collections, self.ledger)
        try:
            for name, model in ((IMAGES, models.pictures), (DOCUMENTS, models.documents)):
                if model is not None:
                    self._collections[name] = self.store.create(CollectionSpec(name, model.space, FIELDS))
                elif name in self.store.names():
                    self._collections[name] = self.store.open(name)
            if IMAGES in self._collections:
                models.require_joint(self._collections[IMAGES].spec.space)
        except BaseException:
            self.close()
            raise
        self.record = replace(
            before,
            store=place,
            image_model=_artifact(models.pictures) or before.image_model,
            question_model=_artifact(models.questions) or before.question_model,
            text_model=_artifact(models.documents) or before.text_model,
        )
        if self.record != before or not (folder / RECORD).exists():
            write_whole(folder / RECORD, schema.canonical_json(schema.to_dict(self.record, whole=True)))

    def collection(self, name: str) -> Collection | None:
        """Returns the points of pictures or of documents, where there are any."""
        return self._collections.get(name)

    def close(self) -> None:
        self.store.close()
        self.ledger.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, root: Path, tell: Callable[[Progress], None] = lambda progress: None) -> Summary:
        """Brings the index up to what is in a folder now."""
        root = root.expanduser().absolute()
        if not root.is_dir():
            raise ConfigError(f"{root}: no such folder", f"to drop what was indexed of it: anynpu search forget {root}")
        with self._alone():
            return self._update(root, tell)

    def _alone(self) -> _Alone:
        return _Alone(self.folder / LOCK)

    def _update(self, root: Path, tell: Callable[[Progress], None]) -> Summary:
        began = time.monotonic()
        summary = Summary()
        before = self.ledger.rows(str(root))
        jobs: list[Job] = []
        seen: set[str] = set()
        for path, kind in reading.walk(root, self.folder):
            summary.files += 1
            try:
                seen.add(reading.plain_path(path))
            except AnyNpuError as error:
                summary.problems.append((error.message.partition(": ")[0], error.message))
                continue
            model = self.models.pictures if kind == "image" else self.models.documents
            if (IMAGES if kind == "image" else DOCUMENTS) not in self._collections or model is None:
                summary.skipped += 1
                continue
            row = before.get(path)
            if row is not None and _unchanged(row, path):
                summary.unchanged += 1
                if row.problem:
                    summary.problems.append((path, row.problem))
                continue
            jobs.append(Job(path, kind))
        if before and not seen:
            raise ConfigError(
                f"{root}: is empty, and {len(before)} files of it are indexed",
                f"if it is not mounted, mount it; if they are gone: anynpu search forget {root}",
            )
        done, intake = 0, Intake(self.models, self.contents)
        for batch in batches(intake.read_ahead(jobs)):
            intake.take_in(str(root), batch, summary)
            done += len(batch)
            tell(Progress(done, len(jobs), summary.computed, time.monotonic() - began, summary.model_s))
        self.contents.remove([row for path, row in before.items() if path not in seen])
        summary.removed = len(before.keys() - seen)
        for collection in self._collections.values():
            collection.flush()
        summary.seconds = time.monotonic() - began
        return summary

    def forget(self, root: Path) -> int:
        """Drops what was indexed of a folder, whether it is there or not; returns the number of files."""
        rows = self.ledger.rows(str(root.expanduser().absolute()))
        if not rows:
            known = ", ".join(name for name, _, _ in self.ledger.roots()) or "none"
            raise ConfigError(f"{root}: nothing of it is indexed", f"indexed folders: {known}")
        with self._alone():
            self.contents.remove(list(rows.values()))
        return len(rows)


def _unchanged(row: FileRow, path: str) -> bool:
    try:
        return reading.state_of(path) == row.state
    except OSError:
        return False


def _artifact(model: object) -> str:
    return str(getattr(model, "artifact", "") or "")


class _Alone:
    """The one process that writes to an index."""

    def __init__(self, path: Path) -> None:
        from filelock import FileLock

        self._lock = FileLock(path)

    def __enter__(self) -> None:
        from filelock import Timeout

        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"{self._lock.lock_file}: another command is indexing", "wait for it, or choose another --index"
            ) from None

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

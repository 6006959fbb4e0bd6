"""An index of folders: it follows what is added, changed, moved and removed, and computes every content once.

INDEX/index.json     which models it was made with, and where its vectors are
INDEX/files.sqlite   the files, by path, with the hashes of their contents; small pictures
INDEX/store/         the vectors, one point a picture and one a paragraph, by the hash of the content

The vectors of a batch are acknowledged by the store before the files are noted: whatever dies, the next run finds what
was computed, and computes only what was not.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import TracebackType

from anynpu import schema
from anynpu.apps.search import reading
from anynpu.apps.search.documents import Paragraph, paragraphs, read_text
from anynpu.apps.search.ledger import FileRow, Ledger
from anynpu.apps.search.models import Models
from anynpu.apps.search.reading import Content, Kind
from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.files import write_whole, writing
from anynpu.tasks.picture import Picture
from anynpu.tensors import Array
from anynpu.vectors.base import Collection, CollectionSpec, Field, Filter, Json, Match, Point, Store
from anynpu.vectors.places import open_store

RECORD, LEDGER, STORE, LOCK = "index.json", "files.sqlite", "store", "indexing.lock"
FORMAT = 1
IMAGES, DOCUMENTS = "images", "documents"
FIELDS = (Field("hash", "keyword"), Field("folders", "keyword"), Field("taken", "float"))
BATCH, BATCH_PIXELS = 16, 64_000_000
AHEAD = 8
"""Files read while the model is at work."""
MOST_PATHS = 100
"""Paths that a point names of one content; the ledger knows all."""


@dataclass(frozen=True)
class IndexRecord:
    """What an index remembers between commands."""

    format: int = FORMAT
    store: str = ""
    image_model: str = ""
    question_model: str = ""
    text_model: str = ""


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    done: int
    total: int
    computed: int
    seconds: float
    model_s: float

    @property
    def per_second(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0


@dataclass
class Summary:
    """What a run did: contents that went through a model, files that were only noted, and those that could not be."""

    files: int = 0
    unchanged: int = 0
    computed: int = 0
    known: int = 0
    """Files whose content was there already: copies, renamed files, and what a killed run had finished."""
    removed: int = 0
    skipped: int = 0
    """Files of a kind that no model was given for."""
    problems: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    model_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """A file to look at, and what came of reading it."""

    path: str
    kind: Kind
    content: Content | None = None
    taken: float = 0.0
    known: bool = False
    picture: Picture | None = None
    pieces: tuple[Paragraph, ...] = ()
    problem: str = ""
    gone: bool = False


def point_id(hash: str, part: int = 0) -> str:
    """Returns the id of a content's point: the same content has the same id wherever it lies."""
    return str(uuid.UUID(bytes=hashlib.sha256(f"{hash}:{part}".encode()).digest()[:16]))


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
        self._computed: set[str] = set()
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
            if (IMAGES if kind == "image" else DOCUMENTS) not in self._collections or not self._model_of(kind):
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
        done = 0
        for batch in _batches(self._read_ahead(jobs)):
            self._take_in(str(root), batch, summary)
            done += len(batch)
            tell(Progress(done, len(jobs), summary.computed, time.monotonic() - began, summary.model_s))
        self._remove([row for path, row in before.items() if path not in seen])
        summary.removed = len(before.keys() - seen)
        for collection in self._collections.values():
            collection.flush()
        summary.seconds = time.monotonic() - began
        return summary

    def _model_of(self, kind: Kind) -> bool:
        return (self.models.pictures if kind == "image" else self.models.documents) is not None

    def forget(self, root: Path) -> int:
        """Drops what was indexed of a folder, whether it is there or not; returns the number of files."""
        rows = self.ledger.rows(str(root.expanduser().absolute()))
        if not rows:
            known = ", ".join(name for name, _, _ in self.ledger.roots()) or "none"
            raise ConfigError(f"{root}: nothing of it is indexed", f"indexed folders: {known}")
        with self._alone():
            self._remove(list(rows.values()))
        return len(rows)

    # Reading, in threads beside the model

    def _read_ahead(self, jobs: Sequence[Job]) -> Iterator[Job]:
        waiting = iter(jobs)
        with ThreadPoolExecutor(2) as pool:
            ahead = [pool.submit(self._read, job) for job in islice(waiting, AHEAD)]
            while ahead:
                yield ahead.pop(0).result()
                ahead += [pool.submit(self._read, job) for job in islice(waiting, 1)]

    def _read(self, job: Job) -> Job:
        """Reads a file, and decodes it unless its content is known."""
        try:
            content = reading.read(job.path, job.kind)
        except FileNotFoundError:
            return replace(job, gone=True)
        except OSError as error:
            return replace(job, problem=f"{job.path}: cannot be read ({error.strerror})")
        except AnyNpuError as error:
            return replace(job, problem=error.message)
        # Its bytes are not kept: only what they say.
        job = replace(job, content=replace(content, data=b""), taken=reading.taken_at(content, job.kind))
        try:
            if job.kind == "image":
                if self._has(IMAGES, point_id(content.hash)):
                    return replace(job, known=True)
                return replace(job, picture=reading.decode(content, job.path))
            pieces = tuple(paragraphs(read_text(content.data, job.path)))
            # They are written in order: where the last is, all are.
            known = not pieces or self._has(DOCUMENTS, point_id(content.hash, len(pieces) - 1))
            return replace(job, pieces=pieces, known=known)
        except AnyNpuError as error:
            return replace(job, problem=error.message)

    def _has(self, name: str, id: str) -> bool:
        return bool(self._collections[name].retrieve([id]))

    # Writing, a batch at a time

    def _take_in(self, root: str, batch: Sequence[Job], summary: Summary) -> None:
        rows: list[FileRow] = []
        fresh: dict[str, Job] = {}
        for job in batch:
            if job.gone:
                continue
            if job.content is None:
                summary.problems.append((job.path, job.problem))
                continue  # it is not noted: the next run looks at it again
            rows.append(FileRow(job.path, root, job.content.state, job.content.hash, job.kind, job.taken, job.problem))
            if job.problem:
                summary.problems.append((job.path, job.problem))
            elif job.known or job.content.hash in fresh or self._computed_since(job):
                summary.known += 1
            else:
                fresh[job.content.hash] = job
        refused = self._compute(fresh, rows, summary)
        self._computed.update(fresh.keys() - refused.keys())
        rows = [replace(row, problem=refused[row.hash]) if row.hash in refused else row for row in rows]
        for hash in {row.hash for row in rows if not row.problem} - set(fresh):
            self._rename(hash, rows)
        self._replace(rows)
        thumbs = [(hash, reading.thumbnail(job.picture)) for hash, job in fresh.items() if job.picture is not None]
        self.ledger.write(rows, [thumb for thumb in thumbs if thumb[0] not in refused])

    def _computed_since(self, job: Job) -> bool:
        """Says whether a copy that was read at the same time has been computed while this one waited."""
        if job.content is None or job.content.hash not in self._computed:
            return False
        name, last = (IMAGES, 0) if job.kind == "image" else (DOCUMENTS, len(job.pieces) - 1)
        return self._has(name, point_id(job.content.hash, last))

    def _replace(self, rows: Sequence[FileRow]) -> None:
        """Takes files that have another content now away from what they held before."""
        noted = {row.path: self.ledger.row(row.path) for row in rows}
        changed = {row.path for row in rows if (before := noted[row.path]) is not None and before.hash != row.hash}
        for hash in {before.hash for path in changed if (before := noted[path]) is not None}:
            others = [row for row in self.ledger.with_hash(hash) if row.path not in changed]
            here = [row for row in rows if row.hash == hash]
            self._set_files(hash, list({row.path: row for row in (*others, *here)}.values()))

    def _compute(self, fresh: dict[str, Job], rows: Sequence[FileRow], summary: Summary) -> dict[str, str]:
        """Runs the models over new contents and writes their points; returns what a model refused, by hash."""
        refused: dict[str, str] = {}
        pictures = {hash: job.picture for hash, job in fresh.items() if job.picture is not None}
        points: list[Point] = []
        for hash, vector in self._embedded(pictures, fresh, refused, summary):
            payload = self._payload(hash, "image", rows) | {
                "height": int(pictures[hash].pixels.shape[0]),
                "width": int(pictures[hash].pixels.shape[1]),
            }
            points.append(Point(point_id(hash), vector, payload))
        if points:
            self._collections[IMAGES].upsert(points)
        for hash, job in fresh.items():
            if job.pieces and self.models.documents is not None:
                started = time.monotonic()
                try:
                    vectors = self.models.documents.embed([piece.text for piece in job.pieces])
                except AnyNpuError as error:
                    refused[hash] = error.message
                    summary.problems.append((job.path, error.message))
                    continue
                finally:
                    summary.model_s += time.monotonic() - started
                payload = self._payload(hash, "document", rows)
                self._collections[DOCUMENTS].upsert(
                    [
                        Point(
                            point_id(hash, at), vector, {**payload, "part": at, "line": piece.line, "text": piece.text}
                        )
                        for at, (piece, vector) in enumerate(zip(job.pieces, vectors, strict=True))
                    ]
                )
        summary.computed += len(fresh) - len(refused)
        return refused

    def _embedded(
        self, pictures: dict[str, Picture], jobs: dict[str, Job], refused: dict[str, str], summary: Summary
    ) -> Iterator[tuple[str, Array]]:
        """Yields the vectors of pictures; one that the model makes nothing of does not spoil the others."""
        model = self.models.pictures
        if not pictures or model is None:
            return
        named = [(jobs[hash].path, picture) for hash, picture in pictures.items()]
        started = time.monotonic()
        try:
            yield from zip(pictures, model.embed(named), strict=True)
            return
        except AnyNpuError:
            if len(named) == 1:
                raise
        finally:
            summary.model_s += time.monotonic() - started
        for hash, one in zip(pictures, named, strict=True):
            try:
                yield hash, model.embed([one])[0]
            except AnyNpuError as error:
                refused[hash] = error.message
                summary.problems.append((one[0], error.message))

    def _payload(self, hash: str, kind: Kind, rows: Iterable[FileRow]) -> dict[str, Json]:
        """Returns what a point says of its files: those that are noted, and those of this batch."""
        files = {row.path: row for row in self.ledger.with_hash(hash)}
        files |= {row.path: row for row in rows if row.hash == hash}
        return payload_of(hash, kind, list(files.values()))

    def _rename(self, hash: str, rows: Sequence[FileRow]) -> None:
        """Brings the paths of a content that is there up to date."""
        files = {row.path: row for row in self.ledger.with_hash(hash)} | {
            row.path: row for row in rows if row.hash == hash
        }
        self._set_files(hash, list(files.values()))

    def _set_files(self, hash: str, files: Sequence[FileRow]) -> None:
        for name, kind in ((IMAGES, "image"), (DOCUMENTS, "document")):
            collection = self._collections.get(name)
            if collection is None:
                continue
            of_kind = [row for row in files if row.kind == kind]
            where = Filter(must=(Match("hash", hash),))
            if not of_kind:
                collection.delete_where(where)
                continue
            paths = payload_of(hash, kind, of_kind)
            points = []
            after = None
            while True:
                page = collection.scroll(where=where, after=after, with_vector=True)
                points += [Point(r.id, r.vector, {**r.payload, **paths}) for r in page.rows if r.vector is not None]
                after = page.after
                if after is None:
                    break
            collection.upsert(points)

    def _remove(self, rows: Sequence[FileRow]) -> None:
        """Forgets files; a content that no file has any more goes with the last."""
        for start in range(0, len(rows), 256):
            some = rows[start : start + 256]
            gone = {row.path for row in some}
            for hash in {row.hash for row in some if row.hash}:
                self._set_files(hash, [row for row in self.ledger.with_hash(hash) if row.path not in gone])
            self.ledger.remove(gone)


def payload_of(hash: str, kind: str, files: Sequence[FileRow]) -> dict[str, Json]:
    """Returns what a point says of the files with its content: all their paths, and every folder above them."""
    listed = sorted(files, key=lambda row: row.path)
    folders = {str(folder) for row in listed for folder in _above(row)}
    return {
        "hash": hash,
        "kind": kind,
        "paths": [row.path for row in listed[:MOST_PATHS]],
        "folders": sorted(folders),
        "taken": min(row.taken for row in listed),
    }


def _above(row: FileRow) -> list[Path]:
    parents = Path(row.path).parents
    return [folder for folder in parents if len(folder.parts) >= len(Path(row.root).parts)]


def _unchanged(row: FileRow, path: str) -> bool:
    try:
        return reading.state_of(path) == row.state
    except OSError:
        return False


def _batches(jobs: Iterator[Job]) -> Iterator[list[Job]]:
    """Yields a few jobs at a time: as many as fit into the memory that is meant for their pixels."""
    batch: list[Job] = []
    pixels = 0
    for job in jobs:
        batch.append(job)
        pixels += job.picture.pixels.size // 3 if job.picture is not None else 0
        if len(batch) >= BATCH or pixels >= BATCH_PIXELS:
            yield batch
            batch, pixels = [], 0
    if batch:
        yield batch


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

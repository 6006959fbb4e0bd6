"""Taking files in: they are read ahead in threads, computed in batches, and noted when their points are safe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice

from anynpu.apps.search import reading
from anynpu.apps.search.documents import Paragraph, paragraphs, read_text
from anynpu.apps.search.ledger import FileRow
from anynpu.apps.search.models import Models
from anynpu.apps.search.points import DOCUMENTS, IMAGES, Contents, point_id
from anynpu.apps.search.reading import Content, Kind
from anynpu.errors import AnyNpuError
from anynpu.tasks.picture import Picture
from anynpu.tensors import Array
from anynpu.vectors.base import Point

BATCH, BATCH_PIXELS = 16, 64_000_000
AHEAD = 8
"""Files read while the model is at work."""


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


def batches(jobs: Iterator[Job]) -> Iterator[list[Job]]:
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


class Intake:
    """Reads, computes and notes files for one index."""

    def __init__(self, models: Models, contents: Contents) -> None:
        self.models, self.contents = models, contents
        self._computed: set[str] = set()

    def read_ahead(self, jobs: Sequence[Job]) -> Iterator[Job]:
        """Yields jobs with what came of reading them, in their order."""
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
                if self.contents.has(IMAGES, point_id(content.hash)):
                    return replace(job, known=True)
                return replace(job, picture=reading.decode(content, job.path))
            pieces = tuple(paragraphs(read_text(content.data, job.path)))
            # They are written in order: where the last is, all are.
            known = not pieces or self.contents.has(DOCUMENTS, point_id(content.hash, len(pieces) - 1))
            return replace(job, pieces=pieces, known=known)
        except AnyNpuError as error:
            return replace(job, problem=error.message)

    def take_in(self, root: str, batch: Sequence[Job], summary: Summary) -> None:
        """Computes what is new in a batch, and notes its files."""
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
            self.contents.rename(hash, rows)
        self.contents.replace(rows)
        thumbs = [(hash, reading.thumbnail(job.picture)) for hash, job in fresh.items() if job.picture is not None]
        self.contents.ledger.write(rows, [thumb for thumb in thumbs if thumb[0] not in refused])

    def _computed_since(self, job: Job) -> bool:
        """Says whether a copy that was read at the same time has been computed while this one waited."""
        if job.content is None or job.content.hash not in self._computed:
            return False
        name, last = (IMAGES, 0) if job.kind == "image" else (DOCUMENTS, len(job.pieces) - 1)
        return self.contents.has(name, point_id(job.content.hash, last))

    def _compute(self, fresh: dict[str, Job], rows: Sequence[FileRow], summary: Summary) -> dict[str, str]:
        """Runs the models over new contents and writes their points; returns what a model refused, by hash."""
        refused: dict[str, str] = {}
        pictures = {hash: job.picture for hash, job in fresh.items() if job.picture is not None}
        points: list[Point] = []
        for hash, vector in self._embedded(pictures, fresh, refused, summary):
            payload = self.contents.payload(hash, "image", rows) | {
                "height": int(pictures[hash].pixels.shape[0]),
                "width": int(pictures[hash].pixels.shape[1]),
            }
            points.append(Point(point_id(hash), vector, payload))
        if points:
            self.contents.collections[IMAGES].upsert(points)
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
                payload = self.contents.payload(hash, "document", rows)
                self.contents.collections[DOCUMENTS].upsert(
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

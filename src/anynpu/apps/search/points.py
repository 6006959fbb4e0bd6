"""The points of an index: one a picture and one a paragraph, each with all files that hold its content."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from anynpu.apps.search.ledger import FileRow, Ledger
from anynpu.apps.search.reading import Kind
from anynpu.vectors.base import Collection, Field, Filter, Json, Match, Point

IMAGES, DOCUMENTS = "images", "documents"
FIELDS = (Field("hash", "keyword"), Field("folders", "keyword"), Field("taken", "float"))
MOST_PATHS = 100
"""Paths that a point names of one content; the ledger knows all."""


def point_id(hash: str, part: int = 0) -> str:
    """Returns the id of a content's point: the same content has the same id wherever it lies."""
    return str(uuid.UUID(bytes=hashlib.sha256(f"{hash}:{part}".encode()).digest()[:16]))


def payload_of(hash: str, kind: str, files: Sequence[FileRow]) -> dict[str, Json]:
    """Returns what a point says of the files with its content: all their paths, and every folder above them."""
    listed = sorted(files, key=lambda row: row.path)
    folders = {
        str(folder)
        for row in listed
        for folder in Path(row.path).parents
        if len(folder.parts) >= len(Path(row.root).parts)
    }
    return {
        "hash": hash,
        "kind": kind,
        "paths": [row.path for row in listed[:MOST_PATHS]],
        "folders": sorted(folders),
        "taken": min(row.taken for row in listed),
    }


class Contents:
    """What the collections hold of every content, kept in step with the files that have it."""

    def __init__(self, collections: Mapping[str, Collection], ledger: Ledger) -> None:
        self.collections, self.ledger = collections, ledger

    def has(self, name: str, id: str) -> bool:
        """Says whether a point is there."""
        return bool(self.collections[name].retrieve([id]))

    def payload(self, hash: str, kind: Kind, rows: Iterable[FileRow]) -> dict[str, Json]:
        """Returns what a point says of its files: those that are noted, and those of this batch."""
        files = {row.path: row for row in self.ledger.with_hash(hash)}
        files |= {row.path: row for row in rows if row.hash == hash}
        return payload_of(hash, kind, list(files.values()))

    def rename(self, hash: str, rows: Sequence[FileRow]) -> None:
        """Brings the paths of a content that is there up to date."""
        files = {row.path: row for row in self.ledger.with_hash(hash)} | {
            row.path: row for row in rows if row.hash == hash
        }
        self._set_files(hash, list(files.values()))

    def _set_files(self, hash: str, files: Sequence[FileRow]) -> None:
        for name, kind in ((IMAGES, "image"), (DOCUMENTS, "document")):
            collection = self.collections.get(name)
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

    def remove(self, rows: Sequence[FileRow]) -> None:
        """Forgets files; a content that no file has any more goes with the last."""
        for start in range(0, len(rows), 256):
            some = rows[start : start + 256]
            gone = {row.path for row in some}
            for hash in {row.hash for row in some if row.hash}:
                self._set_files(hash, [row for row in self.ledger.with_hash(hash) if row.path not in gone])
            self.ledger.remove(gone)

    def replace(self, rows: Sequence[FileRow]) -> None:
        """Takes files that have another content now away from what they held before."""
        noted = {row.path: self.ledger.row(row.path) for row in rows}
        changed = {row.path for row in rows if (before := noted[row.path]) is not None and before.hash != row.hash}
        for hash in {before.hash for path in changed if (before := noted[path]) is not None}:
            others = [row for row in self.ledger.with_hash(hash) if row.path not in changed]
            here = [row for row in rows if row.hash == hash]
            self._set_files(hash, list({row.path: row for row in (*others, *here)}.values()))

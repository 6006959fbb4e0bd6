"""What an index knows of files: their state when they were read, their content's hash, what is wrong with them, and
small pictures. A SQLite file, so that a batch is written whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from anynpu.errors import ConfigError, IntegrityError

VERSION = 1
SCHEMA = """
CREATE TABLE files (path TEXT PRIMARY KEY, root TEXT NOT NULL, size INTEGER, mtime_ns INTEGER, ctime_ns INTEGER,
  inode INTEGER, hash TEXT NOT NULL, kind TEXT NOT NULL, taken REAL, problem TEXT NOT NULL) STRICT;
CREATE INDEX files_by_hash ON files (hash);
CREATE TABLE thumbs (hash TEXT PRIMARY KEY, jpeg BLOB NOT NULL) STRICT;
"""


@dataclass(frozen=True)
class State:
    """How a file looked: while this is the same, its content is taken to be the same."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True)
class FileRow:
    """A file as it was read; `hash` is empty and `problem` says why where it could not be."""

    path: str
    root: str
    state: State
    hash: str
    kind: str
    taken: float
    problem: str = ""


class Ledger:
    """The files of an index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._errors():
            self._base = sqlite3.connect(path, timeout=30, check_same_thread=False)
            version = self._base.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise IntegrityError(
                    f"{path}: has format {version}, this version reads {VERSION}", "index again into another folder"
                )
            self._base.execute("PRAGMA journal_mode = WAL")
            if version == 0:
                self._base.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            reason = str(error)
            if "full" in reason or "disk I/O" in reason:
                raise ConfigError(f"{self.path}: no space left on the disk", "free some, and index again") from error
            raise ConfigError(f"{self.path}: cannot be used ({reason})", "choose another --index") from error
        except sqlite3.DatabaseError as error:
            raise IntegrityError(f"{self.path}: is damaged ({error})", "remove the index and index again") from error

    def rows(self, root: str | None = None) -> dict[str, FileRow]:
        """Returns the files under a root, or all, by their paths."""
        where, values = ("WHERE root = ?", (root,)) if root is not None else ("", ())
        with self._errors():
            stored = self._base.execute(
                f"SELECT path, root, size, mtime_ns, ctime_ns, inode, hash, kind, taken, problem FROM files {where}",
                values,
            )
            return {row[0]: FileRow(row[0], row[1], State(*row[2:6]), *row[6:]) for row in stored}

    def write(self, rows: Iterable[FileRow], thumbs: Iterable[tuple[str, bytes]] = ()) -> None:
        """Writes a batch."""
        with self._errors(), self._base:
            self._base.executemany(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(r.path, r.root, *astuple(r.state), r.hash, r.kind, r.taken, r.problem) for r in rows],
            )
            self._base.executemany("INSERT OR REPLACE INTO thumbs VALUES (?, ?)", thumbs)

    def remove(self, paths: Iterable[str]) -> None:
        with self._errors(), self._base:
            self._base.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in paths])
            self._base.execute("DELETE FROM thumbs WHERE hash NOT IN (SELECT hash FROM files)")

    def with_hash(self, hash: str) -> list[FileRow]:
        """Returns the files that have this content."""
        with self._errors():
            paths = self._base.execute("SELECT path FROM files WHERE hash = ? ORDER BY path", (hash,)).fetchall()
        known = self.rows() if len(paths) > 50 else None
        return [row for (path,) in paths for row in [known[path] if known else self.row(path)] if row is not None]

    def row(self, path: str) -> FileRow | None:
        with self._errors():
            row = self._base.execute(
                "SELECT path, root, size, mtime_ns, ctime_ns, inode, hash, kind, taken, problem FROM files"
                " WHERE path = ?",
                (path,),
            ).fetchone()
        return None if row is None else FileRow(row[0], row[1], State(*row[2:6]), *row[6:])

    def thumb(self, hash: str) -> bytes | None:
        with self._errors():
            row = self._base.execute("SELECT jpeg FROM thumbs WHERE hash = ?", (hash,)).fetchone()
        return None if row is None else bytes(row[0])

    def roots(self) -> list[tuple[str, int, int]]:
        """Returns every root with its number of files and of those with a problem."""
        with self._errors():
            return [
                (root, count, bad)
                for root, count, bad in self._base.execute(
                    "SELECT root, COUNT(*), SUM(problem <> '') FROM files GROUP BY root ORDER BY root"
                )
            ]

    def close(self) -> None:
        self._base.close()

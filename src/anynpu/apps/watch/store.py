"""Samples, alerts and what people said of them, durable: one SQLite file in WAL mode with synchronous=FULL.

A sample is acknowledged after its transaction has been committed and synced, so that neither the death of a process
nor a loss of power loses it. Values are kept as float32 with the list of their names, which samples share.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu.apps.watch.samples import Delivery
from anynpu.errors import ConfigError, IntegrityError, first_line

FORM = 1
APPLICATION = 0x616E7077  # "anpw": what `file` says of it
TABLES = """
CREATE TABLE hosts (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE layouts (id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE);
CREATE TABLE samples (
    number INTEGER PRIMARY KEY AUTOINCREMENT, host INTEGER NOT NULL, id TEXT NOT NULL,
    time_s REAL NOT NULL, stamped_s REAL NOT NULL, layout INTEGER NOT NULL, vals BLOB NOT NULL);
CREATE UNIQUE INDEX sample_ids ON samples (host, id);
CREATE INDEX sample_times ON samples (host, time_s);
CREATE TABLE alerts (id TEXT PRIMARY KEY, host TEXT NOT NULL, began_s REAL NOT NULL, ended_s REAL, body TEXT NOT NULL,
    acknowledged_s REAL, acknowledged_by TEXT);
CREATE INDEX alert_times ON alerts (began_s);
CREATE TABLE mutes (host TEXT NOT NULL, metric TEXT NOT NULL, until_s REAL NOT NULL, note TEXT NOT NULL,
    PRIMARY KEY (host, metric));
CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
OUTBOX = "CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, sink TEXT NOT NULL, body TEXT)"
"""Messages that no receiver has taken yet. Stores of form 1 that were made before it get it when they are opened."""
MOST_WAITING = 1000


class StoreUnavailable(ConfigError):
    """The store cannot be written now: its disk is full or has failed. What was acknowledged is safe."""


@dataclass(frozen=True)
class Stored:
    """A sample as it is read back."""

    number: int
    host: str
    time_s: float
    stamped_s: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Mute:
    """Alerts of a host, or of one of its metrics, that stay silent until then."""

    host: str
    metric: str
    until_s: float
    note: str


class SampleStore:
    """The one file. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.RLock()
        fresh = not path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
            connection = self.connection
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not fresh and tables and application != APPLICATION:
                raise IntegrityError(f"{self.path}: is a database of something else", "choose another --store")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            if not tables:
                pragmas = f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={FORM};"
                connection.executescript(f"BEGIN IMMEDIATE; {pragmas} {TABLES} COMMIT;")
            form = connection.execute("PRAGMA user_version").fetchone()[0]
            if form != FORM:
                raise IntegrityError(
                    f"{self.path}: a store of form {form}, this anynpu reads form {FORM}",
                    "use the anynpu that wrote it, or choose another --store",
                )
            connection.execute(OUTBOX)
        except sqlite3.DatabaseError as error:
            raise IntegrityError(
                f"{path}: is not a store of samples ({first_line(error)})", "choose another --store"
            ) from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be opened ({error.strerror})", "choose another --store") from None
        self._hosts = {name: id for id, name in self.connection.execute("SELECT id, name FROM hosts")}
        self._layouts = {names: id for id, names in self.connection.execute("SELECT id, names FROM layouts")}
        self._names = {id: json.loads(names) for names, id in self._layouts.items()}
        self.newest = int(self.connection.execute("SELECT coalesce(max(number), 0) FROM samples").fetchone()[0])

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, committed and synced on return; a disk that does not take it is a sentence."""
        with self.lock:
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException as error:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise StoreUnavailable(f"{self.path}: cannot be written now ({first_line(error)})") from None
                raise

    def add(self, deliveries: Sequence[Delivery]) -> list[int]:
        """Keeps the samples of deliveries in one transaction and returns how many of each were new."""
        hosts, layouts = dict(self._hosts), dict(self._layouts)
        fresh = []
        with self._writing() as connection:
            for delivery in deliveries:
                host = self._number(connection, "hosts", "name", hosts, delivery.host)
                count = 0
                for sample in delivery.samples:
                    layout = self._number(connection, "layouts", "names", layouts, json.dumps(list(sample.metrics)))
                    values = np.array(list(sample.metrics.values()), np.float32).tobytes()
                    count += connection.execute(
                        "INSERT OR IGNORE INTO samples (host, id, time_s, stamped_s, layout, vals) "
                        "VALUES (?,?,?,?,?,?)",
                        (host, sample.id, sample.time_s, sample.stamped_s, layout, values),
                    ).rowcount
                fresh.append(count)
            self.newest = connection.execute("SELECT coalesce(max(number), 0) FROM samples").fetchone()[0]
        self._hosts, self._layouts = hosts, layouts
        self._names = {id: json.loads(names) for names, id in layouts.items()}
        return fresh

    @staticmethod
    def _number(connection: sqlite3.Connection, table: str, column: str, known: dict[str, int], text: str) -> int:
        if text not in known:
            number = connection.execute(f"INSERT INTO {table} ({column}) VALUES (?)", (text,)).lastrowid
            known[text] = int(number or 0)
        return known[text]

    def after(self, number: int, limit: int = 5000) -> list[Stored]:
        """Returns samples in the order in which they were kept, beginning after one."""
        with self.lock:
            rows = self.connection.execute(
                "SELECT number, hosts.name, time_s, stamped_s, layout, vals FROM samples JOIN hosts ON hosts.id = host "
                "WHERE number > ? ORDER BY number LIMIT ?",
                (number, limit),
            ).fetchall()
        return [self._stored(row) for row in rows]

    def between(self, host: str, from_s: float, to_s: float, limit: int = 100_000) -> list[Stored]:
        """Returns the samples of a host in a time, in the order of time."""
        with self.lock:
            rows = self.connection.execute(
                "SELECT number, ?, time_s, stamped_s, layout, vals FROM samples "
                "WHERE host = ? AND time_s BETWEEN ? AND ? ORDER BY time_s LIMIT ?",
                (host, self._hosts.get(host, -1), from_s, to_s, limit),
            ).fetchall()
        return [self._stored(row) for row in rows]

    def _stored(self, row: tuple[int, str, float, float, int, bytes]) -> Stored:
        number, host, time_s, stamped_s, layout, values = row
        numbers = np.frombuffer(values, np.float32).tolist()
        return Stored(number, host, time_s, stamped_s, dict(zip(self._names[layout], numbers, strict=True)))

    @property
    def known_hosts(self) -> dict[str, int]:
        """All hosts, by name."""
        return self._hosts

    def count(self) -> int:
        """Returns how many samples there are."""
        with self.lock:
            return int(self.connection.execute("SELECT count(*) FROM samples").fetchone()[0])

    def forget(self, before_s: float, most: int = 20_000) -> int:
        """Drops the oldest samples before a time, at most this many at once, and returns how many."""
        with self._writing() as connection:
            return int(
                connection.execute(
                    "DELETE FROM samples WHERE number IN (SELECT number FROM samples WHERE time_s < ? LIMIT ?)",
                    (before_s, most),
                ).rowcount
            )

    def keep_alert(
        self, id: str, host: str, began_s: float, ended_s: float | None, body: str, sinks: Sequence[str] = ()
    ) -> int:
        """Keeps an alert as it stands and, in the same transaction, a message of it for every sink; returns how many
        older messages had to go. What people said of the alert stays."""
        dropped = 0
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO alerts (id, host, began_s, ended_s, body) VALUES (?,?,?,?,?) "
                "ON CONFLICT (id) DO UPDATE SET ended_s = excluded.ended_s, body = excluded.body",
                (id, host, began_s, ended_s, body),
            )
            for sink in sinks:
                connection.execute("INSERT INTO outbox (sink, body) VALUES (?,?)", (sink, body))
                dropped += connection.execute(
                    "DELETE FROM outbox WHERE sink = ? AND number <= "
                    "(SELECT number FROM outbox WHERE sink = ? ORDER BY number DESC LIMIT 1 OFFSET ?)",
                    (sink, sink, MOST_WAITING),
                ).rowcount
        return dropped

    def next_message(self, sink: str) -> tuple[int, str] | None:
        """Returns the oldest message that a sink has not delivered, with its number."""
        query = "SELECT number, body FROM outbox WHERE sink = ? ORDER BY number LIMIT 1"
        with self.lock:
            row: tuple[int, str] | None = self.connection.execute(query, (sink,)).fetchone()
        return row

    def delivered(self, number: int) -> None:
        """Forgets a message."""
        with self._writing() as connection:
            connection.execute("DELETE FROM outbox WHERE number = ?", (number,))

    def acknowledge(self, id: str, who: str, now_s: float) -> bool:
        """Notes that somebody looks after an alert."""
        with self._writing() as connection:
            query = "UPDATE alerts SET acknowledged_s = ?, acknowledged_by = ? WHERE id = ?"
            return connection.execute(query, (now_s, who, id)).rowcount > 0

    def alerts(self, limit: int = 500, open_only: bool = False) -> list[tuple[str, float | None, float | None, str]]:
        """Returns body, end and acknowledgement (when, by whom) of the newest alerts, newest first."""
        where = "WHERE ended_s IS NULL" if open_only else ""
        with self.lock:
            return self.connection.execute(
                f"SELECT body, ended_s, acknowledged_s, coalesce(acknowledged_by, '') FROM alerts {where} "
                "ORDER BY began_s DESC LIMIT ?",
                (limit,),
            ).fetchall()

    def mute(self, mute: Mute) -> None:
        """Keeps silent about a host or a metric until a time; one that is over ends it."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO mutes VALUES (?,?,?,?)", (mute.host, mute.metric, mute.until_s, mute.note)
            )

    def mutes(self, now_s: float) -> list[Mute]:
        """Returns what is muted now."""
        with self.lock:
            rows = self.connection.execute("SELECT host, metric, until_s, note FROM mutes WHERE until_s > ?", (now_s,))
            return [Mute(*row) for row in rows.fetchall()]

    def note(self, name: str, value: str) -> None:
        """Keeps a value under a name."""
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO notes VALUES (?,?)", (name, value))

    def noted(self, name: str, default: str = "") -> str:
        """Returns what is kept under a name."""
        with self.lock:
            row = self.connection.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else default

    def close(self) -> None:
        with self.lock:
            self.connection.close()

"""What is timed: a session from stored values to stored values, the whole way from real input to result, or a request.

A session may tell how long the parts of its last run took: `stages() -> Mapping[str, int]`, nanoseconds by name ("copy
in", "device", "copy out"), in order. A session without it has one stage, "run".
"""

from __future__ import annotations

import functools
import http.client
import itertools
import socket
import urllib.parse
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from anynpu.errors import ConfigError, DeviceError
from anynpu.measure.timer import clock
from anynpu.runtime.base import Session, check_names
from anynpu.tensors import Array

INFER, PIPELINE, HTTP = "infer", "pipeline", "http"
RUN = "run"


class Subject(Protocol):
    """Something to time. `call` is the timed part; all else happens outside of it."""

    what: str
    scope: str

    @property
    def call(self) -> Callable[[], Any]: ...

    def check(self, result: Any) -> None:
        """Raises DeviceError unless the result of a call is what the first one gave."""
        ...

    def stages(self) -> Mapping[str, int]:
        """Returns the nanoseconds of every part of the last call, by name; nothing where there is one part only."""
        ...

    def outputs(self) -> dict[str, Any]:
        """Returns what was checked, for the record."""
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


@runtime_checkable
class Staged(Protocol):
    """A session that can tell the parts of its last run apart."""

    def stages(self) -> Mapping[str, int]: ...


class Same:
    """Compares the checksums of every run's outputs with those of the first."""

    def __init__(self) -> None:
        self.first: dict[str, int] = {}
        self.runs = 0

    def check(self, outputs: Mapping[str, Array]) -> None:
        """Raises unless the outputs are those of the first run, bit by bit."""
        self.runs += 1
        sums = {name: zlib.crc32(np.ascontiguousarray(values).data) for name, values in outputs.items()}
        if self.runs == 1:
            self.first = sums
        if sums == self.first:
            return
        name = next(iter(n for n in (*sums, *self.first) if sums.get(n) != self.first.get(n)))
        raise DeviceError(
            f"run {self.runs} gives another output {name} than the first, for the same input",
            call="run",
            cause="memory that one run leaves for the next, or a race",
        )

    def to_json(self) -> dict[str, Any]:
        return {"checked": self.runs, "differ": 0, "crc32": {name: f"{crc:08x}" for name, crc in self.first.items()}}


def _check_inputs(session: Session, inputs: Mapping[str, Array]) -> None:
    check_names(inputs, session.inputs)
    for spec in session.inputs:
        spec.check(inputs[spec.name])


class Infer:
    """A session from stored inputs in memory to stored outputs in memory."""

    scope = INFER

    def __init__(self, session: Session, inputs: Mapping[str, Array]) -> None:
        _check_inputs(session, inputs)
        self.session, self.what, self._same = session, session.what, Same()
        # Names, shapes and types are checked once, so that the timed part is the session's own work.
        self.call: Callable[[], Mapping[str, Array]] = functools.partial(session.run, inputs)

    def check(self, result: Mapping[str, Array]) -> None:
        self._same.check(result)

    def stages(self) -> Mapping[str, int]:
        return self.session.stages() if isinstance(self.session, Staged) else {}

    def outputs(self) -> dict[str, Any]:
        return self._same.to_json()

    def close(self) -> None:
        self.session.close()


Read = Callable[[], Mapping[str, Array]]
Post = Callable[[Mapping[str, Array]], Any]


class Pipeline:
    """The whole way: preprocess, quantise, run, dequantise, post-process; `read` gives real numbers."""

    scope = PIPELINE

    def __init__(
        self, session: Session, inputs: Mapping[str, Array], read: Read | None = None, post: Post | None = None
    ) -> None:
        _check_inputs(session, inputs)
        self.session, self.what, self._same = session, session.what, Same()
        self._real = {spec.name: spec.to_real(inputs[spec.name]) for spec in session.inputs}
        self._read, self._post = read, post
        self._marks: list[int] = []
        self.call = self._through

    def _through(self) -> Mapping[str, Array]:
        session, marks = self.session, [clock()]
        real = self._real if self._read is None else self._read()
        marks.append(clock())
        stored = {spec.name: spec.to_stored(real[spec.name]) for spec in session.inputs}
        marks.append(clock())
        outputs = session.run(stored)
        marks.append(clock())
        found = {spec.name: spec.to_real(outputs[spec.name]) for spec in session.outputs}
        marks.append(clock())
        if self._post is not None:
            self._post(found)
        marks.append(clock())
        self._marks = marks
        return outputs

    def check(self, result: Mapping[str, Array]) -> None:
        self._same.check(result)

    def stages(self) -> Mapping[str, int]:
        parts = [b - a for a, b in itertools.pairwise(self._marks)]
        inner = self.session.stages() if isinstance(self.session, Staged) else {RUN: parts[2]}
        before = {"preprocess": parts[0]} if self._read is not None else {}
        after = {"post": parts[4]} if self._post is not None else {}
        return {**before, "quantise": parts[1], **inner, "dequantise": parts[3], **after}

    def outputs(self) -> dict[str, Any]:
        return self._same.to_json()

    def close(self) -> None:
        self.session.close()


@dataclass
class Tally:
    """What several connections to one server count together."""

    first: int | None = None
    runs: int = 0
    differ: int = 0
    connections: int = 0


class Http:
    """POST of one JSON body, again and again over one connection."""

    scope = HTTP

    def __init__(self, url: str, body: bytes, timeout: float = 30.0, tally: Tally | None = None) -> None:
        parts = _split(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout)
        self._path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        self._body, self._headers = body, {"Content-Type": "application/json"}
        self.what, self.url, self._tally = f"POST {url}", url, tally or Tally()
        self._marks: list[int] = []
        self.call = self._post

    def connect(self) -> None:
        """Opens the connection."""
        try:
            self._connection.connect()
        except OSError as error:
            raise self._refused("connect", error) from error
        self._tally.connections += 1

    def _post(self) -> tuple[int, bytes]:
        if self._connection.sock is None:  # the server closed it after the last answer
            self.connect()
        marks = [clock()]
        try:
            self._connection.request("POST", self._path, self._body, self._headers)
            marks.append(clock())
            answer = self._connection.getresponse()
            marks.append(clock())
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._refused("POST", error) from error
        marks.append(clock())
        self._marks = marks
        return answer.status, data

    def _refused(self, call: str, error: Exception) -> DeviceError:
        late = isinstance(error, socket.timeout | TimeoutError)
        why = "no answer in time" if late else str(error) or type(error).__name__
        return DeviceError(f"{self.url}: {why}", call=call, cause="the server is not there, or it went away")

    def check(self, result: tuple[int, bytes]) -> None:
        """Raises unless the server said 2xx; other bytes than the first time are counted: answers may hold a time."""
        (status, data), tally = result, self._tally
        tally.runs += 1
        if not 200 <= status < 300:
            told = data[:200].decode("utf-8", "replace").strip()
            raise DeviceError(f"{self.url}: HTTP status {status} in run {tally.runs}: {told}", "POST", status)
        crc = zlib.crc32(data)
        tally.first = crc if tally.first is None else tally.first
        tally.differ += crc != tally.first

    def stages(self) -> Mapping[str, int]:
        parts = [b - a for a, b in itertools.pairwise(self._marks)]
        return dict(zip(("send", "wait", "receive"), parts, strict=True))

    def outputs(self) -> dict[str, Any]:
        tally = self._tally
        crc = "" if tally.first is None else f"{tally.first:08x}"
        counts = {"checked": tally.runs, "differ": tally.differ, "connections": tally.connections}
        return {**counts, "crc32": {"body": crc}}

    def close(self) -> None:
        self._connection.close()


def _split(url: str) -> urllib.parse.SplitResult:
    try:
        parts = urllib.parse.urlsplit(url)
        ok = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number
        ok = False
    if not ok:
        raise ConfigError(f"--http {url}: http://HOST[:PORT]/PATH was expected")
    return parts

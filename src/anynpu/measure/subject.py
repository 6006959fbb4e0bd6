"""What is timed: a session from stored values to stored values, the whole way from real input to result, or a request.

A session may tell how long the parts of its last run took: `stages() -> Mapping[str, int]`, nanoseconds by name ("copy
in", "device", "copy out"), in order. A session without it has one stage, "run".
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from anynpu.errors import DeviceError
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

    def outputs(self) -> Mapping[str, object]:
        """Returns what was checked, for the record."""
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


@runtime_checkable
class Staged(Protocol):
    """A session that can tell the parts of its last run apart."""

    def stages(self) -> Mapping[str, int]: ...


@runtime_checkable
class RunsSession(Protocol):
    """A subject that times a session of this process."""

    session: Session


def session_of(subject: Subject | None) -> Session | None:
    """Returns the session that a subject times, where it is in this process."""
    return subject.session if isinstance(subject, RunsSession) else None


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

    def to_json(self) -> Mapping[str, object]:
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

    def outputs(self) -> Mapping[str, object]:
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
        answers = {spec.name: spec.to_real(outputs[spec.name]) for spec in session.outputs}
        marks.append(clock())
        if self._post is not None:
            self._post(answers)
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

    def outputs(self) -> Mapping[str, object]:
        return self._same.to_json()

    def close(self) -> None:
        self.session.close()

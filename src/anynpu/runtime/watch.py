"""Looks at the first answers of a session: a device that computes nothing gives the same ones whatever it is asked.

A driver, a firmware or a cable can fail in such a way that every call succeeds and the memory of the outputs is never
written. So answers are compared until two differ. A classifier that is sure of its class may well give the same two
numbers for many inputs, and a mask may be empty: neither is an error. On hardware what is found is a DeviceError; where
this computer computes, the model itself may be like that, and it is a warning.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anynpu.errors import DeviceError, SuspectWarning
from anynpu.runtime.abilities import BeginsJobs, on_hardware
from anynpu.tensors import Array

FEWEST_ELEMENTS = 8
DIFFERENT_INPUTS = 3
REPEATED = 3
"""After this many runs on one input no more are looked at: whoever repeats them is timing them."""
HINT = "`anynpu doctor` looks at driver and library; run the model on another device with --on to compare"


@dataclass
class Watch:
    """A session's `run` that looks at answers until two of them differ.

    `different` is how many different inputs must give one answer before that is wrong; `never_constant` says that one
    number throughout is wrong at once, as for the vector of a text or the boxes of a detector.
    """

    session: Any
    different: int = DIFFERENT_INPUTS
    never_constant: bool = False
    _seen: set[int] = field(default_factory=set)
    _first: dict[str, Array] = field(default_factory=dict)
    _repeated: int = 0
    _done: bool = False

    def __post_init__(self) -> None:
        self._run = self.session.run
        self._begin = self.session.begin if isinstance(self.session, BeginsJobs) else None

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs: dict[str, Array] = self._run(inputs)
        if not self._done:
            self._look(inputs, outputs)
        return outputs

    def begin(self, inputs: Mapping[str, Array]) -> Callable[[], dict[str, Array]] | None:
        end: Callable[[], dict[str, Array]] | None = self._begin(inputs) if self._begin is not None else None
        if end is None or self._done:
            return end

        def looked() -> dict[str, Array]:
            outputs = end()
            self._look(inputs, outputs)
            return outputs

        return looked

    def _look(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        digest = 0
        for name in sorted(inputs):
            digest = zlib.crc32(np.ascontiguousarray(inputs[name]).tobytes(), digest)
        if digest in self._seen:
            self._repeated += 1
            self._done = self._repeated >= REPEATED
            return
        self._seen.add(digest)
        # Real numbers tell; the number of a class or a truth value is often the same
        telling = {
            s.name: outputs[s.name]
            for s in self.session.outputs
            if np.dtype(s.dtype).kind == "f" or s.quantization is not None
        }
        if not self._first:
            self._first = {name: np.array(array) for name, array in telling.items()}
            self._look_at_first()
        elif any(array.tobytes() != self._first[name].tobytes() for name, array in telling.items()):
            self._done = True
        elif len(self._seen) >= self.different:
            self._done = True
            count = f"{len(self._seen)} different inputs"
            if self._is_constant():
                value = next(iter(self._first.values())).flat[0]
                if self.never_constant:
                    self._complain(f"every number of every output is {value:g} for {count}")
                else:
                    _warn(f"{self.session.what}: every number of every output is {value:g} for {count}")
            elif any(len(np.unique(array)) > 2 for array in self._first.values()):
                self._complain(f"the outputs are the same for {count}")

    def _look_at_first(self) -> None:
        self._done = not self._first or sum(a.size for a in self._first.values()) < FEWEST_ELEMENTS
        for name, array in self._first.items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                count = int(np.isnan(array).sum())
                _warn(f"{self.session.what}: {count} of {array.size} numbers of output {name} are NaN")
        if self._done or not self._is_constant():
            return
        value = f"every number of every output is {next(iter(self._first.values())).flat[0]:g}"
        if self.never_constant:
            self._complain(f"{value}: nothing was computed")
        elif on_hardware(self.session):
            _warn(f"{self.session.what}: {value}")

    def _is_constant(self) -> bool:
        return all((array == array.flat[0]).all() for array in self._first.values())

    def _complain(self, sentence: str) -> None:
        if on_hardware(self.session):
            cause = "the driver, the library or the model for it is wrong: its calls succeed and give no results"
            raise DeviceError(f"{self.session.what}: {sentence}", "run", cause=cause, hint=HINT)
        _warn(f"{self.session.what}: {sentence}")


def _warn(sentence: str) -> None:
    warnings.warn(sentence, SuspectWarning, stacklevel=2)


def watch(session: Any, different: int = DIFFERENT_INPUTS, never_constant: bool = False) -> None:
    """Has the first answers of a session looked at; again with other rules where it is watched already."""
    if session.name == "null":
        return
    run = session.__dict__.get("run")
    if isinstance(run, Watch):
        run.different, run.never_constant = different, never_constant
    else:
        session.run = watch = Watch(session, different, never_constant)
        if isinstance(session, BeginsJobs):
            session.begin = watch.begin  # type: ignore[method-assign]

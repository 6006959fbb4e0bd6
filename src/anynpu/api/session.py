"""anynpu.open: an artifact made ready to run on real numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, cast

import numpy as np

from anynpu.api.feed import Feed, Specs, feed_of, named_arrays, source_specs
from anynpu.artifact import Artifact, Placement
from anynpu.runtime import trial
from anynpu.runtime.abilities import placement_of
from anynpu.runtime.base import Session as RuntimeSession
from anynpu.runtime.base import open_artifact, open_session, run_stored
from anynpu.runtime.versions import versions_of
from anynpu.runtime.watch import watch
from anynpu.store import Store
from anynpu.tensors import Array, TensorSpec, by_name, relayout

if TYPE_CHECKING:
    from anynpu.firmware.run import Running

ANSWER_S = 10.0
"""Seconds that a board may take for an answer."""
BOARD = re.compile(r"host|qemu(:.*)?|serial:.*")
"""What `on` names where our firmware runs the model, rather than a runtime of this host."""


@dataclass(frozen=True)
class Answer:
    """Outputs as real numbers, several samples along the first axis, and what was moved on the way."""

    outputs: dict[str, Array]
    notes: tuple[str, ...] = ()


class Session:
    """A model that runs: real numbers in, real numbers out.

    Arrays are in the layout of the model that the artifact was built from, or in the artifact's own. Close it, or
    use it in a `with` statement.
    """

    def __init__(
        self, artifact: Artifact, runtime: RuntimeSession, specs: Specs | None = None, board: Running | None = None
    ) -> None:
        self.artifact = artifact
        self.board = board
        """The firmware that runs, where that is ours."""
        self.runtime = runtime
        """What executes it, in stored values."""
        self._specs = specs

    @property
    def specs(self) -> Specs:
        """Inputs and outputs in the layouts of the model that the artifact was built from."""
        if self._specs is None:
            self._specs = source_specs(self.artifact)
        return self._specs

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs as `run` takes them."""
        return self.specs[0]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs as `run` gives them."""
        return self.specs[1]

    @property
    def executed(self) -> str:
        """What executes the model, in words."""
        return self.runtime.what

    @property
    def versions(self) -> Mapping[str, str]:
        """The versions of driver, firmware and runtime, where they can be asked for."""
        return versions_of(self.runtime)

    @property
    def placement(self) -> Placement | None:
        """Which operators ran on the NPU, where the runtime says so."""
        return placement_of(self.runtime)

    def run(self, arrays: Array | Mapping[str, Array]) -> dict[str, Array]:
        """Runs the model on one sample, or on several along the first axis, and returns the outputs by name.

        An array alone is the only input of the model.
        """
        specs = self.runtime.inputs
        return self.answer(feed_of(named_arrays(arrays, specs), specs, self.inputs)).outputs

    def answer(self, feed: Feed) -> Answer:
        """Runs every sample of a feed. Inputs that came in the layout of the source take the outputs back to it."""
        answers = [run_stored(self.runtime, sample) for sample in feed.samples]
        notes, like = list(feed.notes), by_name(self.outputs) if feed.moved else {}
        outputs = {}
        for spec in self.runtime.outputs:
            rows = [spec.to_real(answer[spec.name]) for answer in answers]
            wanted = like[spec.name].layout if spec.name in like else spec.layout
            if wanted and spec.layout and wanted != spec.layout:
                rows = [relayout(row, spec.layout, wanted) for row in rows]
                notes.append(f"output {spec.name}: moved from {spec.layout} to {wanted}, the layout of its source")
            outputs[spec.name] = rows[0] if len(rows) == 1 else np.concatenate([np.atleast_1d(row) for row in rows])
        return Answer(outputs, tuple(notes))

    def close(self) -> None:
        """Gives back what the session holds."""
        self.runtime.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in self.inputs)
        return f"<anynpu.Session {self.artifact.path.name}: {inputs}; {self.executed}>"


def open(path: str | PathLike[str], on: str | None = None, *, timeout: float = ANSWER_S) -> Session:
    """Returns a session that runs the artifact in a folder, or a .cix file.

    `on` names what executes it, as --on does: ort, litert, tflm, ...; for generated C host, qemu or serial:PORT; by
    default the reference of the artifact's format. `timeout` is how many seconds a board may take for an answer.
    """
    artifact = open_artifact(Path(path))
    return open_on(artifact, on, Store(), timeout)


def is_board(artifact: Artifact, on: str | None) -> bool:
    """Returns whether an artifact runs as our firmware: on a board, an emulated one or this host."""
    return BOARD.fullmatch(on) is not None if on is not None else artifact.manifest.format == "c"


def open_on(
    artifact: Artifact,
    on: str | None,
    store: Store,
    timeout: float = ANSWER_S,
    specs: Specs | None = None,
    layers: bool = False,
) -> Session:
    """Returns a session on the device that `on` names; firmware that is built for it is kept in the store."""
    if not is_board(artifact, on):
        trial.require(artifact, on)
        return Session(artifact, open_session(artifact, on), specs)
    from anynpu.firmware import run as firmware

    running = firmware.start(artifact, on or "host", store, timeout_s=timeout, layers=layers)
    watch(running.session)
    # It has the protocol's calls; how it is opened is its own.
    return Session(artifact, cast(RuntimeSession, running.session), specs, running)

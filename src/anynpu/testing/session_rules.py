"""The contract of a session, one rule a function; the docstring is the rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import tool
from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, ToolFailed
from anynpu.measure.execution import run_all
from anynpu.measure.fidelity import compare_outputs
from anynpu.measure.samples import SampleSet, write_samples
from anynpu.measure.verify import class_axes
from anynpu.runtime.base import Session, open_session, run_stored
from anynpu.tensors import Array
from anynpu.testing.child import whereabouts
from anynpu.testing.models import draw_samples
from anynpu.testing.rules import damaged, difference, require, snapshot

NAMES = {"name": str, "formats": tuple, "rank": int, "what": str}


@dataclass(frozen=True)
class SessionCase:
    """A session class with an artifact to run; `reference` is the float model it must agree with on `samples`."""

    session_class: Any
    artifact: Artifact
    folder: Path
    reference: Artifact | None = None
    samples: SampleSet | None = None
    min_sqnr_db: float = 10.0

    @cached_property
    def stored(self) -> SampleSet:
        """Two inputs in the form the artifact takes."""
        return draw_samples(self.artifact.manifest.inputs, 2)

    @cached_property
    def inputs(self) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
        first, second = self.stored
        return first, second

    def open(self) -> Session:
        session: Session = self.session_class(self.artifact)
        return session

    def run(self, index: int = 0) -> dict[str, Array]:
        """Returns what a fresh session gives for one of the two inputs."""
        session = self.open()
        outputs = _copied(run_stored(session, self.inputs[index]))
        session.close()
        return outputs


def _copied(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.array(value, copy=True) for name, value in arrays.items()}


def _same(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for name in a
    )


def class_says_what_it_is(case: SessionCase) -> None:
    """A session class has a name, the formats it runs, a rank and a text on what executes."""
    for name, kind in NAMES.items():
        value = getattr(case.session_class, name, None)
        require(isinstance(value, kind), f"{name} is {value!r}, not {kind.__name__}")
        require(kind is int or bool(value), f"{name} is empty")
    require(
        case.artifact.manifest.format in case.session_class.formats,
        f"its formats {list(case.session_class.formats)} do not include {case.artifact.manifest.format}",
    )


def missing_is_told_as_text(case: SessionCase) -> None:
    """missing() needs no session and returns what to install, or an empty text."""
    reason = case.session_class.missing()
    require(isinstance(reason, str), f"missing() gives {reason!r}, not a text")


def specs_are_those_of_the_manifest(case: SessionCase) -> None:
    """The session's inputs and outputs equal the manifest's."""
    session = case.open()
    require(tuple(session.inputs) == case.artifact.manifest.inputs, "inputs differ from the manifest's")
    require(tuple(session.outputs) == case.artifact.manifest.outputs, "outputs differ from the manifest's")
    session.close()


def outputs_are_as_specified(case: SessionCase) -> None:
    """run() gives exactly the specified outputs, each with its shape and type."""
    outputs = case.run()
    wanted = [spec.name for spec in case.artifact.manifest.outputs]
    require(sorted(outputs) == sorted(wanted), f"run() gives {sorted(outputs)}, the manifest says {sorted(wanted)}")
    for spec in case.artifact.manifest.outputs:
        try:
            spec.check(outputs[spec.name])
        except ConfigError as error:
            raise AssertionError(f"run() breaks its specification: {error.message}") from error


def the_same_input_gives_the_same_output(case: SessionCase) -> None:
    """The same input gives the same output, again in the session after another input, and in a fresh one."""
    session = case.open()
    first = _copied(run_stored(session, case.inputs[0]))
    run_stored(session, case.inputs[1])
    again = _copied(run_stored(session, case.inputs[0]))
    session.close()
    require(_same(first, again), "the same input gives another output after another input")
    require(_same(first, case.run()), "the same input gives another output in a fresh session")


def inputs_are_left_alone(case: SessionCase) -> None:
    """run() changes neither its input arrays nor the artifact's files."""
    before, files = _copied(case.inputs[0]), snapshot(case.artifact.path)
    passed = _copied(before)
    session = case.open()
    run_stored(session, passed)
    session.close()
    require(_same(before, passed), "run() changes its input arrays")
    changed = difference(files, snapshot(case.artifact.path))
    require(not changed, f"running changes the artifact: {', '.join(changed)}")


def inputs_lie_in_memory_as_they_like(case: SessionCase) -> None:
    """An input in another memory order, or one that may not be written, gives the same output."""
    session = case.open()
    plain = _copied(run_stored(session, case.inputs[0]))
    other = {name: np.asfortranarray(value) for name, value in case.inputs[0].items()}
    for value in other.values():
        value.setflags(write=False)
    turned = _copied(run_stored(session, other))
    session.close()
    require(_same(plain, turned), "an input in another memory order gives another output")


def outputs_stay_as_they_are(case: SessionCase) -> None:
    """A later run does not overwrite the outputs of an earlier one."""
    session = case.open()
    kept = run_stored(session, case.inputs[0])
    before = _copied(kept)
    run_stored(session, case.inputs[1])
    require(_same(before, kept), "a later run overwrites the outputs of an earlier one: copy them")
    session.close()
    require(_same(before, kept), "closing the session changes outputs that it gave: copy them")


def sessions_are_apart(case: SessionCase) -> None:
    """Two sessions open at once do not disturb each other."""
    expected = case.run()
    one, two = case.open(), case.open()
    run_stored(two, case.inputs[1])
    got = _copied(run_stored(one, case.inputs[0]))
    two.close()
    after = _copied(run_stored(one, case.inputs[0]))
    one.close()
    require(_same(expected, got), "a second session changes what the first one gives")
    require(_same(expected, after), "closing a second session changes what the first one gives")


def wrong_inputs_raise_config_error(case: SessionCase) -> None:
    """A wrong name, shape or type raises ConfigError, and the session still works afterwards."""
    good, spec = case.inputs[0], case.artifact.manifest.inputs[0]
    session = case.open()
    value = good[spec.name]
    other = "float32" if spec.dtype != "float32" else "float64"
    rest = {name: array for name, array in good.items() if name != spec.name}
    for what, wrong in {
        "a missing input": rest,
        "an input of another name": rest | {spec.name + "_": value},
        "an input too many": {**good, spec.name + "_": value},
        "an input of another shape": rest | {spec.name: value[..., None]},
        "an input of another type": rest | {spec.name: value.astype(other)},
    }.items():
        try:
            run_stored(session, wrong)
        except ConfigError:
            continue
        except Exception as error:
            raise AssertionError(f"{what} raises {type(error).__name__}, not ConfigError: {error}") from error
        raise AssertionError(f"{what} is taken as if nothing were wrong")
    after = _copied(run_stored(session, good))
    session.close()
    require(_same(after, case.run()), "after a refused input the session gives another output")


def close_may_be_called_twice(case: SessionCase) -> None:
    """close() may be called twice, and before any run."""
    for index in range(2):
        session = case.open()
        if index:
            run_stored(session, case.inputs[0])
        session.close()
        try:
            session.close()
        except Exception as error:
            raise AssertionError(f"the second close() raises {type(error).__name__}: {error}") from error


def a_damaged_file_raises_integrity_error(case: SessionCase) -> None:
    """A damaged model file raises IntegrityError; it neither crashes the process nor gives other numbers."""
    room = case.folder / "damaged-session"
    room.mkdir()
    write_samples(room, case.stored)
    sound = _open_apart(case, case.artifact, room)
    for what, artifact in damaged(case.artifact, room).items():
        answer = _open_apart(case, artifact, room)
        raised = answer.get("raised")
        complaint = f"a model file {what} raises {raised}, not IntegrityError: {answer.get('message')}"
        require(raised in (None, "IntegrityError"), complaint)
        # A session that never reads the file gives what it always gives.
        require(raised is not None or answer == sound, f"a model file {what} is run, and gives other numbers")


def _open_apart(case: SessionCase, artifact: Artifact, room: Path) -> dict[str, object]:
    arguments = {**whereabouts(case.session_class), "artifact": str(artifact.path), "inputs": str(room)}
    try:
        answer: dict[str, object] = tool.call(
            "anynpu.testing.child:open_and_run", arguments, scratch=room, log=room / "log.txt"
        )
    except ToolFailed as crash:
        raise AssertionError(f"a damaged model file ends the process: {crash.message}") from crash
    return answer


def results_agree_with_the_float_model(case: SessionCase) -> None:
    """On the samples the outputs agree with the float model's to the SQNR asked for."""
    if case.reference is None:
        return
    samples = case.samples or draw_samples(case.reference.manifest.inputs, 8)
    session, truth = case.open(), open_session(case.reference)
    got, expected = run_all(session, samples, case.reference), run_all(truth, samples, case.reference)
    session.close()
    truth.close()
    for name, fidelity in compare_outputs(expected, got, class_axes(case.reference)).items():
        short = (
            f"output {name} is {fidelity.sqnr_db:.1f} dB from the float model, {case.min_sqnr_db:g} dB are asked for"
        )
        require(fidelity.sqnr_db >= case.min_sqnr_db, short)


RULES: tuple[Callable[[SessionCase], None], ...] = (
    class_says_what_it_is,
    missing_is_told_as_text,
    specs_are_those_of_the_manifest,
    outputs_are_as_specified,
    the_same_input_gives_the_same_output,
    inputs_are_left_alone,
    inputs_lie_in_memory_as_they_like,
    outputs_stay_as_they_are,
    sessions_are_apart,
    wrong_inputs_raise_config_error,
    close_may_be_called_twice,
    a_damaged_file_raises_integrity_error,
    results_agree_with_the_float_model,
)

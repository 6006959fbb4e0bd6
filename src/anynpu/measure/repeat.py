"""Whether a compiled artifact computes, bit for bit, what the model does that it was compiled from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError
from anynpu.measure.execution import known_answers, taught_samples
from anynpu.measure.samples import SampleSet, read_samples
from anynpu.runtime.abilities import Audits, FindsDifference, RunsMany
from anynpu.runtime.base import choose, sessions_for, stored_inputs
from anynpu.runtime.ethos_u.findings import Audited
from anynpu.tensors import by_name

ANSWERS = "answers.npz"


@dataclass(frozen=True)
class Repetition:
    """What came of executing a compiled artifact and the model it was compiled from."""

    device: str
    executed: str
    teacher: str
    samples: int = 0
    values: int = 0
    differing: int = 0
    worst: int = 0
    first: str = ""
    """Where the two part: the operation, the tensor and the registers."""
    refused: str = ""
    """Why the artifact could not be executed here."""
    not_compared: str = ""
    """Why there is nothing to compare it with."""
    audit: Audited = field(default_factory=Audited)
    """What the operations did with the memories that they must not do."""

    @property
    def exact(self) -> bool:
        return self.samples > 0 and self.differing == 0 and not self.refused and not self.not_compared

    def notes(self) -> tuple[str, ...]:
        """Returns the sentences for people."""
        if self.refused:
            note = f"{self.executed} does not run this model: {self.refused}"
        elif self.not_compared:
            note = f"not compared bit by bit: {self.not_compared}"
        elif self.exact:
            note = f"bit-exact with {self.teacher} on {self.samples} samples: its figures on all of them are these"
        else:
            share = f"{self.differing} of {self.values} values on {self.samples} samples, by {self.worst} at most"
            note = f"differs from {self.teacher} in {share}" + (f"; first at {self.first}" if self.first else "")
        return note, *self.audit.notes()


def teach(oracle: str, reference: str, data: str, answers: str) -> str:
    """Writes what the model before the compiler gives for the first samples to the file `answers`.

    Returns why it could not, or an empty string (runs in a child process).
    """
    source, truth = (Artifact.open(Path(path)) for path in (oracle, reference))
    teacher = sessions_for(source.manifest.format)[0]
    if reason := teacher.missing():
        return str(reason)
    try:
        known = known_answers(teacher(source), taught_samples(read_samples(Path(data)), truth), truth)
    except (IntegrityError, DeviceError) as error:
        return error.message
    np.savez(answers, **known)  # type: ignore[arg-type]  # names are not keywords
    return ""


def repeat(candidate: str, oracle: str, reference: str, data: str, answers: str) -> Repetition:
    """Executes a compiled artifact on the first samples and compares every stored value with the answers that `teach`
    wrote for the artifact before it (runs in a child process where TFLite-Micro has a part in it).
    """
    subject, source, truth = (Artifact.open(Path(path)) for path in (candidate, oracle, reference))
    samples = taught_samples(read_samples(Path(data)), truth)
    kind, teacher = choose(subject.manifest.format), sessions_for(source.manifest.format)[0]
    repetition = Repetition(kind.name, kind.what, teacher.what)
    session = kind(subject)
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    stored = [stored_inputs(session, sample, like) for sample in samples]
    inputs = SampleSet({spec.name: np.concatenate([row[spec.name] for row in stored]) for spec in session.inputs})
    try:
        if isinstance(session, RunsMany):
            outputs = session.run_many(inputs.inputs)
        else:
            results = [session.run(sample) for sample in inputs]
            outputs = {name: np.concatenate([each[name] for each in results]) for name in results[0]}
    except DeviceError as error:
        return replace(repetition, refused=error.message)
    if isinstance(session, Audits):
        repetition = replace(repetition, audit=session.audit(next(iter(inputs))))
    if not Path(answers).is_file():
        return repetition
    with np.load(answers) as known:
        pairs = [(value.astype(np.int64), known[f"output:{name}"].astype(np.int64)) for name, value in outputs.items()]
    differing = sum(int((got != wanted).sum()) for got, wanted in pairs)
    first = ""
    if differing and isinstance(session, FindsDifference):
        rows = [(got != wanted).reshape(len(samples), -1).any(axis=1) for got, wanted in pairs]
        wrong = int(np.flatnonzero(np.logical_or.reduce(rows))[0])
        first = session.first_difference(source.main.read_bytes(), list(inputs)[wrong])
    return replace(
        repetition,
        samples=len(samples),
        values=sum(wanted.size for _, wanted in pairs),
        differing=differing,
        first=first,
        worst=max(int(np.abs(got - wanted).max(initial=0)) for got, wanted in pairs),
    )

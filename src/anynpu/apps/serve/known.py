"""Known answers: what a model gave when it was verified, and whether a session still gives it.

A build leaves the evidence of an artifact in its folder `evidence` (or beside it, as out/evidence/CHIP): stored inputs
and outputs of a few samples, and how far the outputs were from the float model's. What has no evidence is compared with
its own first answers: that finds a device that changes, not one that was wrong from the start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from anynpu import schema
from anynpu.apps.serve.base import Figures
from anynpu.arrays import read_npz
from anynpu.artifact import EVIDENCE, Artifact
from anynpu.errors import AccuracyError, AnyNpuError
from anynpu.runtime.abilities import on_hardware
from anynpu.runtime.base import Session
from anynpu.tensors import Array, TensorSpec

VECTORS = "vectors.npz"
MOST_CASES = 5
SAME_DB = 60.0
"""Real numbers that are this close are the same: another order of adding gives 100 dB and more."""
FLOOR_DB = 10.0
"""What a build asks of an artifact at least, where the evidence names no figure for an output."""
OWN = "the first answers of this server"


@dataclass(frozen=True)
class Case:
    """Stored inputs, and the stored outputs that belong to them."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


@dataclass(frozen=True)
class Evidence:
    """What the verification of an artifact left: its known answers and its figures."""

    cases: tuple[Case, ...]
    figures: Mapping[str, Figures]
    source: str
    executed: str
    samples: int
    device: str = ""


def evidence_of(artifact: Artifact) -> Evidence | None:
    """Returns the evidence that came with an artifact, or None; evidence of another artifact does not count."""
    for place in (artifact.path / EVIDENCE, artifact.path.parent / EVIDENCE / artifact.path.name):
        with suppress(AnyNpuError, OSError, KeyError, TypeError, ValueError):
            evidence = Artifact.open(place)
            step, own = evidence.manifest.step, artifact.manifest.step
            if evidence.manifest.format != "evidence" or step is None:
                continue
            # What was executed is the artifact, or what it was compiled from bit by bit.
            executed = step.inputs.get("candidate", "")
            if executed == artifact.digest or (own is not None and executed in own.inputs.values()):
                return _read(evidence, artifact)
    return None


def _read(evidence: Artifact, artifact: Artifact) -> Evidence | None:
    arrays = read_npz(evidence.file(VECTORS))
    inputs = _split(arrays, "input", artifact.manifest.inputs)
    outputs = _split(arrays, "output", artifact.manifest.outputs)
    data = schema.read_json(evidence.main)
    figures = {
        name: Figures(float(f["sqnr_db"]), float(f["cosine"]))
        for name, f in data.get("outputs", {}).items()
        if math.isfinite(float(f["sqnr_db"]))
    }
    cases = tuple(Case(i, o) for i, o in zip(inputs, outputs, strict=True))[:MOST_CASES]
    source = f"verification {evidence.digest[:12]}"
    if not cases:
        return None
    executed, samples, device = data.get("executed", ""), data.get("samples", len(cases)), data.get("device", "")
    return Evidence(cases, figures, source, str(executed), int(samples), str(device))


def _split(arrays: Mapping[str, Array], kind: str, specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """Returns the tensors of one sample after the other; those of another form raise."""
    rows: list[dict[str, Array]] = []
    for spec in specs:
        array, count = arrays[f"{kind}:{spec.name}"], spec.shape[0] if spec.shape else 1
        for number in range(len(array) // count):
            part = array[number * count : (number + 1) * count]
            spec.check(part)
            if number == len(rows):
                rows.append({})
            rows[number][spec.name] = part
    return rows


@dataclass
class Judge:
    """Tells whether a session still gives its known answers.

    At first it must be as close to the evidence as the evidence is to the float model, and bit by bit where the same
    hardware gave the evidence. What it gives then is what it has to repeat: integers bit by bit, real numbers to 60 dB;
    an output that does not repeat itself at once is held to the recorded tolerance.
    """

    session: Session
    cases: tuple[Case, ...]
    figures: Mapping[str, Figures]
    source: str
    same_hardware: bool = False
    _first: list[dict[str, Array]] = field(default_factory=list)
    _varies: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, session: Session, evidence: Evidence | None, samples: Sequence[Mapping[str, Array]]) -> Judge:
        """Returns the judge of a session, by its evidence or by its own answers to the samples."""

        def fits(specs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> bool:
            same = set(arrays) == {spec.name for spec in specs}
            return same and all(arrays[spec.name].dtype == spec.dtype for spec in specs)

        if evidence is not None and all(
            fits(session.inputs, case.inputs) and fits(session.outputs, case.outputs) for case in evidence.cases
        ):
            same = evidence.device == session.name and on_hardware(session)
            return cls(session, evidence.cases, evidence.figures, evidence.source, same)
        return cls(session, tuple(Case(inputs, {}) for inputs in samples), {}, OWN)

    def settle(self, earlier: Judge | None = None) -> None:
        """Raises AccuracyError for answers that are not those known, and takes them as those to repeat.

        Where `earlier`, the judge of the same artifact on the same device, has such answers, they stay: a device that
        is wrong while it is opened again must not become the measure of itself.
        """
        if earlier is not None and earlier._first:
            self._first, self._varies = earlier._first, earlier._varies
            self.check()
            return
        first = [dict(self.session.run(case.inputs)) for case in self.cases]
        for case, answers in zip(self.cases, first, strict=True):
            again = self.session.run(case.inputs)
            for name, answer in answers.items():
                expected = case.outputs.get(name)
                if expected is not None:
                    self._require(name, answer, expected, self._tolerance(name), "the known answer")
                if not np.array_equal(answer, again[name], equal_nan=answer.dtype.kind == "f"):
                    if expected is not None and np.array_equal(answer, expected):  # it can, so it must
                        self._require(name, again[name], expected, self._repeats(name, expected), "the known answer")
                    self._varies.add(name)
        self._first = first

    def check(self, most: int | None = None) -> None:
        """Raises AccuracyError unless the session gives its answers again."""
        for case, first in list(zip(self.cases, self._first, strict=True))[:most]:
            outputs = self.session.run(case.inputs)
            for name, wanted in first.items():
                self._require(name, outputs[name], wanted, self._repeats(name, wanted), "its own first answer")

    def _tolerance(self, name: str) -> float:
        if self.same_hardware:
            real = any(spec.name == name and spec.dtype.startswith("float") for spec in self.session.outputs)
            return SAME_DB if real else math.inf
        recorded_db = [f.sqnr_db for label, f in self.figures.items() if label == name or label.startswith(f"{name} ")]
        return min(*recorded_db, SAME_DB, SAME_DB) if recorded_db else FLOOR_DB

    def _repeats(self, name: str, wanted: Array) -> float:
        if name in self._varies:
            return self._tolerance(name)
        return SAME_DB if wanted.dtype.kind == "f" else math.inf

    def _require(self, name: str, got: Array, wanted: Array, least_db: float, what: str) -> None:
        if np.array_equal(got, wanted, equal_nan=wanted.dtype.kind == "f"):
            return
        spec = next(spec for spec in self.session.outputs if spec.name == name)
        similarity = similarity_db(spec.to_real(wanted), spec.to_real(got))
        if similarity >= least_db:
            return
        differing = int(np.count_nonzero(got != wanted))
        limit = "bit by bit" if least_db == math.inf else f"to {least_db:.0f} dB"
        raise AccuracyError(
            f"output {name} is {similarity:.1f} dB from {what}, which it must repeat {limit} "
            f"({differing} of {wanted.size} numbers differ)",
            "known answers",
            similarity,
            least_db,
            [name],
            "`anynpu doctor` looks at driver and library",
        )


def similarity_db(wanted: Array, got: Array) -> float:
    """Returns the power of what is wanted over that of the difference, in dB; -inf where one is not a number."""
    a, b = np.asarray(wanted, np.float64), np.asarray(got, np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return -math.inf
    error, power = float(np.square(a - b)[both].sum()), float(np.square(a)[both].sum())
    if error == 0:
        return math.inf
    return 10 * math.log10(power / error) if power else -math.inf

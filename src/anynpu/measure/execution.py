"""What executes an artifact on samples; a slow runtime hands samples on to a fast one that repeats it bit by bit.

TFLite-Micro takes three times as long as LiteRT's reference kernels, whose convolutions give the same integers. Where
LiteRT, or `HalvesSession` of models with means, gives the same outputs for the first samples, in every stored value, it
runs the others too, and a note says how many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError
from anynpu.measure.refusals import refusal
from anynpu.measure.remembered import Memory
from anynpu.measure.samples import SampleSet
from anynpu.runtime.base import Session, choose, real_outputs, sessions_for, stored_inputs
from anynpu.runtime.litert import LiteRtSession
from anynpu.runtime.ort import OrtSession
from anynpu.runtime.tflite_file import operator_names, shared_model
from anynpu.runtime.tflite_halves import HalvesSession, can_halve
from anynpu.tensors import Array, by_name

TAUGHT = 16
"""On how many samples a compiled artifact must repeat the one before it."""
SLOW = "tflm"
OWN_MACS, LEAST_OWN, MOST_OWN = 2_000_000_000, 2, 50
"""How many samples the slow runtime runs in any case: as many as the budget has room for, within limits."""
MEANS = {"MEAN", "AVERAGE_POOL_2D"}
"""Operators whose results may differ by one between LiteRT and TFLite-Micro, on samples that come later too."""
Progress = Callable[[int, int], None]


def opened(kind: Any, artifact: Artifact) -> Any:
    """Returns a session for a proof, where threads that wait soon sleep: to spin on costs half as much again, and saves
    time only where nothing else runs."""
    return kind(artifact, spin=False) if kind is OrtSession else kind(artifact)


def run_all(
    session: Session, samples: SampleSet, reference: Artifact, progress: Callable[[int, int], None] | None = None
) -> dict[str, Array]:
    """Returns every output for every sample, as real numbers in the layouts of the float model."""
    return run_and_keep(session, samples, reference, 0, progress)[0]


def known_answers(session: Session, samples: SampleSet, reference: Artifact) -> dict[str, Array]:
    """Returns stored inputs and outputs as `input:NAME` and `output:NAME`: what a device must repeat."""
    return run_and_keep(session, samples, reference, len(samples))[1]


def run_and_keep(
    session: Session,
    samples: SampleSet,
    reference: Artifact,
    kept: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns what `run_all` does, and of the first samples what `known_answers` does, from one run of each sample."""
    like = by_name((*reference.manifest.inputs, *reference.manifest.outputs))
    real: dict[str, list[Array]] = {spec.name: [] for spec in reference.manifest.outputs}
    known: dict[str, list[Array]] = {}
    for index, sample in enumerate(samples):
        inputs = stored_inputs(session, sample, like)
        outputs = session.run(inputs)
        for name, value in real_outputs(session, outputs, like).items():
            real[name].append(value)
        if index < kept:
            stored = {f"input:{name}": value for name, value in inputs.items()}
            stored |= {f"output:{name}": value for name, value in outputs.items()}
            for name, value in stored.items():
                known.setdefault(name, []).append(value)
        if progress is not None:
            progress(index + 1, len(samples))
    return _joined(real), _joined(known)


def _joined(rows: Mapping[str, list[Array]]) -> dict[str, Array]:
    return {name: np.concatenate(values) for name, values in rows.items()}


@dataclass(frozen=True)
class Execution:
    """What an artifact gave for the samples, and what ran it."""

    kind: Any
    session: Any
    outputs: dict[str, Array]
    """Of every sample, as real numbers."""
    answers: dict[str, Array]
    """What that session itself took and gave for the first samples, as it stores them."""
    notes: list[str]


def execute(
    subject: Artifact,
    device: str | None,
    samples: SampleSet,
    truth: Artifact,
    progress: Progress,
    memory: Memory | None = None,
) -> Execution:
    """Runs the artifact on the named device, or on the first one that takes it; notes say which did not. What `memory`
    holds is not run again."""
    format, memory = subject.manifest.format, Memory(subject) if memory is None else memory
    kinds = [choose(format, device)] if device else [c for c in sessions_for(format) if not c.missing()]
    refused: list[str] = []
    for kind in kinds or [choose(format)]:
        try:
            return _executed(kind, subject, samples, truth, refused, progress, memory)
        except (IntegrityError, DeviceError) as error:
            if wrong := refusal(kind, error):
                raise wrong from error
            if kind is kinds[-1]:
                raise
            refused.append(f"{kind.what} does not run this model: {error.message}")
    raise IntegrityError(f"nothing here executes {format}")


def _executed(
    kind: Any,
    subject: Artifact,
    samples: SampleSet,
    truth: Artifact,
    notes: list[str],
    progress: Progress,
    memory: Memory,
) -> Execution:
    session, total = opened(kind, subject), len(samples)
    own, first = own_share(total, truth) if kind.name == SLOW else total, memory.of(kind.name, session)
    outputs, answers = run_and_keep(first, samples.first(own), truth, own, lambda at, _: progress(at, total))
    if own < total:
        fast = _repeating(subject, samples.first(own), truth, answers, memory)
        if fast is not None:
            notes = [*notes, f"{fast.what} ran {total - own} of them, and gave the same values for the other {own}"]
        rest = samples.after(own)
        more = run_all(session if fast is None else fast, rest, truth, lambda at, _: progress(own + at, total))
        outputs = {name: np.concatenate([values, more[name]]) for name, values in outputs.items()}
    rows = {name: len(values) // own for name, values in answers.items()}  # a state has more than one to a sample
    answers = {name: values[: TAUGHT * rows[name]] for name, values in answers.items()}
    return Execution(kind, session, outputs, answers, notes)


def _repeating(
    subject: Artifact, samples: SampleSet, truth: Artifact, answers: Mapping[str, Array], memory: Memory
) -> Any:
    """Returns a faster session that gives exactly these answers, or None where there is none."""
    if HalvesSession.missing() or not can_halve(subject):
        return None
    names = {*operator_names(shared_model(subject.main.read_bytes(), str(subject.main)))}
    able: list[Callable[[], Any]] = [lambda: HalvesSession(subject)]  # not a plug-in: nobody asks for it by name
    if not names & MEANS:
        able.insert(0, lambda: memory.of(LiteRtSession.name, LiteRtSession(subject)))
    try:
        sessions = (session for opening in able if _repeats(session := opening(), samples, truth, answers))
        return next(sessions, None)
    except (IntegrityError, DeviceError):  # `second_opinions` says what LiteRT has against the model
        return None


def _repeats(session: Any, samples: SampleSet, truth: Artifact, answers: Mapping[str, Array]) -> bool:
    """Tells whether a session gives exactly these answers, up to the first sample for which it does not."""
    for at in range(len(samples)):
        for name, theirs in known_answers(session, samples.after(at).first(1), truth).items():
            rows = len(answers[name]) // len(samples)
            if not np.array_equal(theirs, answers[name][at * rows : (at + 1) * rows]):
                return False
    return True


def taught_samples(samples: SampleSet, truth: Artifact) -> SampleSet:
    """Returns the samples on which a compiled artifact must repeat the one before it, as its reference runs it."""
    return samples.first(min(TAUGHT, own_share(len(samples), truth)))


def own_share(available: int, truth: Artifact) -> int:
    """Returns how many samples a slow runtime runs before another one may stand in for it."""
    estimates = truth.manifest.estimates
    affordable = OWN_MACS // max((estimates.macs if estimates else None) or 1, 1)
    return min(available, max(LEAST_OWN, min(MOST_OWN, affordable)))

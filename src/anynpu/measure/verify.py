"""Nothing counts until it has run: an artifact executed on held-out samples and compared with the float model."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.artifact import Artifact, Estimates
from anynpu.errors import AccuracyError, DeviceError, ModelRefused
from anynpu.measure.adequacy import expected_loss, outside
from anynpu.measure.execution import execute, known_answers, opened, run_all
from anynpu.measure.expected import Expected, expected_of
from anynpu.measure.fidelity import compare_arrays, compare_outputs
from anynpu.measure.kernels import kernel_notes
from anynpu.measure.metrics import at_chance, score
from anynpu.measure.pace import slower_than_float
from anynpu.measure.reference import PROBABILITIES, judge_reference
from anynpu.measure.refusals import second_opinions
from anynpu.measure.remembered import Memory
from anynpu.measure.samples import SampleSet, read_samples
from anynpu.measure.variation import BURIED_DB, ENOUGH_SAMPLES, FLOOR_DB
from anynpu.records.build import FLOAT_MODEL, Verification
from anynpu.records.calibration import FILE as CALIBRATION
from anynpu.records.calibration import Calibration
from anynpu.records.shared import Fidelity, with_signal
from anynpu.runtime.abilities import MeasuresArena, NamesHost
from anynpu.runtime.base import Session, choose, run_real, sessions_for
from anynpu.runtime.tflite_filled import FilledSession
from anynpu.runtime.versions import versions_of
from anynpu.schema import from_dict, read_json, to_dict
from anynpu.tensors import Array, TensorSpec, by_name
from anynpu.tool import report_progress

MACS_BUDGET = 6_000_000_000
HERE = "onnx-ort"
"""The format that the CPU of this host runs for its own sake, not as a stand-in for a chip."""
MIN_SAMPLES = 50
BETTER_SAMPLES = "more or better calibration data may help"
HINT = f"`anynpu build --repair` tries what may help, cheapest first; {BETTER_SAMPLES}"
ANSWERS = 5
REFERENCES = {"tflite-float": "litert"}
"""What executes a float model where that is not the first runtime of its format: TFLite-Micro lacks operators."""


@dataclass(frozen=True)
class Gate:
    """What an executed artifact must reach; `min_sqnr_db` of 0 or less lets lost parts of an output pass too."""

    min_sqnr_db: float = 10.0
    max_drop_points: float = 5.0


def sample_count(available: int, estimates: Estimates | None) -> int:
    """Returns how many samples to run: all that fit the budget of MACs, and never fewer than fifty where there are.

    The count follows from the model alone, so that every machine verifies on the same samples.
    """
    affordable = MACS_BUDGET // max((estimates.macs if estimates else None) or 1, 1)
    return min(available, max(MIN_SAMPLES, affordable))


def _taught(
    session: Session, own: dict[str, Array], samples: SampleSet, truth: Artifact, oracle: str
) -> tuple[dict[str, Array], list[str]]:
    """Returns known answers, and notes on them: the oracle's where its reference runtime is here, the
    session's own elsewhere."""
    if not oracle:
        return own, []
    source = Artifact.open(Path(oracle))
    kind = sessions_for(source.manifest.format)[0]
    if reason := kind.missing():
        return own, [f"not compared bit by bit: {reason}"]
    notes = []
    try:
        teacher: Any = kind(source)
        known = known_answers(teacher, samples, truth)
    except (ModelRefused, DeviceError) as refusal:
        if FilledSession.missing():
            raise
        notes = [f"{kind.what} does not run this model: {refusal.message}"]
        teacher = FilledSession(source)
        known = known_answers(teacher, samples, truth)
    _require_same(known, session, teacher.what)
    return known, [f"bit-exact with {teacher.what} on {len(samples)} samples", *notes]


def _first_answers(known: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the known answers of the first few samples; a state has more than one row to a sample."""
    samples = min(len(values) for name, values in known.items() if name.startswith("input:"))
    return {name: values[: ANSWERS * (len(values) // samples)] for name, values in known.items()}


def _require_same(known: Mapping[str, Array], session: Session, teacher: str) -> None:
    """Raises AccuracyError unless the session gives exactly the known answers."""
    samples = SampleSet({s.name: known[f"input:{s.name}"] for s in session.inputs})
    for index, sample in enumerate(samples):
        for name, got in session.run(sample).items():
            rows = len(known[f"output:{name}"]) // len(samples)  # a state has more than one to a sample
            wanted = known[f"output:{name}"][index * rows : (index + 1) * rows]
            if not np.array_equal(got, wanted):
                first = int(np.flatnonzero(got.ravel() != wanted.ravel())[0])
                raise AccuracyError(
                    f"sample {index}: {name}[{first}] is {got.ravel()[first]}, {teacher} gives {wanted.ravel()[first]}",
                    "differing values",
                    float(np.count_nonzero(got != wanted)),
                    0.0,
                    [name],
                )


def class_axes(reference: Artifact) -> dict[str, int]:
    """Returns the axis of each output's argmax: the channels where the layout names them, the last one otherwise."""
    return {s.name: s.layout.index("C") if "C" in s.layout else len(s.shape) - 1 for s in reference.manifest.outputs}


def probabilities(reference: Artifact) -> list[str]:
    """Returns the outputs that a sigmoid or a softmax gives."""
    computed_by = reference.manifest.details.get("output_operators", {})
    return [name for name, kind in computed_by.items() if kind in PROBABILITIES]


def compared(expected: Mapping[str, Array], got: Mapping[str, Array], truth: Artifact) -> dict[str, Fidelity]:
    """Returns how each output follows the float model; boxes and scores that a detector gives in one are apart.

    Boxes are hundreds of pixels and scores at most 1: in one figure, scores that are all lost would not show.
    """
    sides = {spec.name: _box_axis(spec, truth) for spec in truth.manifest.outputs}
    fidelities = compare_outputs(
        {n: a for n, a in expected.items() if not sides[n]},
        {n: a for n, a in got.items() if not sides[n]},
        class_axes(truth),
        probabilities(truth),
    )
    for name, axis in sides.items():
        for part, rows in (("boxes", slice(0, 4)), ("scores", slice(4, None))) if axis else ():
            cut = (slice(None),) * axis + (rows,)
            fidelities[f"{name} {part}"] = compare_arrays(name, expected[name][cut], got[name][cut], axis)
    return fidelities


def _box_axis(spec: TensorSpec, truth: Artifact) -> int:
    """Returns the axis along which a detector's output has four rows of boxes and then scores, or 0 for any other."""
    if "yolo" not in truth.manifest.task or len(spec.shape) != 3:
        return 0
    rows = min(spec.shape[1:])
    return spec.shape.index(rows, 1) if rows > 4 else 0


def verify(
    candidate: str,
    reference: str,
    data: str,
    answers: str,
    oracle: str = "",
    device: str | None = None,
    metric: str = "",
    random: bool = False,
    taught: str = "",
    shared: str = "",
) -> Verification:
    """Executes two artifacts on the same samples and returns the comparison (runs in a child process).

    Stored inputs and outputs of the first samples are written to the file `answers`. They are those of `oracle`, the
    artifact that the candidate must repeat bit by bit, where there is one. `taught` takes what `repeat.teach` would ask
    the reference runtime again, where that ran the candidate. `shared` is a folder with what the float model and other
    runtimes gave for these samples, a file each, which are written where they are not there yet.
    """
    subject, truth = Artifact.open(Path(candidate)), Artifact.open(Path(reference))
    everything = read_samples(Path(data))
    samples = everything.first(sample_count(len(everything), truth.manifest.estimates))
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    float_kind = choose(truth.manifest.format, REFERENCES.get(truth.manifest.format))
    float_session = functools.cache(lambda: opened(float_kind, truth))
    judged = expected_of(shared, lambda: _judged(float_session(), samples, truth, like))
    expected, about, memory = judged.outputs, judged.about, Memory(subject, shared)
    execution = execute(subject, device, samples, truth, report_progress, memory)
    kind, session, got = execution.kind, execution.session, execution.outputs
    others = second_opinions(kind, subject, samples, truth, memory)
    memory.write()
    if taught and kind is sessions_for(subject.manifest.format)[0]:
        np.savez(taught, **execution.answers)  # type: ignore[arg-type]  # names are not keywords
    known, notes = _taught(session, execution.answers, samples.first(MIN_SAMPLES), truth, oracle)
    np.savez(answers, **_first_answers(known))  # type: ignore[arg-type]  # names are not keywords
    fidelities = compared(expected, got, truth)
    result = Verification(
        executed=session.what,
        device=kind.name,
        host=session.host if isinstance(session, NamesHost) else "",
        stands_for="",
        held_out=False,
        samples=len(samples),
        outputs=fidelities,
        arena_bytes=session.arena_bytes() if isinstance(session, MeasuresArena) else None,
        versions=versions_of(session),
        notes=(*execution.notes, *others, *notes, *kernel_notes(session, known)),
        unfit=tuple(about.unfit),
        expected_sqnr_db=_expected_of_new_samples(expected, got, fidelities),
    )
    warnings = [*about.warnings, *cautions(fidelities, random)]
    if subject.manifest.format == HERE and "quantisation" in subject.manifest.details:
        first, floating = next(iter(samples)), float_session()
        warnings += slower_than_float(lambda: run_real(floating, first, like), lambda: run_real(session, first, like))
    if metric and samples.labels is not None:
        reached, here = (score(metric, dict(samples.inputs), each, samples.labels) for each in (expected, got))
        result = replace(result, metric=metric, score_float=reached, score=here)
        warnings += at_chance(metric, reached, expected, samples.labels)
    result = _held_against_ranges(replace(result, warnings=tuple(warnings)), subject, truth, samples)
    return _reworded(result, subject, truth, session)


def _expected_of_new_samples(
    expected: Mapping[str, Array], got: Mapping[str, Array], fidelities: Mapping[str, Fidelity]
) -> tuple[float, float] | None:
    """Returns the lowest of the intervals in which the SQNR of new samples is expected."""
    left_out = fidelities.keys() - with_signal(fidelities).keys()
    losses = (expected_loss(expected[name], got[name]) for name in expected if name not in left_out)
    return min(filter(None, losses), key=sum, default=None)


def _judged(session: Session, samples: SampleSet, truth: Artifact, like: Mapping[str, TensorSpec]) -> Expected:
    """Returns the outputs of the float model, and what they say of it."""
    outputs = run_all(session, samples, truth)
    return Expected(outputs, judge_reference(truth, samples, outputs, functools.partial(run_real, session, like=like)))


def _held_against_ranges(result: Verification, subject: Artifact, truth: Artifact, samples: SampleSet) -> Verification:
    """Returns the result with the samples that leave the ranges that the subject was calibrated to."""
    if truth.manifest.format != "onnx" or all(entry.path != CALIBRATION for entry in subject.manifest.files):
        return result
    calibration: Calibration = from_dict(Calibration, read_json(subject.file(CALIBRATION)), CALIBRATION)
    held, far = outside(truth, samples, calibration.limits)
    return replace(result, held_against_ranges=held, outside=tuple(far))


def _reworded(result: Verification, subject: Artifact, truth: Artifact, session: Any) -> Verification:
    """Returns the result with sentences that name what it was compared with, where that is not a float model."""
    source = truth.manifest.details.get("given", "")
    if truth.manifest.format != "tflite-given":
        return result
    what = f"model ({source})" if ":" in source else source.partition(" ")[2]
    name = f"the given {what} in LiteRT"
    named = from_dict(Verification, _with_text(to_dict(result), FLOAT_MODEL, name), "verification")
    same = session.name == "litert" and subject.main.read_bytes() == truth.main.read_bytes()
    note = ("compared with itself in the same runtime: this proves that it runs, nothing more",) if same else ()
    return replace(named, reference=name, notes=(*note, *named.notes))


def _with_text(value: Any, old: str, new: str) -> Any:
    """Returns JSON data with one text for another in every sentence."""
    if isinstance(value, dict):
        return {key: _with_text(each, old, new) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text(each, old, new) for each in value]
    return value.replace(old, new) if isinstance(value, str) else value


def cautions(outputs: Mapping[str, Fidelity], random: bool = False) -> list[str]:
    """Returns notes on outputs that pass: parts of very different range, large errors, too few samples.

    Random numbers move a network so little that errors about as large as that say nothing about it.
    """
    few = min(f.count for f in outputs.values())
    counted = with_signal(outputs)
    worst = min(f.sqnr_db for f in counted.values())
    left_out = [name for name, f in outputs.items() if name not in counted and f.sqnr_db < worst]
    warnings = [
        f"output '{name}' stays at 0 or 1 in the float model and here, and does not count: "
        "give samples in which it finds something"
        for name in left_out
    ]
    warnings += [text for f in outputs.values() for text in (f.uneven, f.strays) if text]
    warnings += [
        f"output '{name}': the error is larger than what varies from sample to sample ({f.sqnr_centred_db:.1f} dB)"
        for name, f in outputs.items()
        if few >= ENOUGH_SAMPLES and f.sqnr_centred_db is not None and f.sqnr_centred_db < (BURIED_DB if random else 0)
    ]
    if few < ENOUGH_SAMPLES:
        count = f"{few} samples are" if few > 1 else "1 sample is"
        warnings.append(f"{count} too few to judge how outputs vary from sample to sample: only the plain SQNR counts")
    return warnings


@dataclass(frozen=True)
class Shortfall:
    """The first thing in which outputs fall short of a floor."""

    message: str
    metric: str
    got: float
    wanted: float
    hint: str


def shortfall(outputs: Mapping[str, Fidelity], floor_db: float, reference: str = FLOAT_MODEL) -> Shortfall | None:
    """Returns in what the outputs fall short of the reference's, or None.

    The SQNR of each must reach the floor. Where there are samples enough, the build must be able to follow what varies
    over them, in each output as a whole and in every part of it that means something. Probabilities that both hold at 0
    or 1 throughout count only where there is nothing else.
    """
    outputs = with_signal(outputs)
    name, worst = min(outputs.items(), key=lambda item: item[1].sqnr_db)
    if worst.sqnr_db < floor_db:
        text = f"the result is {worst.sqnr_db:.1f} dB SQNR from {reference}; {floor_db:g} dB is asked for"
        return Shortfall(text, "sqnr_db", worst.sqnr_db, floor_db, HINT)
    if floor_db <= 0:
        return None
    wanted = min(floor_db, FLOOR_DB)
    for name, f in outputs.items():
        if f.unresolved and f.sqnr_centred_db is not None and f.sqnr_centred_db < wanted:
            text = (
                f"output '{name}' does not follow {reference} from sample to sample ({f.sqnr_centred_db:.1f} dB of "
                f"what varies over {f.count} samples, {wanted:g} dB is asked for): {f.unresolved}"
            )
            scale = "let the model give the change and add the constant afterwards, or try -O activations=int16"
            return Shortfall(text, "sqnr_centred_db", f.sqnr_centred_db, wanted, scale)
    for name, f in outputs.items():
        if f.lost:
            apart = "make parts of different range outputs of their own (a detector: --task), or -O activations=int16"
            return Shortfall(f.lost[0], f"lost parts of {name}", float(len(f.lost)), 0.0, apart)
    return None


def require_reference(verification: Verification) -> None:
    """Raises AccuracyError where the float model itself is no use as a reference."""
    if verification.unfit:
        raise AccuracyError(
            f"{verification.reference} itself is no use as a reference: {verification.unfit[0]}",
            "degenerate-output",
            0.0,
            1.0,
            verification.unfit,
            "check the export, the checkpoint and how the samples are prepared",
        )


def judge(verification: Verification, gate: Gate) -> None:
    """Raises AccuracyError unless the verification passes the gate."""
    require_reference(verification)
    worst = sorted(verification.outputs.items(), key=lambda item: item[1].sqnr_db)
    names = [f"{name}: {f.sqnr_db:.1f} dB" for name, f in worst[:3]]
    if short := shortfall(verification.outputs, gate.min_sqnr_db, verification.reference):
        lost = [sentence for f in verification.outputs.values() for sentence in f.lost]
        sentences = lost if short.message in lost else names
        raise AccuracyError(short.message, short.metric, short.got, short.wanted, sentences, short.hint)
    if verification.score is not None and verification.score_float is not None:
        drop = 100 * (verification.score_float - verification.score)
        if drop > gate.max_drop_points:
            raise AccuracyError(
                f"{verification.metric} falls by {drop:.1f} points against {verification.reference}; "
                f"{gate.max_drop_points:g} are allowed",
                verification.metric,
                verification.score,
                verification.score_float - gate.max_drop_points / 100,
                names,
                HINT,
            )

"""Executes a build, the float model and the float model cut at every tensor, and says what they show together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError
from anynpu.measure.execution import execute, run_all
from anynpu.measure.fidelity import compare_outputs
from anynpu.measure.layers import Match
from anynpu.measure.samples import SampleSet, read_samples
from anynpu.measure.verify import REFERENCES, compared
from anynpu.pipeline.diagnosis.causes import Case, before_activations, causes_of
from anynpu.pipeline.diagnosis.cut import cut_model
from anynpu.pipeline.diagnosis.figures import Figures, empty_figures
from anynpu.pipeline.layers import counting, onnx_view, readable, tflite_view
from anynpu.quantize.followers import Follower
from anynpu.records.diagnosis import BAD_DB, Cause, Diagnosis, TensorLoss
from anynpu.runtime.base import choose, stored_inputs
from anynpu.tensors import Array, by_name

if TYPE_CHECKING:
    from anynpu.graph.outline import Outline
    from anynpu.pipeline.layers import View

MAX_SAMPLES = 8
MACS_BUDGET = 12_000_000_000
"""What the samples of the inner tensors may cost together; two are taken whatever they cost."""
MOST_OUTPUTS = 32
OUTPUT_BUDGET = 64_000_000_000
"""What the samples whose outputs alone are compared may cost together."""
_ONNX = ("onnx", "onnx-ort")
_SATURATED_DB = 6.0
"""Kernels that lose as much against the file's own arithmetic are to blame."""
_FEW = 2
"""Samples that the file's own arithmetic, which is slow, runs on."""
_STANDING = 1e-4
_ALIKE, _APART = 0.99, 0.9
"""Vectors with a mean cosine above the first are all alike, below the second they differ."""


def diagnose(candidate: str, reference: str, floating: str, data: str, calibration_samples: int = 0) -> Diagnosis:
    """Returns the diagnosis of an artifact (runs in a child process)."""
    from anynpu.tool import report_progress

    subject, truth = Artifact.open(Path(candidate)), Artifact.open(Path(reference))
    twin = Artifact.open(Path(floating)) if floating else None
    samples = read_samples(Path(data))
    estimates = truth.manifest.estimates
    affordable = OUTPUT_BUDGET // max((estimates.macs if estimates else None) or 1, 1)
    samples = samples.first(min(len(samples), MOST_OUTPUTS, max(MAX_SAMPLES, affordable)))
    expected = run_all(choose(truth.manifest.format, REFERENCES.get(truth.manifest.format))(truth), samples, truth)
    execution = execute(subject, None, samples, truth, report_progress)
    session, got = execution.session, execution.outputs
    outputs = compared(expected, got, truth)
    worst = min(outputs, key=lambda name: outputs[name].sqnr_db)
    notes = execution.notes
    causes = [*_of_outputs(*(_by_sample(each, len(samples)) for each in (expected, got)))]
    case, taken = _inner_case(subject, truth, twin, samples, calibration_samples, notes, report_progress)
    sick = outputs[worst].sqnr_db < BAD_DB or bool(outputs[worst].lost)
    inner = causes_of(case)
    causes += inner if sick else [cause for cause in inner if cause.cause == "dead rectifier"]
    causes += _of_kernels(session, samples, expected, got, outputs[worst].sqnr_db)
    before = before_activations(case)
    computed = [name for node in case.nodes for name in node.outputs if name in case.figures]
    in_order = [*(name for name in case.figures if name not in {*computed}), *computed]  # of execution, inputs first
    tensors = tuple(
        _loss(case.figures[n], taken, before.get(n, ())) for n in in_order if case.figures[n].followed is None
    )
    first = next((loss.tensor for loss in tensors if loss.sqnr_db < BAD_DB), "") if sick else ""
    if sick and not causes and tensors:
        most = sorted(tensors, key=lambda loss: loss.made_db)[:3]
        named = ", ".join(f"{loss.tensor} ({loss.made_db:.1f} dB)" for loss in most)
        notes.append(f"no single cause: the errors of many tensors add up; the largest are made at {named}")
    return Diagnosis(
        worst_output=worst,
        sqnr_db=round(outputs[worst].sqnr_db, 3),
        samples=taken,
        healthy=not sick and not causes,
        first_bad=first,
        causes=tuple(causes),
        tensors=tensors,
        notes=tuple(notes),
    )


def _inner_case(
    subject: Artifact,
    truth: Artifact,
    twin: Artifact | None,
    samples: SampleSet,
    calibration_samples: int,
    notes: list[str],
    progress: Any,
) -> tuple[Case, int]:
    """Returns the figures of every inner tensor, and over how many samples they are."""
    shown = readable(subject)
    assert shown is not None  # `drawable` chose it
    from_onnx = shown.manifest.format in _ONNX
    view = onnx_view(shown, truth) if from_onnx else tflite_view(shown, twin)
    floating = truth if from_onnx else twin
    outputs = tuple(spec.name for spec in truth.manifest.outputs)
    if floating is None or not view.matches:
        notes.extend(view.notes)
        return Case((), {}, frozenset(), outputs), 0
    graph, followers, zero_weights = _float_graph(floating)
    matches = tuple({match.reference: match for match in reversed(view.matches)}.values())
    macs = sum(node.macs or 0 for node in graph.nodes)
    chosen = samples.first(max(2, min(MAX_SAMPLES, MACS_BUDGET // max(macs, 1))))
    kinds = {name: node.kind for node in graph.nodes for name in node.outputs}
    named = {match.name: kinds.get(match.reference, "input") for match in matches}
    figures = empty_figures(matches, view.outline.tensors, named, followers)
    try:
        _collect(view, floating, truth, matches, figures, chosen, progress)
    except AnyNpuError as error:
        notes.append(f"no error per tensor: {error.message}")
        return Case((), {}, frozenset(), outputs), 0
    constants = frozenset(name for name, tensor in graph.tensors.items() if tensor.constant)
    counted = {name: each for name, each in figures.items() if each.count}
    count = calibration_samples or None
    return Case(graph.nodes, counted, constants, outputs, count, zero_weights), len(chosen)


def _float_graph(floating: Artifact) -> tuple[Outline, Mapping[str, Follower], frozenset[str]]:
    """Returns the operators of a float model, the functions behind its tensors, and its weights of zeros."""
    from anynpu.quantize.functions import followers

    if floating.manifest.format == "onnx":
        import onnx
        from onnx import numpy_helper

        from anynpu.graph.outline import outline
        from anynpu.quantize.onnx_net import net_of
        from anynpu.quantize.qdq import prepare

        model = onnx.load(floating.main)
        stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        return outline(model), followers(net_of(prepare(model).graph)), _zeros(stored)
    from anynpu.lowering.net import net_of as net_of_tflite
    from anynpu.lowering.read import from_bytes
    from anynpu.targets.flatbuffer import operators
    from anynpu.targets.tflite_outline import outline as tflite_outline

    try:
        behind = followers(net_of_tflite(from_bytes(floating.main.read_bytes())))
    except AnyNpuError:
        behind = {}  # a file of another converter, with operators that the reader does not know
    constants = {t.name: t.data for op in operators(floating.main) for t in op.tensors if t.data is not None}
    return tflite_outline(floating.main), behind, _zeros(constants)


def _zeros(constants: Mapping[str, Array]) -> frozenset[str]:
    return frozenset(name for name, values in constants.items() if values.ndim > 1 and not values.any())


def _collect(
    view: View,
    floating: Artifact,
    truth: Artifact,
    matches: Sequence[Match],
    figures: Mapping[str, Figures],
    samples: SampleSet,
    progress: Any,
) -> None:
    subject: Any = view.subject()
    reference: Any = view.reference()
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    fed = [match.reference for match in matches if figures[match.reference].followed is None]
    cut = cut_model(floating, fed)
    counts = counting(view, floating, samples, truth)
    for index, sample in enumerate(samples):
        inputs = stored_inputs(reference, sample, like)
        wanted = dict(reference.tensors(inputs, [match.reference for match in matches])) | inputs
        stored = subject.tensors(stored_inputs(subject, sample, like), [match.subject for match in matches])
        ours: dict[str, Array] = {}
        for match in matches:
            value, reached = stored.get(match.subject), wanted.get(match.reference)
            if value is not None and reached is not None and value.shape == reached.shape:
                lifted = value if match.factors is None else value / match.factors
                ours[match.reference] = np.asarray(lifted, reached.dtype)
        computed = counts(cut({**wanted, **ours}), sample)
        counted = counts(wanted, sample)
        for name, value in counts(ours, sample).items():
            if counted[name].dtype.kind == "f" and counted[name].size:
                between = computed.get(name) if figures[name].followed is None else None
                figures[name].add(counted[name], value, between if name not in inputs else None)
        progress(index + 1, len(samples))


def _loss(figures: Figures, samples: int, before: tuple[str, ...]) -> TensorLoss:
    return TensorLoss(
        tensor=figures.name,
        operator=figures.operator,
        sqnr_db=round(figures.sqnr_db, 2),
        made_db=round(figures.made_db, 2),
        inherited_db=round(figures.inherited_db, 2),
        low=float(f"{figures.low:.6g}"),
        high=float(f"{figures.high:.6g}"),
        step=None if figures.step is None else float(f"{figures.step:.6g}"),
        stored=figures.stored.dtype,
        elements=figures.count // max(samples, 1),
        before=before,
    )


def _of_outputs(expected: Mapping[str, Array], got: Mapping[str, Array]) -> list[Cause]:
    """Returns what the outputs alone show: a float model that stands still, vectors that are all alike."""
    causes = []
    for name, values in expected.items():
        if values.dtype.kind != "f" or len(values) < 4:
            continue
        size, moved = float(np.abs(values).max()), float(np.ptp(values, axis=0).max())
        if moved <= _STANDING * size or size == 0.0:
            causes.append(
                Cause(
                    cause="degenerate model",
                    tensor=name,
                    evidence=f"the float model's output moves by {moved:.3g} over {len(values)} samples of {size:.3g}",
                    repair="check the export, the checkpoint and how the samples are prepared",
                )
            )
            continue
        float_alike, alike = _mean_cosine(values), _mean_cosine(got[name])
        if values.ndim == 2 and values.shape[1] >= 16 and alike > _ALIKE and float_alike < _APART:
            causes.append(
                Cause(
                    cause="collapsed embeddings",
                    tensor=name,
                    evidence=f"the mean cosine of two samples is {alike:.3f}, in the float model {float_alike:.3f}",
                    repair="look at the first bad tensor below; -O activations=int16 keeps the vectors apart",
                )
            )
    return causes


def _by_sample(outputs: Mapping[str, Array], count: int) -> dict[str, Array]:
    """Returns outputs with one row for each sample, of whatever they have for it."""
    return {
        name: values if len(values) == count else values.reshape(count, -1, *values.shape[1:])
        for name, values in outputs.items()
    }


def _mean_cosine(values: Array) -> float:
    """Returns the mean cosine of the vectors of two different samples."""
    rows = np.asarray(values.reshape(len(values), -1), np.float64)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    total = unit.sum(axis=0)
    return float((total @ total - len(unit)) / (len(unit) * (len(unit) - 1)))


def _of_kernels(
    session: Any, samples: SampleSet, expected: Mapping[str, Array], got: Mapping[str, Array], sqnr_db: float
) -> list[Cause]:
    """Returns the kernels of this host as a cause, where the file's own arithmetic is far nearer to the float model."""
    from anynpu.runtime.ort import OrtSession, run_named

    if not isinstance(session, OrtSession) or sqnr_db > BAD_DB + _SATURATED_DB:
        return []
    plain, few = session.other_kernels()["plain"], samples.first(_FEW)
    names = [spec.name for spec in session.outputs]
    rows = [run_named(plain, names, sample) for sample in few]
    real = {s.name: np.concatenate([s.to_real(row[s.name]) for row in rows]) for s in session.outputs}
    # The same samples of both: one sample may be worse than all others, whatever runs it. An output may have several
    # rows for each sample, as the state of a recurrent net has.
    wanted, here = ({name: each[name][: len(real[name])] for name in real} for each in (expected, got))
    exact, native = compare_outputs(wanted, real), compare_outputs(wanted, here)
    worst = min(native, key=lambda name: native[name].sqnr_db)
    exact_db, native_db = min(f.sqnr_db for f in exact.values()), native[worst].sqnr_db
    if exact_db < native_db + _SATURATED_DB:
        return []
    return [
        Cause(
            cause="saturating host kernels",
            tensor=worst,
            evidence=f"{native_db:.1f} dB as this host runs it, {exact_db:.1f} dB in the file's own arithmetic",
            repair="session.x64quantprecision=1, weights of 7 bits, or a CPU with VNNI",
        )
    ]

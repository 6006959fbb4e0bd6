"""The float TFLite model of a chain against the ONNX model it was converted from: the same numbers on the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError, PassFailed, ToolFailed
from anynpu.measure import verify
from anynpu.measure.execution import opened
from anynpu.measure.refusals import refusal
from anynpu.measure.samples import SampleSet, read_samples
from anynpu.records.build import Verification
from anynpu.runtime.base import Session, choose, run_real
from anynpu.targets.tflite import OWN_RANGES
from anynpu.tensors import Array, by_name

# What the proof may cost: a small part of a conversion, which takes twenty seconds of a core.
MAX_SAMPLES, MIN_SAMPLES, MAX_MACS = 64, 4, 1_000_000_000
SLACK = 10.0
"""How many times the tolerance of a rewrite two runtimes may differ by; sound conversions stay below a tenth of it."""
OF_INTEGERS = 0.02
"""The share of class numbers that near ties may turn over."""


def verify_converted(floating: str, reference: str, data: str, **arguments: Any) -> Verification:
    """Proves the float TFLite model and then verifies the candidate (runs in a child process)."""
    require_converted(Artifact.open(Path(floating)), Artifact.open(Path(reference)), read_samples(Path(data)))
    return verify.verify(reference=reference, data=data, **arguments)


def require_converted(floating: Artifact, truth: Artifact, samples: SampleSet) -> None:
    """Raises ToolFailed where the float TFLite model computes other outputs than the ONNX model on the samples."""
    from anynpu.graph.agreement import disagreement, spread
    from anynpu.runtime.litert import LiteRtInner

    macs = truth.manifest.estimates.macs if truth.manifest.estimates else None
    count = min(len(samples), MAX_SAMPLES, max(MIN_SAMPLES, MAX_MACS // max(macs or 1, 1)))
    rows = list(samples)
    feeds = [rows[at] for at in spread(len(rows), count)]
    like = by_name((*truth.manifest.inputs, *truth.manifest.outputs))
    kernels: Any = LiteRtInner  # the plain ones: the reference kernels take five times as long
    reference, candidate = opened(choose(truth.manifest.format), truth), kernels(floating)
    kinds = {spec.name: np.dtype(spec.dtype).kind for spec in truth.manifest.outputs}
    floats = [name for name, kind in kinds.items() if kind == "f"]
    numbers = [name for name in kinds if name not in floats]

    def outputs(session: Session, feed: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
        answers = run_real(session, feed, like)
        return [np.asarray(answers[name], np.float64) for name in names]

    apart = _between_pairs(truth) if (floating.path / OWN_RANGES).is_file() else None

    def by_onnx(feed: Mapping[str, Array]) -> list[Array]:
        return outputs(reference, feed, floats) if apart is None else apart(feed, floats)

    def by_tflite(feed: Mapping[str, Array]) -> list[Array]:
        return outputs(candidate, feed, floats)

    try:
        where = str(disagreement(floats, by_onnx, by_tflite, feeds, SLACK) or "") if floats else ""
        if numbers and not where:
            pairs = [(outputs(reference, feed, numbers), outputs(candidate, feed, numbers)) for feed in feeds]
            where = _other_numbers(numbers, pairs)
    except (IntegrityError, DeviceError) as error:
        raise refusal(kernels, error) or error from error
    if where:
        if fault := _guilty_pass(floating, truth, feeds):
            raise PassFailed(
                f"the pass {fault[0]} of anynpu's own writer changes {fault[1]}",
                fault[0],
                f"leave it out: -O skip_passes={fault[0]}",
            )
        raise ToolFailed(
            f"the float TFLite model that anynpu's own writer made differs from the ONNX model: {where}",
            hint="whatever is quantised from it is as wrong: write the model with other operators, or report it",
        )


def _guilty_pass(floating: Artifact, truth: Artifact, feeds: Sequence[Mapping[str, Array]]) -> tuple[str, str] | None:
    """Returns the pass of the own writer that makes the float TFLite model differ, and in what; None where it is a
    rule of an operator."""
    import onnx

    from anynpu.lowering.guilty import guilty_pass

    source, converted = truth.manifest, floating.manifest
    layouts = {spec.name: spec.layout for spec in (*source.inputs, *source.outputs)}
    turned = [spec.name for spec in (*converted.inputs, *converted.outputs) if spec.layout != layouts[spec.name]]
    exact = [{s.name: np.asarray(feed[s.name], s.dtype).reshape(s.shape) for s in source.inputs} for feed in feeds]
    skipped = str(converted.step.options.get("skip_passes", "")).split(",") if converted.step is not None else []
    return guilty_pass(onnx.load(truth.main), exact, turned, skipped, SLACK)


def _between_pairs(truth: Artifact) -> Callable[[Mapping[str, Array], Sequence[str]], list[Array]]:
    """Returns a function that gives outputs of the float model between the pairs of a model that came quantised."""
    import onnx

    from anynpu.graph.quantised import taken_apart
    from anynpu.graph.run import Session as OnnxSession

    model, _ = taken_apart(onnx.load(truth.main))
    session, specs = OnnxSession(model), truth.manifest.inputs
    places = {value.name: at for at, value in enumerate(model.graph.output)}

    def outputs(feed: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
        answers = session.run({s.name: np.asarray(feed[s.name], s.dtype).reshape(s.shape) for s in specs})
        return [np.asarray(answers[places[name]], np.float64) for name in names]

    return outputs


def _other_numbers(names: Sequence[str], pairs: Sequence[tuple[list[Array], list[Array]]]) -> str:
    """Returns the first output of integers of which more elements differ than near ties can turn over."""
    for place, name in enumerate(names):
        differing = sum(int(np.count_nonzero(wanted[place] != got[place])) for wanted, got in pairs)
        total = sum(wanted[place].size for wanted, _ in pairs)
        if differing > max(1, OF_INTEGERS * total):
            return f"output '{name}' in {differing} of {total} numbers on {len(pairs)} samples"
    return ""

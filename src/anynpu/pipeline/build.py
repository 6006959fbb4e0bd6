"""One model for several chips: what each came to, with one failure never stopping the others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from anynpu import plugins, schema
from anynpu.artifact import Artifact
from anynpu.errors import AccuracyError, AnyNpuError, Defect, Finding, PassFailed, ToolMissing, Unsupported
from anynpu.measure import sources
from anynpu.measure.adequacy import MIN_DISTINCT, judge_calibration
from anynpu.measure.reference import findings_at_import
from anynpu.measure.threshold import sentences
from anynpu.measure.verify import BETTER_SAMPLES, judge
from anynpu.nursery import warm_children
from anynpu.pipeline.evidence import diagnose, layers, read_verification, repeat, stream_layers, verify
from anynpu.pipeline.layers import empty, graph, untrained_twin
from anynpu.pipeline.naming import name_classes
from anynpu.pipeline.observer import Observer, Timed
from anynpu.pipeline.planner import Link, plan_all, source_format
from anynpu.pipeline.repair import Attempt, Experience, Proved, bounds, repaired
from anynpu.pipeline.request import Request
from anynpu.pipeline.result import BuildResult, ChipResult, fallback
from anynpu.pipeline.samples import overlap, require_samples
from anynpu.pipeline.steps import Steps
from anynpu.pipeline.stream_error import FILE as INNER
from anynpu.pipeline.stream_error import add_stream_errors
from anynpu.platform import Platform
from anynpu.quantize.tflite_given import GIVEN
from anynpu.records.build import FLOAT_MODEL, GraphForm, Verification
from anynpu.records.calibration import FILE as CALIBRATION
from anynpu.records.calibration import Adequacy, Calibration
from anynpu.records.diagnosis import Diagnosis
from anynpu.records.repair import Repair
from anynpu.runtime.base import choose
from anynpu.source.load import identify
from anynpu.store import Store
from anynpu.targets.base import is_exact, means_to_repeat
from anynpu.targets.data import require_data
from anynpu.targets.tflite import LiteRtOptions

NO_REFERENCE = ("degenerate-output", "non-finite-output", "differing values", "calibration")
"""Shortfalls that say what is wrong already: the float model itself, a value that a compiler did not repeat, or the
samples."""


def platforms(names: Iterable[str]) -> tuple[Platform, ...]:
    """Returns the chips by name, each once, in the order given."""
    chips = {platform.name: platform for platform in map(plugins.platform, names)}
    return tuple(chips.values())


@warm_children()
def build(request: Request, store: Store, observer: Observer) -> BuildResult:
    """Builds the model for every chip of the request. What concerns the model itself raises; what concerns one chip
    becomes that chip's result."""
    chips = platforms(request.chips)
    plans, broken = plan_all(chips, request.options, source_format(request.source))
    timed = Timed(observer)
    steps = Steps(request, store, timed)
    _require_named_samples(request, plans)
    result = BuildResult(request)
    result.model = steps.import_model().artifact
    if any(link.target.needs_data(link.options) for links in plans.values() for link in links):
        result.calibration = steps.data("calibration", result.model)
    result.test = steps.data("test", result.model)
    known = Experience()
    for chip in chips:
        if chip.name in broken:
            result.chips.append(ChipResult(chip.name, chip, error=broken[chip.name]))
        else:
            try:
                built = _build_chip(steps, chip, plans[chip.name], result, timed, known)
            except (AnyNpuError, OSError, UnicodeError):  # a full disk, a name that no file can have: all chips need it
                raise
            except Exception as error:  # the others keep their results
                built = ChipResult(chip.name, chip, error=Defect(error))
            result.chips.append(built)
    result.notes = _notes(result, steps)
    name_classes(steps, result)
    result.timings = tuple(timed.stages)
    return result


def _require_named_samples(request: Request, plans: Mapping[str, tuple[Link, ...]]) -> None:
    """Raises where a chip needs samples and the request names none: now, not after the model is converted."""
    if request.data or request.source.kind == "zoo":
        return
    for links in plans.values():
        calibrated = next((link.target.name for link in links if link.target.needs_data(link.options)), "")
        proved = links[-1].target.produces != "null" and any(_runs_here(link.target.produces) for link in links)
        if calibrated or (proved and not request.test):
            if request.test:
                sources.require(request.test)
            identify(request.source)  # a missing model is reported first, and a file that is not one
            if request.source.kind == "onnx":
                from anynpu.source.onnx_file import read

                read(Path(request.source.model))
            if calibrated:
                require_data(None, calibrated)
            require_samples(None)


def _runs_here(format: str) -> bool:
    try:
        choose(format)
    except ToolMissing:
        return False
    return True


def _notes(result: BuildResult, steps: Steps) -> list[str]:
    """Returns the sentences that belong to the figures of a build: on the samples, the gate and the steps."""
    notes = []
    for data, what in ((result.calibration, "calibration"), (result.test, "verification")):
        if data is not None and data.manifest.details["random"]:
            notes.append(f"RANDOM {what.upper()} DATA: the figures prove the arithmetic, nothing about the task")
    limit = result.request.limit
    held = {d.manifest.details["available"] for d in (result.calibration, result.test) if d is not None}
    notes += [f"{limit} of {count} samples are taken; --limit is for more" for count in sorted(held) if count > limit]
    if result.test is not None:
        notes += result.test.manifest.details["labels"]
        if not result.test.manifest.details["held_out"]:
            notes.append("too few samples to hold any out: verified on the calibration data itself")
        elif count := overlap(result.calibration, result.test):
            total = result.test.manifest.details["samples"]
            notes.append(f"{count} of {total} verification samples also occur in the calibration data")
    notes += result.model.manifest.details["frozen"] if result.model else ()
    calibrated: dict[str, list[str]] = {}
    expected = []
    for chip in result.chips:
        if chip.calibration is not None:
            calibrated.setdefault(chip.calibration.sentence, []).append(chip.chip)
            if chip.verification is not None and (interval := chip.verification.expected_sqnr_db):
                expected.append(f"{chip.chip} {interval[0]:.1f} to {interval[1]:.1f} dB")
    alone = len(calibrated) == 1
    notes += [sentence if alone else f"{', '.join(names)}: {sentence}" for sentence, names in calibrated.items()]
    if expected:
        notes.append(f"new samples like these are expected at (90 %): {', '.join(expected)}")
    notes += sentences(result.request.thresholds)
    origins = result.request.origins
    if "require_npu" in origins and not any(chip.platform.npu for chip in result.chips):
        notes.append(f"{origins['require_npu']}: require-npu has no effect, none of these chips has an NPU")
    if "max_drop" in origins and not steps.metric:
        notes.append(f"{origins['max_drop']}: max-drop has no effect without a --metric")
    return [*notes, *steps.notes]


def _build_chip(
    steps: Steps,
    platform: Platform,
    links: tuple[Link, ...],
    result: BuildResult,
    timed: Timed,
    known: Experience,
) -> ChipResult:
    started = time.monotonic()
    first = attempt = _attempt(steps, platform, links, result)
    first.seconds = time.monotonic() - started
    repairs: tuple[Repair, ...] = ()
    far = bounds(steps.request)
    if far is not None and _repairable(attempt.error):
        attempt, repairs = repaired(
            attempt,
            lambda changed: _attempt(steps, platform, changed, result),
            lambda best: diagnosed(steps, platform.name, best.artifacts, result),
            far,
            known,
        )
        known.learn(platform.name, first, attempt, repairs)
    chain, error, diagnosis = attempt.artifacts, attempt.error, None
    if _repairable(error):
        from anynpu.pipeline.training import can_train

        diagnosis = diagnosed(steps, platform.name, chain, result)
        if repairs:  # what this build has not tried yet
            error.hint = BETTER_SAMPLES
        if not steps.request.qat and can_train(chain):
            command = f"`anynpu build -t {platform.name} --qat`"
            error.hint += f"; or train it: {command}, with the same model, data and options"
    return ChipResult(
        platform.name,
        platform,
        tuple(chain),
        verification=attempt.proved.verification,
        evidence=attempt.proved.evidence,
        not_verified=attempt.proved.not_verified,
        calibration=attempt.calibration,
        verdict=attempt.verdict,
        error=error,
        repairs=repairs,
        graph=_graph(steps, platform, chain, result),
        diagnosis=diagnosis,
        timings=timed.of(platform.name),
        seconds=round(time.monotonic() - started, 3),
    )


def _repairable(error: AnyNpuError | None) -> TypeGuard[AccuracyError]:
    """Tells whether a chip missed the gate for what quantisation lost."""
    return isinstance(error, AccuracyError) and error.metric not in NO_REFERENCE


def _attempt(steps: Steps, platform: Platform, links: tuple[Link, ...], result: BuildResult) -> Attempt:
    """Returns what a chain of compilers makes of the model, executed and judged."""
    attempt = Attempt(links)
    try:
        assert result.model is not None
        for link in links:
            previous = attempt.artifacts[-1] if attempt.artifacts else result.model
            attempt.artifacts.append(steps.compile(platform.name, link, previous, result.calibration, platform))
        if steps.request.qat:
            from anynpu.pipeline.training import trained_chain

            attempt.artifacts = trained_chain(steps, platform, links, attempt.artifacts, result)
        chain = attempt.artifacts
        repetition = None
        if len(chain) > 1 and means_to_repeat(links[-1].target):
            repetition = _repeated(steps, platform, chain, result)
        oracle = chain[-2] if len(chain) > 1 and is_exact(links[-1].target) else None
        attempt.proved = repetition or _proof(steps, platform, chain, result, oracle)
        attempt.calibration = _adequacy(chain, attempt.proved.verification)
        if attempt.proved.verification is not None:
            judge(attempt.proved.verification, steps.request.gate)
        else:
            _judge_degenerate(result.model)
        adequacy = attempt.calibration
        if steps.request.strict_calibration and adequacy is not None and not adequacy.adequate:
            hint = "give more samples, like those that the model will see; without --strict-calibration this is a note"
            count = float(adequacy.distinct)
            raise AccuracyError("; ".join(adequacy.reasons), "calibration", count, float(MIN_DISTINCT), hint=hint)
        attempt.verdict = fallback(chain[-1], platform, steps.request.require_npu)
    except PassFailed as failure:
        steps.notes.append(f"{platform.name}: {failure.message}: it was left out, and the model compiled again")
        again = list(links)
        for at, link in enumerate(links):
            if isinstance(link.options, LiteRtOptions):
                skipped = f"{link.options.skip_passes},{failure.skipped}".strip(",")
                again[at] = replace(link, options=replace(link.options, skip_passes=skipped))
        return _attempt(steps, platform, tuple(again), result)
    except AnyNpuError as error:
        attempt.error = error
    except (OSError, UnicodeError):
        raise
    except Exception as error:  # an attempt that fails so is one of several, as any other
        attempt.error = Defect(error)
    return attempt


def _judge_degenerate(model: Artifact) -> None:
    """Raises for a model that random inputs showed to be no reference; what is executed is judged on the samples."""
    findings = findings_at_import(model)
    if findings:
        which = "the given model" if model.manifest.format == GIVEN else FLOAT_MODEL
        raise AccuracyError(
            f"{which} itself is no use as a reference: {findings[0]}",
            findings[0].rule,
            0.0,
            1.0,
            [str(f) for f in findings],
            "check the export and the checkpoint",
        )


def _adequacy(chain: Sequence[Artifact], proof: Verification | None) -> Adequacy | None:
    """Returns whether the calibration samples of a chain were enough; None where nothing was calibrated here."""
    kept = next((a for a in chain if any(entry.path == CALIBRATION for entry in a.manifest.files)), None)
    if kept is None:
        return None
    calibration = schema.from_dict(Calibration, schema.read_json(kept.file(CALIBRATION)), CALIBRATION)
    return judge_calibration(calibration, *(proof.held_against_ranges, proof.outside) if proof else (0, ()))


def _repeated(steps: Steps, platform: Platform, chain: list[Artifact], result: BuildResult) -> Proved | None:
    """Executes the final artifact on part of the samples; where it repeats the one before it bit by bit, the figures of
    that one on all samples are its own. Returns None where it cannot be executed here.
    """
    final, before = chain[-1], chain[-2]
    if not _runs_here(final.manifest.format):
        return None
    assert result.model is not None
    data = require_samples(result.test)
    floating = untrained_twin(chain)
    # What a runtime refuses in the model is reported first.
    evidence = verify(steps, platform, before, result.model, data, floating=floating)
    repetition = repeat(steps, platform.name, final, before, result.model, data)
    if not repetition.exact and not repetition.refused:
        evidence = verify(steps, platform, final, result.model, data, floating=floating)
    verification = read_verification(evidence, final.manifest.format if repetition.refused else "")
    if repetition.exact:
        verification = replace(verification, executed=repetition.executed, device=repetition.device)
    notes = (*repetition.notes(), *verification.notes)
    return Proved(replace(verification, notes=notes), evidence)


def _proof(
    steps: Steps, platform: Platform, chain: list[Artifact], result: BuildResult, oracle: Artifact | None
) -> Proved:
    """Executes the last artifact of the chain that anything here can execute; the final one must repeat the oracle."""
    final = chain[-1]
    if final.manifest.format == "null":
        return Proved(not_verified="the null device computes nothing")
    candidate = next((artifact for artifact in reversed(chain) if _runs_here(artifact.manifest.format)), None)
    if candidate is None:
        return Proved(not_verified=f"nothing on this machine executes {final.manifest.format}")
    assert result.model is not None
    data = require_samples(result.test)
    exact = oracle if candidate is final else None
    evidence = verify(steps, platform, candidate, result.model, data, exact, untrained_twin(chain))
    verification = read_verification(evidence, "" if candidate is final else final.manifest.format)
    if candidate is final and platform.device not in ("", verification.device):
        findings = [Finding("runs", note) for note in verification.notes]
        if platform.device == "tflm":  # it stops at the first
            from anynpu.targets import micro

            findings = [*micro.refused(candidate.main.read_bytes()), *findings]
        raise Unsupported(f"{platform.title} does not run this model", findings)
    return Proved(verification, evidence)


def _graph(steps: Steps, platform: Platform, chain: list[Artifact], result: BuildResult) -> GraphForm | None:
    """Returns the graph of what was made, whatever came of it; a figure that cannot be had is a note, no failure."""
    if not chain or result.model is None or result.test is None:
        return None
    try:
        inspected = layers(steps, platform.name, (result.model, *chain), result.test)
        if inspected is None:
            return None
        drawn = graph(schema.from_json(GraphForm, schema.read_json(inspected.main)), chain[-1])
        inner = inspected.path / INNER
        placed = chain[-1].manifest.placement
        # TFLite-Micro, which runs what is left to the CPU, has no place in this process.
        if chain[-1].manifest.format == "tflite-vela" and inner.is_file() and placed and not placed.elsewhere():
            return add_stream_errors(
                drawn, stream_layers(steps, platform.name, chain, result.model, result.test, inspected)
            )
        return drawn
    except (AnyNpuError, OSError, KeyError, ValueError) as error:
        return empty(chain[-1].manifest.format, f"no figures per layer: {error}")


def diagnosed(steps: Steps, chip: str, chain: Sequence[Artifact], result: BuildResult) -> Diagnosis | None:
    """Returns where what was made loses the float model; None where its operators cannot be read."""
    if not chain or result.model is None or result.test is None:
        return None
    try:
        return diagnose(steps, chip, (result.model, *chain), result.test, result.calibration)
    except AnyNpuError as error:
        steps.notes.append(f"{chip}: no diagnosis: {error.message}")
        return None

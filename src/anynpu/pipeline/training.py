"""Training in a build: the compiled model says how it rounds, the float model learns it, and is compiled again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anynpu import schema, tool
from anynpu.artifact import Artifact, Manifest, Step
from anynpu.errors import ConfigError, ToolMissing, Unsupported
from anynpu.measure.verify import require_reference
from anynpu.pipeline.evidence import read_verification, verify
from anynpu.pipeline.observer import HearsWords
from anynpu.pipeline.planner import Link
from anynpu.pipeline.samples import require_samples
from anynpu.pipeline.steps import Steps
from anynpu.platform import Platform
from anynpu.records.build import Verification
from anynpu.records.parts import own_version
from anynpu.targets.base import Work
from anynpu.targets.roundings import READERS, check_integers, scheme_of
from anynpu.tasks import card
from anynpu.training.fit import Settings
from anynpu.training.record import MODEL, read_record
from anynpu.training.scheme import Scheme

if TYPE_CHECKING:
    from anynpu.pipeline.result import BuildResult


def trained_chain(
    steps: Steps, platform: Platform, links: Sequence[Link], artifacts: Sequence[Artifact], result: BuildResult
) -> list[Artifact]:
    """Returns the artifacts of a chip after training, or those before it where they are better on held-out samples."""
    assert result.model is not None
    rounding = next((artifact for artifact in artifacts if artifact.manifest.format in READERS), None)
    if rounding is None:
        known = ", ".join(sorted(READERS))
        raise Unsupported(
            f"--qat: nothing on the way to {platform.name} rounds in a way that training knows",
            hint=f"it knows the formats {known}; leave --qat out for this chip",
        )
    if result.model.manifest.format != "onnx":
        raise Unsupported("--qat: training needs the ONNX or PyTorch model", hint="give that with -m")
    data = require_samples(result.test)
    before = read_verification(verify(steps, platform, rounding, result.model, data), "")
    require_reference(before)  # there is nothing to learn from a model that always gives the same
    at = list(artifacts).index(rounding)
    # Channels that the compiler makes equally loud first have other ranges than those of the float graph.
    plain = list[Link]()
    for link in links:
        options: Any = link.options
        changed = {name: False for name in ("equalize", "cle", "adaround") if getattr(options, name, False)}
        plain.append(replace(link, options=replace(options, **changed)) if changed else link)
    probe = _compiled(steps, platform, plain[: at + 1], result.model, result)
    scheme = scheme_of(result.model, probe[at], probe[at - 1] if at else None)
    model = train(steps, platform.name, result.model, scheme)
    again = _compiled(steps, platform, plain, model, result)
    check_integers(model, again[at])
    after = read_verification(verify(steps, platform, again[at], result.model, data), "")
    kept = not _worse(after, before)
    steps.notes.append(_note(platform.name, model, before, after, kept))
    return again if kept else list(artifacts)


def _compiled(
    steps: Steps, platform: Platform, links: Sequence[Link], model: Artifact, result: BuildResult
) -> list[Artifact]:
    artifacts: list[Artifact] = []
    for link in links:
        previous = artifacts[-1] if artifacts else model
        artifacts.append(steps.compile(platform.name, link, previous, result.calibration, platform))
    return artifacts


def can_train(artifacts: Sequence[Artifact]) -> bool:
    """Whether the rounding of a chain of compilers can be learnt."""
    return any(artifact.manifest.format in READERS for artifact in artifacts)


def train(steps: Steps, chip: str, model: Artifact, scheme: Scheme) -> Artifact:
    """Returns the float model trained for a scheme; chips that round alike share it."""
    data = steps.data("training", model)
    if data is None:
        raise ConfigError("--qat needs samples to learn from", "give --data")
    settings = Settings(seed=steps.request.seed, classes=steps.metric == "top1")
    try:
        version = tool.version_of("torch")
    except ToolMissing:
        raise ToolMissing("--qat needs torch, which is not installed", "pip install 'anynpu[build]'") from None
    inputs = {"model": model.digest, "data": data.digest}
    options = {"scheme": schema.to_dict(scheme), "settings": schema.to_dict(settings)}
    step = Step("train", inputs, options, {"anynpu": own_version(), "torch": version})

    def make(out: Path, work: Work) -> Manifest:
        estimates = model.manifest.estimates
        arguments = {
            "model": str(model.path),
            "data": str(data.path),
            **options,
            "out": str(out),
            "checkpoint": str(steps.store.cache / "training" / f"{step.address}.npz"),
            "macs": float(estimates.macs or 0) if estimates else 0.0,
        }

        def said(words: str) -> None:
            if isinstance(steps.observer, HearsWords):
                steps.observer.said(chip, "train", words)

        function = "anynpu.training.train:train"
        # A GPU is found by what the environment says of it.
        how = {"scratch": out.parent, "log": work.log, "progress": work.progress, "whole_environment": True}
        tool.call(function, arguments, answer=said, **how)  # type: ignore[arg-type]  # of several types
        if model.manifest.task:
            card.of(model).copy_to(out)
        return replace(model.manifest, files=(), step=None, made=None, main=MODEL)

    return steps.run(chip, "train", step, make).artifact


def _worse(after: Verification, before: Verification) -> bool:
    """Tells whether training made a model worse: by the task's metric, else by the distance to the float model."""
    if after.score is not None and before.score is not None and after.score != before.score:
        return after.score < before.score
    return (after.sqnr_db or 0.0) < (before.sqnr_db or 0.0)


def _note(chip: str, model: Artifact, before: Verification, after: Verification, kept: bool) -> str:
    record = read_record(model.path)
    assert record is not None
    by = "labels and the float model" if record.labelled else "the float model"
    epochs = f"{len(record.epochs)} of {record.planned} epochs"
    words = f"{chip}: trained by {by} on {record.samples} samples, {epochs}, on the {record.device}"
    if before.score is not None and after.score is not None:
        words += f": {before.metric} {before.score:.1%} -> {after.score:.1%}"
    words += f": SQNR {before.sqnr_db or 0:.1f} -> {after.sqnr_db or 0:.1f} dB on held-out samples"
    return words if kept else f"{words}; that is worse, so the untrained result stays"

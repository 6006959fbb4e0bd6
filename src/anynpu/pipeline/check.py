"""Asking every compiler of a chain whether the model would run whole on the chip, before the last one compiles it."""

from __future__ import annotations

from dataclasses import dataclass

from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError, Finding, Unsupported
from anynpu.measure.reference import findings_at_import
from anynpu.pipeline.build import platforms
from anynpu.pipeline.observer import Observer
from anynpu.pipeline.planner import Link, plan_all, source_format
from anynpu.pipeline.request import Request
from anynpu.pipeline.steps import Steps
from anynpu.platform import Platform
from anynpu.store import Store


@dataclass(frozen=True)
class ChipCheck:
    """The findings on one chip, or the error that kept them from being made."""

    chip: str
    findings: tuple[Finding, ...] = ()
    error: AnyNpuError | None = None

    @property
    def exit_status(self) -> int:
        if self.error is not None:
            return self.error.exit_status
        return 1 if self.findings else 0


def check(request: Request, store: Store, observer: Observer) -> list[ChipCheck]:
    """Returns the findings for every chip of the request."""
    chips = platforms(request.chips)
    plans, broken = plan_all(chips, request.options, source_format(request.source))
    steps = Steps(request, store, observer)
    model = steps.import_model().artifact
    calibration = steps.data("calibration", model)
    # What random inputs showed says nothing of a model with samples: a build judges it on these.
    degenerate = tuple(findings_at_import(model)) if calibration is None else ()
    return [
        ChipCheck(chip.name, error=broken[chip.name])
        if chip.name in broken
        else _check_chip(steps, chip, plans[chip.name], model, calibration, degenerate)
        for chip in chips
    ]


def _check_chip(
    steps: Steps,
    platform: Platform,
    links: tuple[Link, ...],
    model: Artifact,
    calibration: Artifact | None,
    findings: tuple[Finding, ...],
) -> ChipCheck:
    current = model
    try:
        for link in links:
            fresh = link.target.check(current, platform, link.options)
            findings += fresh
            if link is links[-1] or fresh:
                break
            current = steps.compile(platform.name, link, current, calibration, platform)
    except Unsupported as error:
        return ChipCheck(platform.name, (*findings, *error.findings), None if error.findings else error)
    except AnyNpuError as error:
        return ChipCheck(platform.name, findings, error)
    return ChipCheck(platform.name, findings)

"""What a build would do: the steps, their tools and options, and which of them are in the store already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anynpu import schema
from anynpu.artifact import Artifact, Step
from anynpu.errors import ToolMissing
from anynpu.pipeline.build import platforms
from anynpu.pipeline.planner import plan_all, source_format
from anynpu.pipeline.request import Request
from anynpu.pipeline.steps import Steps
from anynpu.store import Store
from anynpu.targets.base import platform_tools


class Silent:
    """An observer that hears nothing."""

    def started(self, chip: str, stage: str) -> None:
        return

    def progress(self, done: int, total: int) -> None:
        return

    def said(self, chip: str, stage: str, words: str) -> None:
        return

    def finished(self, chip: str, stage: str, seconds: float, hit: bool) -> None:
        return


@dataclass(frozen=True)
class PlannedStep(schema.Whole):
    """One step of a plan: for which chip, whether it is there already, and the tools that it runs."""

    chip: str
    step: str
    state: str
    tools: Mapping[str, str]


def preview(request: Request, store: Store) -> list[PlannedStep]:
    """Returns one row a step; behind a step that is yet to be made, nobody can know whether the next is cached."""
    chips = platforms(request.chips)
    plans, broken = plan_all(chips, request.options, source_format(request.source))
    steps = Steps(request, store, Silent())
    first = steps.import_step()
    model = steps.find(first)
    rows = [_row("model", first, model)]
    data: dict[str, Artifact | None] = {"calibration": None, "test": None}
    for role in data:
        step = steps.data_step(role, model) if model else None
        data[role] = steps.find(step) if step else None
        if step or not model:
            rows.append(_row(role, step, data[role]))
    for chip in chips:
        current = model
        if error := broken.get(chip.name):
            rows.append(PlannedStep(chip.name, chip.target, "broken", {error.message: ""}))
        for link in plans.get(chip.name, ()):
            name = f"{link.target.name}: {link.target.accepts} -> {link.target.produces}"
            try:
                tools = {**link.target.tools(), **platform_tools(link.target, chip)}
            except ToolMissing as missing:
                rows.append(PlannedStep(chip.name, name, "tool missing", {missing.message: ""}))
                break
            ready = current is not None and (data["calibration"] or not link.target.needs_data(link.options))
            step = None
            if current and ready:
                link = steps.settled(link, current, chip)
                step = steps.compile_step(link, current, data["calibration"], chip)
            current = store.find(step.address) if step else None
            rows.append(_row(chip.name, step, current, name, tools))
    return rows


def _row(
    chip: str, step: Step | None, kept: Artifact | None, name: str = "", tools: dict[str, str] | None = None
) -> PlannedStep:
    state = "cached" if kept else "to build" if step else "to build (after the one before)"
    known = dict(tools if tools is not None else step.tools if step else {})
    known.pop("anynpu", None)
    return PlannedStep(chip, name or (step.name if step else "data"), state, known)

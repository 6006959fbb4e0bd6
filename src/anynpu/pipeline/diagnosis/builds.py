"""The diagnosis of every chip of a build that was made before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from anynpu import schema
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.pipeline.build import build, diagnosed
from anynpu.pipeline.observer import Observer
from anynpu.pipeline.request import Request
from anynpu.pipeline.steps import Steps
from anynpu.records.build import BuildRecord
from anynpu.records.diagnosis import Diagnosis
from anynpu.records.load import load
from anynpu.records.parts import REPORT
from anynpu.store import Store


@dataclass(frozen=True)
class ChipDiagnosis:
    """What was found on one chip, or why nothing was."""

    chip: str
    diagnosis: Diagnosis | None
    reason: str = ""


def read_request(out: Path, chips: Sequence[str] = ()) -> Request:
    """Returns what the build in folder `out` was asked for, for some of its chips or for all."""
    if not (out / REPORT).is_file():
        raise ConfigError(f"{out}: holds no {REPORT}", "name the output folder of a build (-o of `anynpu build`)")
    data = schema.read_json(out / REPORT)
    if not isinstance(load(data, str(out / REPORT)), BuildRecord):
        raise ConfigError(f"{out / REPORT}: is not the record of a build", "name the output folder of a build")
    request: Request = schema.from_dict(Request, data["request"], f"{out / REPORT}: request")
    unknown = [chip for chip in chips if chip not in request.chips]
    if unknown:
        raise ConfigError(f"{out} was not built for {unknown[0]}", "it was built for " + ", ".join(request.chips))
    return replace(request, chips=tuple(chips) or request.chips)


def diagnose_build(request: Request, store: Store, observer: Observer) -> tuple[ChipDiagnosis, ...]:
    """Returns the diagnosis of each chip. What the build made is taken from the cache, and made again where it is not
    there any more."""
    result = build(request, store, observer)
    diagnoses = []
    for chip in result.chips:
        steps = Steps(request, store, observer)
        diagnosis = chip.diagnosis or diagnosed(steps, chip.chip, chip.artifacts, result)
        reason = ""
        if diagnosis is None:
            error: AnyNpuError | None = None if chip.artifacts else chip.error
            reason = error.message if error is not None else "; ".join(steps.notes)
        diagnoses.append(ChipDiagnosis(chip.chip, diagnosis, reason))
    return tuple(diagnoses)

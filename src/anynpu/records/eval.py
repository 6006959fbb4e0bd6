"""The record of kind eval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from anynpu.records.shared import Figure, Threshold
from anynpu.schema import Throughout, about, rest


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """Average precision of one class of objects."""

    name: str = about(default="", key="class")
    ap: Figure | None = None
    ap50: Figure | None = None


@dataclass(frozen=True, kw_only=True)
class FailedInput:
    """A sample that could not be read."""

    input: str = ""
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class ScoredData:
    """What the score is of."""

    source: str = ""
    annotations: str = ""
    samples: int | None = None
    failed: tuple[FailedInput, ...] = ()
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class Against:
    """The paired comparison with another artifact; the difference is the subject minus the other."""

    path: str = ""
    artifact: str = ""
    fingerprint: str = ""
    executed: str = ""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    difference: Figure | None = None
    test: str = ""
    p_value: float | None = None
    level: float | None = None
    verdict: str = ""


@dataclass(frozen=True, kw_only=True)
class EvalRecord(Throughout):
    """Accuracy on labelled data."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    kind: Literal["eval"]
    anynpu: str = about("the version that wrote the record", "")
    at: str = about("when, UTC, ISO 8601", "")
    path: str = ""
    artifact: str = about("the digest of what was scored", "")
    fingerprint: str = ""
    chip: str = ""
    tools: Mapping[str, str] | None = None
    options: Mapping[str, object] | None = None
    executed: str = ""
    versions: Mapping[str, str] | None = about("of driver, firmware and runtime", None)
    task: str = ""
    metric: str = ""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = about("how the intervals are made", "")
    samples: int | None = None
    unit: str = about("what one sample is", "")
    weak: bool = about("whether there are few samples", False)
    overlap: bool = about("whether samples also occur in the calibration data", False)
    metrics: Mapping[str, Figure | None] | None = None
    classes: tuple[ClassFigures, ...] = ()
    data: ScoredData | None = None
    against: Against | None = None
    gate: tuple[Threshold, ...] = about("every threshold in force, its default, and what set it", (), optional=True)
    notes: tuple[str, ...] = about("sentences that belong to the figures", ())
    seal: str = about("the sha256 of all else in the record; a change of it shows", "", optional=True)
    rest: Mapping[str, object] = rest()

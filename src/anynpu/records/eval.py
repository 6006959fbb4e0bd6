"""The record of kind eval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anynpu.records.shared import ThresholdForm
from anynpu.schema import about


@dataclass(frozen=True, kw_only=True)
class EvalRecord:
    """Accuracy on labelled data."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    anynpu: str | None = about("the version that wrote the record", None)
    at: str | None = about("when, UTC, ISO 8601", None)
    kind: Literal["eval"]
    metric: str | None = None
    score: float | None = None
    low: float | None = None
    high: float | None = None
    samples: Any = None
    executed: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    data: Any = None
    gate: tuple[ThresholdForm, ...] | None = about("every threshold in force, its default, and what set it", None)
    notes: tuple[str, ...] | None = about("sentences that belong to the figures", None)
    seal: str = about("the sha256 of all else in the record; a change of it shows", "")

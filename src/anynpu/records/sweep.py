"""The record of kind sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from anynpu.records.shared import ThresholdForm
from anynpu.schema import about


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One combination of model, chip and options."""

    model: str
    chip: str
    options: Mapping[str, Any] | None = None
    status: str
    error: str | None = None
    metric: str | None = None
    score: float | None = None
    score_float: float | None = None
    sqnr_db: float | None = None
    latency_ms: float | None = about("an estimate", None)
    latency_source: str | None = None
    sram_bytes: float | None = None
    flash_bytes: float | None = None
    on_front: bool | None = None
    group: str | None = None
    report: str | None = None


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """Models x chips x options."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    anynpu: str | None = about("the version that wrote the record", None)
    at: str | None = about("when, UTC, ISO 8601", None)
    kind: Literal["sweep"]
    axes: Any = None
    rows: tuple[SweepRow, ...]
    gate: tuple[ThresholdForm, ...] | None = about("every threshold in force, its default, and what set it", None)
    notes: tuple[str, ...] | None = about("sentences that belong to the figures", None)
    exit_status: int | None = None
    seal: str = about("the sha256 of all else in the record; a change of it shows", "")

"""The record of kind sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from anynpu.records.shared import Threshold
from anynpu.schema import Throughout, about, rest


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One combination of model, chip and options."""

    model: str
    chip: str
    options: Mapping[str, object] | None = None
    status: str
    error: str = ""
    exit_status: int = 0
    metric: str = ""
    score: float | None = None
    score_float: float | None = None
    sqnr_db: float | None = None
    accuracy: float | None = about("what the front is drawn by: the score, or the SQNR without labels", None)
    latency_ms: float | None = about("an estimate", None)
    latency_source: str = ""
    sram_bytes: float | None = None
    flash_bytes: float | None = None
    dram_bytes: float | None = None
    on_npu: float | None = None
    seconds: float | None = None
    fingerprint: str = ""
    digest: str = ""
    group: str = about("rows of one group are comparable", "")
    on_front: bool = False
    report: str = ""

    @property
    def option_text(self) -> str:
        """The options as -O takes them."""
        return " ".join(f"{name}={value}" for name, value in (self.options or {}).items())


@dataclass(frozen=True, kw_only=True)
class SweepRecord(Throughout):
    """Models x chips x options."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    kind: Literal["sweep"]
    anynpu: str = about("the version that wrote the record", "")
    at: str = about("when, UTC, ISO 8601", "")
    axes: Mapping[str, str] | None = about("what is compared, and which way is better", None)
    gate: tuple[Threshold, ...] = about("every threshold in force, its default, and what set it", ())
    rows: tuple[SweepRow, ...]
    notes: tuple[str, ...] = about("sentences that belong to the figures", ())
    exit_status: int = 0
    seal: str = about("the sha256 of all else in the record; a change of it shows", "", optional=True)
    rest: Mapping[str, object] = rest()

"""The record of kind sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from anynpu.records.shared import Threshold
from anynpu.schema import Throughout, about, rest

MOST_NAMED = 2
"""How many names of a list a table shows."""


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One combination of model, chip and options."""

    model: str
    chip: str
    options: Mapping[str, object] | None = None
    qat: bool = about("trained with the chip's rounding in the loop", False)
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
    best: bool = about("the best by accuracy of its model and chip, of those that a search tried", False)
    report: str = ""

    @property
    def option_text(self) -> str:
        """The options as -O takes them, with the first of many tensors, and whether it was trained."""
        texts = []
        for name, value in (self.options or {}).items():
            listed = str(value).split(",")
            more = f",...({len(listed)})" if len(listed) > MOST_NAMED else ""
            texts.append(f"{name}={','.join(listed[:MOST_NAMED])}{more}")
        return " ".join([*texts, "--qat"] if self.qat else texts)

    @property
    def title(self) -> str:
        """Model, chip and options."""
        return " ".join(part for part in (self.model, self.chip, self.option_text) if part)


@dataclass(frozen=True, kw_only=True)
class SearchForm:
    """How a search under a time budget went."""

    minutes: float = about("the budget of a run; one that goes on has it anew")
    seconds: float = about("how long the last run took")
    tried: int = about("builds of all runs")
    ended: Literal["nothing left to try", "out of time", "unfinished"]
    untried: tuple[str, ...] = about("the next builds that were not tried: model, chip and options", ())


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
    search: SearchForm | None = about("of a search; None where every combination was built", None, optional=True)
    notes: tuple[str, ...] = about("sentences that belong to the figures", ())
    exit_status: int = 0
    seal: str = about("the sha256 of all else in the record; a change of it shows", "", optional=True)
    rest: Mapping[str, object] = rest()

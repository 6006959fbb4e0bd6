"""A row of the ledger, and the record of kind regress that is made of such rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from anynpu.records.shared import Threshold
from anynpu.schema import Throughout, about, digest


@dataclass(frozen=True)
class Row:
    """One figure and its conditions; `record` is the digest of the record it is from."""

    metric: str
    value: float
    unit: str
    fingerprint: str
    chip: str = ""
    tools: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    anynpu: str = ""
    at: str = ""
    host: str = ""
    better: str = "lower"
    samples_digest: str = ""
    launches: tuple[tuple[float, ...], ...] = ()
    record: str = ""
    after: str = about("the seal of the row before it: a row that is taken out shows", "")
    seal: str = ""

    @property
    def digest(self) -> str:
        return digest(replace(self, seal=""))

    @property
    def subject(self) -> tuple[str, str, str, str, str]:
        """What has to be equal before two rows are compared; a time is one machine's own."""
        return self.fingerprint, self.chip, self.metric, self.unit, self.host


@dataclass(frozen=True)
class Change:
    """One metric before and after; `p_value` is None where single figures were compared."""

    fingerprint: str
    chip: str
    metric: str
    unit: str
    before: float
    after: float
    tools: Mapping[str, tuple[str, str]]
    ratio: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    verdict: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RegressRecord(Throughout):
    """What changed from one toolchain version to the next."""

    schema_version: int = about("the form of this kind of record", 1, minimum=1)
    kind: Literal["regress"] = "regress"
    ledger: str = about("the ledger's file", "")
    rows: int
    added: int = about("rows of this call", 0)
    damaged: int = about("lines that are not rows", 0)
    gaps: int = about("rows whose predecessor is not there any more", 0)
    unsealed: int = 0
    level: float
    margin: float
    verdict: str
    gate: tuple[Threshold, ...] = ()
    changes: tuple[Change, ...] = ()

"""The record of kind compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from anynpu.records.shared import FidelityForm, Summary, ThresholdForm
from anynpu.schema import about


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two that are compared."""

    name: str | None = None
    artifact: str | None = None
    fingerprint: str | None = None
    executed: str | None = None
    chip: str | None = None
    tools: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Launches:
    """The samples of every launch."""

    a: tuple[tuple[float, ...], ...] | None = None
    b: tuple[tuple[float, ...], ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SideSummaries:
    """What the samples of each side support saying."""

    a: Summary | None = about("what the samples support", None)
    b: Summary | None = about("what the samples support", None)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The latency of B by that of A, with its interval."""

    median: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None


@dataclass(frozen=True, kw_only=True)
class Medians:
    """The median of each side."""

    a: float | None = None
    b: float | None = None


@dataclass(frozen=True, kw_only=True)
class LatencyVersus:
    """Latencies of two sides, measured in turn."""

    unit: str | None = None
    input: str | None = None
    order: str | None = None
    launches: Launches | None = None
    summary: SideSummaries | None = None
    ratio: Ratio | None = None
    replicates: str | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    equivalent: bool | None = None
    verdict: str | None = None
    medians: Medians | None = about("of which the ratio is: geometric means of the medians of launches", None)


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Accuracies of two sides on the same samples."""

    metric: str | None = None
    samples: int | None = None
    a: float | None = None
    b: float | None = None
    difference: tuple[float | None, ...] | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    test: str | None = None
    verdict: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServerSide:
    """One of two servers."""

    url: str | None = None
    model: str | None = None
    software: str | None = None
    models: tuple[str, ...] | None = None
    info_digest: str | None = None
    width: int | None = None
    requests: int | None = None
    failed: int | None = None
    outcomes: Mapping[str, int] | None = None
    per_s: tuple[float, ...] | None = None
    cores_used: tuple[float, ...] | None = None
    cpu_ms_per_request: tuple[float, ...] | None = None
    rss_bytes: tuple[float, ...] | None = None
    program: str | None = None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServerRatio:
    """A figure of B by that of A, with its interval."""

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    verdict: str | None = None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Whether two servers give the same vectors."""

    texts: int | None = None
    width_a: int | None = None
    width_b: int | None = None
    cosine: tuple[float, ...] | None = None
    least_cosine: float | None = None
    neighbours: int | None = None
    overlap: tuple[float, ...] | None = None
    rank_correlation: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class HttpVersus:
    """Two servers, measured in turn from outside."""

    a: ServerSide | None = None
    b: ServerSide | None = None
    connections: int | None = None
    throughput: ServerRatio | None = None
    cpu: ServerRatio | None = None
    agreement: Agreement | None = None


@dataclass(frozen=True, kw_only=True)
class CompareRecord:
    """B against A."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    anynpu: str | None = about("the version that wrote the record", None)
    at: str | None = about("when, UTC, ISO 8601", None)
    kind: Literal["compare"]
    a: Side | str | None = None
    b: Side | str | None = None
    same_network: bool | None = None
    level: float | None = None
    margin: float | None = None
    latency: LatencyVersus | None = about("times; null where none was measured", None)
    counts: LatencyVersus | None = about(
        "the same of counts, such as an emulator's instructions, which are no time", None
    )
    ratio: Ratio | None = None
    p_value: float | None = None
    accuracy: Accuracy | None = None
    outputs: Mapping[str, FidelityForm] | None = None
    min_sqnr_db: float | None = None
    outputs_verdict: str | None = None
    host: Any = None
    partial: bool | None = None
    failure: str | None = None
    verdict: str | None = None
    gate: tuple[ThresholdForm, ...] | None = about("every threshold in force, its default, and what set it", None)
    notes: tuple[str, ...] | None = about("sentences that belong to the figures", None)
    seal: str = about("the sha256 of all else in the record; a change of it shows", "")
    outputs_shortfall: str | None = about("in what the outputs differ, or an empty string", None)
    http: HttpVersus | None = about("two servers, measured in turn from outside", None)

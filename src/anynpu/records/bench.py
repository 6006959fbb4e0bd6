"""The record of kind bench."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anynpu.records.shared import Summary
from anynpu.schema import about


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Samples and what they support saying."""

    unit: str | None = None
    samples: tuple[float, ...] | None = about("every sample, in order", None)
    started_s: tuple[float, ...] | None = about("when each sample started", None)
    summary: Summary | None = about("what the samples support", None)


@dataclass(frozen=True, kw_only=True)
class StageFigures:
    """How long one stage took, over all runs."""

    min: float | None = None
    median: float | None = None
    max: float | None = None
    samples: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Inferences in a second of wall time."""

    per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class BoundVerdict:
    """Whether a percentile keeps its bound."""

    met: bool | None = None
    percentile: float | None = None
    value_ms: float | None = None
    bound_ms: float | None = None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Spike:
    """One of the largest outliers, and what may have caused it."""

    index: int = 0
    at_s: float | None = None
    value: float | None = None
    causes: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """How much slower a model is beside others, with its interval."""

    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelTogether:
    """One of several models that ran at the same time."""

    name: str | None = None
    executed: str | None = None
    alone: Latency | None = None
    together: Latency | None = None
    slowdown: Slowdown | None = None


@dataclass(frozen=True, kw_only=True)
class Together:
    """Several models that ran at the same time."""

    models: tuple[ModelTogether, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Connections:
    """Connections to a server."""

    limit: int | None = None
    opened: int | None = None
    most_busy: int | None = None


@dataclass(frozen=True, kw_only=True)
class Process:
    """What the processes of a server used."""

    program: str | None = None
    pids: tuple[int, ...] | None = None
    cores_used: float | None = None
    cpu_ms_per_request: float | None = None
    rss_bytes: int | None = None
    most_rss_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server as it describes itself, and its processes where they run here."""

    software: str | None = None
    models: tuple[str, ...] | None = None
    info: Mapping[str, Any] | None = None
    info_digest: str | None = None
    why: str | None = None
    process: Process | None = None


@dataclass(frozen=True, kw_only=True)
class NoOp:
    """A request that computes nothing: the client's own share."""

    requests: int | None = None
    median_ms: float | None = None
    max_ms: float | None = None
    cpu_us_per_request: float | None = None


@dataclass(frozen=True, kw_only=True)
class Client:
    """What the load generator itself used."""

    cpu_us_per_request: float | None = None
    cores_used: float | None = None
    no_op: NoOp | None = None


@dataclass(frozen=True, kw_only=True)
class LimitStep:
    """One rate that was tried."""

    rate_per_s: float | None = None
    connections: int | None = None
    answered_per_s: float | None = None
    median_ms: float | None = None
    p99_ms: float | None = None
    failed: int | None = None
    kept: bool | None = None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class RateLimit:
    """The highest rate that a server keeps up with."""

    kept_per_s: float | None = None
    not_kept_per_s: float | None = None
    closed_per_s: float | None = None
    steps: tuple[LimitStep, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Http:
    """A server, measured from outside."""

    label: str | None = about("client-side latency: with the network, the server's queue and the client's share", None)
    loop: str | None = about("open: arrivals wait for nothing; closed: each connection waits for its answer", None)
    url: str | None = None
    route: str | None = None
    model: str | None = None
    batch: int | None = None
    timeout_s: float | None = None
    connections: Connections | None = None
    requests: int | None = None
    failed: int | None = None
    outcomes: Mapping[str, int] | None = about("requests by status, and by what was wrong with the answer", None)
    example: str | None = None
    retried: int | None = None
    server: Server | None = None
    client: Client | None = None
    limit: RateLimit | None = None


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """A measurement of how long an artifact takes."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    anynpu: str | None = about("the version that wrote the record", None)
    at: str | None = about("when, UTC, ISO 8601", None)
    kind: Literal["bench"]
    scenario: str | None = None
    scope: str | None = None
    executed: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    board: str | None = None
    unit: str | None = None
    clock: Any = None
    cold: Any = None
    warm_up: Any = None
    latency: Latency | None = about("times; null where none was measured", None)
    counts: Latency | None = about("the same of counts, such as instructions of an emulator, which are no time", None)
    stages: Mapping[str, StageFigures | None] | None = None
    throughput: Throughput | None = None
    verdict: BoundVerdict | None = about("of a latency bound", None)
    spikes: tuple[Spike, ...] | None = about("the largest outliers", None)
    together: Together | None = about("several models at once", None)
    host: Any = None
    energy: Any = None
    warnings: tuple[str, ...] | None = None
    complete: bool | None = None
    error: str | Mapping[str, Any] | None = None
    seal: str = about("the sha256 of all else in the record; a change of it shows", "")
    http: Http | None = about("a server, measured from outside", None)

"""The record of kind bench."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from anynpu.records.build import Receipt
from anynpu.records.host import Host
from anynpu.records.shared import ErrorForm, Summary
from anynpu.records.web import Http
from anynpu.schema import Throughout, about, rest


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Samples in the order of their start, none left out, and what they support saying."""

    unit: str = "ms"
    samples: tuple[float, ...] = about("every sample, in order", ())
    started_s: tuple[float, ...] | None = about("when each sample started", None)
    batch: int = about("calls whose mean is one sample", 1)
    summary: Summary | None = about("what the samples support; null without samples", None)


@dataclass(frozen=True, kw_only=True)
class StageFigures:
    """How long one stage took, over all runs."""

    min: float | None = None
    median: float | None = None
    max: float | None = None
    samples: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Inferences in a second of wall time, from the start to the end of the last call."""

    per_s: float
    samples_per_query: int = 1
    wall_s: float | None = None
    paused_s: float | None = about(
        "how much longer the gaps between calls were than usual: the program was not let onto a core", None
    )


@dataclass(frozen=True, kw_only=True)
class BoundVerdict:
    """Whether a percentile keeps its bound."""

    met: bool | None = None
    percentile: float | None = None
    value_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    bound_ms: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Spike:
    """One of the largest outliers, and what may have caused it."""

    index: int = 0
    at_s: float | None = None
    value: float | None = None
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """How much slower a model is while others run, with its interval."""

    ratio: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cold:
    """The time before the first answer."""

    load_ms: float | None = None
    first_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelTogether:
    """One of several models that ran at the same time."""

    name: str = ""
    executed: str = ""
    cold: Cold | None = None
    alone: Latency | None = None
    together: Latency | None = None
    slowdown: Slowdown | None = about("of the medians, from their intervals", None)
    error: ErrorForm | None = None


@dataclass(frozen=True, kw_only=True)
class Together:
    """Several models that ran at the same time."""

    seconds: float | None = None
    cores_used: float | None = None
    models: tuple[ModelTogether, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LayerCount:
    """One layer of generated C: instructions that an emulator counted, which are not times."""

    index: int
    kind: str
    name: str
    output: str = about("the shape of what it makes")
    variant: str = about("plain, or the extension whose kernels it has")
    macs: int
    expected_instructions: int | None = about("what the generator chose the kernels by", None)
    instructions: int = about("counted, in steps of up to 40")


@dataclass(frozen=True, kw_only=True)
class WarmUpForm:
    """The runs before the measurement; `stable` is null where a number of them was asked for."""

    runs: int = 0
    seconds: float | None = None
    stable: bool | None = None
    change: float | None = None
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """Medians of the whole and of the parts' sum, and the share of the whole that no part explains."""

    end_to_end: float
    stages: float
    unexplained: float


@dataclass(frozen=True, kw_only=True)
class Late:
    """By how much queries were sent too late."""

    median: float
    max: float


@dataclass(frozen=True, kw_only=True)
class Queue:
    """How queries arrived."""

    queries: int
    unanswered: int
    arrived_per_s: float | None
    late_ms: Late


@dataclass(frozen=True, kw_only=True)
class TimerForm:
    """The clock of the measurement."""

    resolution_ns: float | None = None
    overhead_ns: float | None = None
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Whether every answer was the first one."""

    checked: int | None = about(default=None, optional=True)
    differ: int | None = about(default=None, optional=True)
    connections: int | None = about("that a server was reached by", None, optional=True)
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class EnergyForm:
    """The energy of a measurement; without a `source` there is none, and `why`."""

    source: str | None = None
    why: str | None = about(default=None, optional=True)
    label: str | None = None
    method: str | None = None
    rate_hz: float | None = about("of the meter's samples; null for a counter", None)
    samples: int | None = None
    window_s: float | None = None
    inferences: int | None = None
    average_w: float | None = None
    idle_w: float | None = None
    gross_j: float | None = None
    net_j: float | None = about("null where the machine drew no less at rest", None)
    gross_j_per_inference: float | None = None
    net_j_per_inference: float | None = None


@dataclass(frozen=True, kw_only=True)
class MemorySection:
    """A section of firmware and what it takes."""

    name: str
    flash_bytes: int = 0
    ram_bytes: int = 0
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class BoardMemory:
    """What firmware occupies; known answers in its flash are counted apart from what a product needs."""

    arena_bytes: int | None = None
    known_answer_bytes: int | None = about(default=None, optional=True)
    flash_bytes: int | None = about(default=None, optional=True)
    ram_bytes: int | None = about(default=None, optional=True)
    sections: tuple[MemorySection, ...] | None = about(default=None, optional=True)
    includes: str | None = about("what a product does not need", None, optional=True)
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Times, counts, streams, rate and bound as asked for."""

    min_time_s: float | None = None
    min_count: int | None = None
    max_time_s: float | None = None
    runs: int | None = None
    warm_up: int | None = None
    warm_up_cap_s: float | None = None
    streams: int | None = None
    qps: float | None = None
    bound_ms: float | None = None
    percentile: float | None = None


@dataclass(frozen=True, kw_only=True)
class BenchRecord(Throughout):
    """A measurement of how long an artifact takes."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    kind: Literal["bench"]
    anynpu: str = about("the version that wrote the record", "")
    at: str = about("when, UTC, ISO 8601", "", optional=True)
    artifact: str | None = about("the digest of what was measured", None)
    path: str | None = None
    fingerprint: str | None = None
    url: str | None = about("the server that was measured", None, optional=True)
    input: str = about("what was run", "")
    scenario: str = ""
    scope: str = ""
    executed: str = ""
    versions: Mapping[str, str] | None = about("of driver, firmware and runtime", None, optional=True)
    board: str | None = about("the board that measured itself", None, optional=True)
    unit: str = about("ms, or instructions where nothing but those was counted", "ms")
    clock: str = ""
    settings: BenchSettings | None = None
    seed: int | None = about("of the arrivals", None)
    warmup: int = about("runs before the samples", 0)
    runs: int = about("samples that are kept", 0)
    cold: Cold | None = None
    warm_up: WarmUpForm | None = None
    latency: Latency | None = about("times; null where none was measured", None)
    counts: Latency | None = about(
        "the same of counts, such as instructions of an emulator, which are not times", None, optional=True
    )
    layers: tuple[LayerCount, ...] | None = about("generated C layer by layer, with --layers", None, optional=True)
    throughput: Throughput | None = None
    stages: Mapping[str, StageFigures | None] = field(default_factory=dict)
    reconciled: Reconciled | None = about("how much of the whole the stages explain; null with one stage", None)
    queue: Queue | None = about("of the server scenario", None)
    verdict: BoundVerdict | None = about("of a latency bound", None)
    spikes: tuple[Spike, ...] = about("the largest outliers, the largest first", ())
    outputs: Checked | None = None
    timer: TimerForm | None = None
    host: Host | None = None
    energy: EnergyForm | None = None
    receipt: Receipt | None = about("the placement of the run", None, optional=True)
    tick_hz: int | None = about("of the board's timer; 0 counts instructions", None, optional=True)
    ticks: Mapping[str, tuple[int, ...]] | None = about(default=None, optional=True)
    per_inference: float | None = about("the mean of all inferences in one go", None, optional=True)
    known_answers: int | None = about(default=None, optional=True)
    memory: BoardMemory | None = about("of the board's firmware", None, optional=True)
    complete: bool = about("false for a measurement that broke off", True)
    error: ErrorForm | str | None = about("what broke it off", None)
    warnings: tuple[str, ...] | None = about("every reason to distrust the figures", None)
    together: Together | None = about("several models at once", None)
    http: Http | None = about("a server, measured from outside", None, optional=True)
    seal: str = about("the sha256 of all else in the record; a change of it shows", "", optional=True)
    rest: Mapping[str, object] = rest()

    @property
    def measured(self) -> Latency | None:
        """The samples: latencies, or counts that are not times."""
        return self.latency or self.counts

    @property
    def trouble(self) -> str:
        """What broke the measurement off, as a sentence, or ""."""
        return self.error.message if isinstance(self.error, ErrorForm) else self.error or ""

"""The record of kind compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from anynpu.records.shared import Fidelity, Summary, Threshold
from anynpu.schema import Throughout, about, rest

Letter = Literal["a", "b"]
LETTERS: tuple[Letter, Letter] = ("a", "b")
SAME = 0.99
"""Vectors at this mean cosine or above come from one model, quantised or not."""


@dataclass(frozen=True)
class SideInfo:
    """Who one of the two is that are compared."""

    name: str = ""
    artifact: str = ""
    fingerprint: str = ""
    executed: str = ""
    chip: str = ""
    tools: Mapping[str, str] | None = None
    options: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class Launches:
    """The samples of every launch."""

    a: tuple[tuple[float, ...], ...] = ()
    b: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class SideSummaries:
    """What all samples of a side support saying."""

    a: Summary | None = None
    b: Summary | None = None


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The latency of B by that of A, with its interval; above 1 is slower."""

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

    unit: str = "ms"
    input: str = about("what was run", "")
    order: str = about("of the launches, such as ABBAABBAAB", "")
    launches: Launches | None = None
    summary: SideSummaries | None = None
    medians: Medians | None = about("of which the ratio is: geometric means of the medians of launches", None)
    ratio: Ratio | None = None
    replicates: str | None = about("launches, or blocks where parts of one launch stand for them", None)
    p_value: float | None = about("of the permutation test", None)
    p_adjusted: float | None = about("after Holm's correction over all that is judged", None)
    equivalent: bool | None = about("whether the whole interval lies within the margin", None)
    verdict: str | None = about("better, worse, no difference or not comparable; null if it broke off", None)


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Accuracies of two sides on the same samples."""

    metric: str = ""
    samples: int | None = None
    a: float | None = None
    b: float | None = None
    difference: tuple[float | None, ...] = about("B minus A: mean, low, high", ())
    p_value: float | None = None
    test: str = ""
    higher_is_better: bool = True
    a_interval: tuple[float, ...] | None = None
    b_interval: tuple[float, ...] | None = None
    only_a_right: int | None = None
    only_b_right: int | None = None
    p_adjusted: float | None = None
    verdict: str = ""


@dataclass(frozen=True, kw_only=True)
class ServerSide:
    """One of two servers; lists have one figure a turn."""

    url: str = ""
    model: str = ""
    software: str = ""
    models: tuple[str, ...] = ()
    info_digest: str = ""
    width: int | None = None
    requests: int = 0
    failed: int = 0
    outcomes: Mapping[str, int] | None = None
    per_s: tuple[float, ...] = ()
    cores_used: tuple[float, ...] = ()
    cpu_ms_per_request: tuple[float, ...] = ()
    rss_bytes: tuple[float, ...] = ()
    program: str | None = None
    why: str = ""


@dataclass(frozen=True)
class ServerRatio:
    """A figure of B by that of A, with its interval, and whether it is a difference."""

    ratio: float
    low: float
    high: float
    p_value: float
    p_adjusted: float = 1.0
    verdict: str = ""


@dataclass(frozen=True)
class Agreement:
    """Of the vectors of the same texts; a triple is the mean with its 95 % interval over texts."""

    texts: int
    width_a: int
    width_b: int
    cosine: tuple[float, ...] | None
    """None where the widths differ."""
    least_cosine: float | None
    neighbours: int
    """The number of nearest texts that are compared."""
    overlap: tuple[float, ...] | None
    """The share of a text's nearest neighbours that both have; None for too few texts."""
    rank_correlation: tuple[float, ...] | None
    """Spearman's, of the similarities of a text to all others."""

    @property
    def figure(self) -> float | None:
        """The one figure to hold to a limit: the mean cosine, or the correlation of ranks where widths differ."""
        chosen = self.cosine or self.rank_correlation
        return None if chosen is None else chosen[0]

    @property
    def same(self) -> bool:
        return self.cosine is not None and self.cosine[0] >= SAME


@dataclass(frozen=True, kw_only=True)
class HttpVersus:
    """Two servers, measured in turn from outside."""

    a: ServerSide
    b: ServerSide
    connections: int | None = about("of every turn, in a closed loop", None)
    throughput: ServerRatio | None = about("of answers a second", None)
    cpu: ServerRatio | None = about("of the server's CPU time for one answer; null where it is not known of both", None)
    agreement: Agreement | None = about("null where the answers hold no vectors", None)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the machine was doing that could disturb a measurement, as far as it tells."""

    name: str | None = about(default=None, optional=True)
    cpus: int | None = None
    governor: str | None = None
    load: float | None = about("before the first launch", None)
    load_after: float | None = about("after the last", None)
    rest: Mapping[str, object] = rest()


@dataclass(frozen=True, kw_only=True)
class CompareRecord(Throughout):
    """B against A."""

    schema_version: int = about("the form of this kind of record", minimum=1)
    kind: Literal["compare"]
    anynpu: str = about("the version that wrote the record", "")
    at: str = about("when, UTC, ISO 8601", "")
    a: SideInfo | str | None = about("the reference", None)
    b: SideInfo | str | None = about("the candidate", None)
    reference: str = about("the digest of A", "")
    candidate: str = about("the digest of B", "")
    executed: tuple[str, ...] = about("what ran A, and what ran B", ())
    same_network: bool | None = about("whether the fingerprints are equal; if not, nothing is comparable", None)
    level: float | None = about("of the tests", None)
    margin: float | None = about("the smallest relative difference of interest", None)
    latency: LatencyVersus | None = about("times; null where none was measured", None)
    counts: LatencyVersus | None = about(
        "the same of counts, such as an emulator's instructions, which are not times", None
    )
    ratio: Ratio | None = about(default=None, optional=True)
    p_value: float | None = about(default=None, optional=True)
    accuracy: Accuracy | None = None
    outputs: Mapping[str, Fidelity] | None = None
    min_sqnr_db: float | None = about("the floor that outputs were held to", None)
    outputs_verdict: str | None = about("same or different", None)
    outputs_shortfall: str = about("in what the outputs differ, or an empty string", "")
    host: Conditions | None = None
    partial: bool = about("whether a device failed on the way; all samples until then are kept", False)
    failure: str = ""
    verdict: str | None = about("over everything; null if it broke off", None)
    gate: tuple[Threshold, ...] = about("every threshold in force, its default, and what set it", ())
    notes: tuple[str, ...] = about("sentences that belong to the figures", ())
    http: HttpVersus | None = about("two servers, measured in turn from outside", None, optional=True)
    seal: str = about("the sha256 of all else in the record; a change of it shows", "", optional=True)
    rest: Mapping[str, object] = rest()

    @property
    def measured(self) -> LatencyVersus | None:
        """The samples: latencies, or counts that are not times."""
        return self.latency or self.counts

    def side(self, letter: Letter) -> SideInfo:
        """Returns who a side is."""
        side = self.a if letter == "a" else self.b
        return side if isinstance(side, SideInfo) else SideInfo(side or "")

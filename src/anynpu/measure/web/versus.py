"""Two servers measured in turn (ABBA...), so that whatever the machine does hits both; the record "compare" of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from anynpu.errors import AnyNpuError, DeviceError
from anynpu.measure.compare import Measured, Rules, judge_latency, overall, record_of, verdict_of
from anynpu.measure.launch import order_of
from anynpu.measure.load import Settings, WarmUp
from anynpu.measure.significance import holm
from anynpu.measure.web.agreement import agreement
from anynpu.measure.web.bench import WebBench
from anynpu.measure.web.checks import check
from anynpu.measure.web.generator import generate
from anynpu.measure.web.limit import per_second
from anynpu.measure.web.target import closed_plan
from anynpu.records.compare import Agreement, CompareRecord, HttpVersus, ServerRatio, ServerSide, SideInfo
from anynpu.tensors import Array

LATENCY, THROUGHPUT, CPU = "latency", "throughput", "cpu"


@dataclass
class Side:
    """One server and what its turns gave."""

    bench: WebBench
    latencies: list[list[float]] = field(default_factory=list)
    per_s: list[float] = field(default_factory=list)
    cores_used: list[float] = field(default_factory=list)
    cpu_ms_per_request: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)
    requests: int = 0
    failed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    width: int = 0
    why: str = ""

    def take(self, settings: Settings, connections: int) -> None:
        """Measures one turn on fresh connections."""
        measured = self.bench.run(settings, connections, WarmUp(0, 0.0, None))
        if isinstance(measured.result.error, KeyboardInterrupt):
            raise measured.result.error
        self.requests += len(measured.traffic.attempts)
        self.failed += measured.checked.failed
        self.outcomes += measured.checked.outcomes
        samples = measured.result.trace.samples_ms()
        if samples:
            self.latencies.append(samples)
            self.per_s.append(per_second(measured))
        self.why = measured.why_no_server
        if measured.server is not None:
            self.cores_used.append(measured.server.cores_used)
            self.cpu_ms_per_request.append(measured.server.cpu_ms_per_request or 0.0)
            self.rss_bytes.append(measured.server.most_rss_bytes)
        if isinstance(measured.result.error, AnyNpuError):
            raise measured.result.error

    def vectors(self, timeout_s: float) -> Array | None:
        """Returns the vectors of all texts, each asked for once; None where answers hold none."""
        target = self.bench.target
        traffic = generate(closed_plan(target, len(target.payloads), timeout_s))
        checked = check(target.form, target.payloads, traffic)
        if checked.failed or traffic.error is not None:
            outcome = next(name for name in checked.outcomes if name != "200")
            raise DeviceError(f"{target.address}: {outcome} to one of the texts: {checked.example[:100]}", call="POST")
        if len(checked.first) != len(target.payloads):
            return None
        self.width = checked.width
        return np.concatenate([checked.first[number] for number in range(len(target.payloads))])

    def form(self) -> ServerSide:
        """Returns who the server is and what its turns gave."""
        target = self.bench.target
        return ServerSide(
            url=str(target.address),
            model=target.model,
            software=target.about.software,
            models=tuple(target.about.models),
            info_digest=target.about.info_digest,
            width=self.width or None,
            requests=self.requests,
            failed=self.failed,
            outcomes=dict(self.outcomes),
            per_s=tuple(self.per_s),
            cores_used=tuple(self.cores_used),
            cpu_ms_per_request=tuple(self.cpu_ms_per_request),
            rss_bytes=tuple(self.rss_bytes),
            program=self.bench.process.program if self.bench.process else None,
            why=self.why,
        )


def versus(
    a: Side,
    b: Side,
    launches: int,
    settings: Settings,
    connections: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[str, AnyNpuError | None]:
    """Measures both in turn and returns the order, and what broke it off if something did."""
    done, order = "", order_of(launches)
    for letter in order:
        try:
            (a if letter == "A" else b).take(settings, connections)
        except AnyNpuError as failure:
            return done, failure
        done += letter
        progress(len(done), len(order))
    return done, None


def agreed(a: Side, b: Side, timeout_s: float) -> Agreement | None:
    """Returns how far the vectors of the two agree."""
    of_a, of_b = a.vectors(timeout_s), b.vectors(timeout_s)
    return None if of_a is None or of_b is None or len(of_a) != len(of_b) else agreement(of_a, of_b)


def compared(
    a: Side, b: Side, order: str, rules: Rules, alike: Agreement | None, connections: int, failure: str
) -> CompareRecord:
    """Returns the record of a comparison."""
    targets = [side.bench.target for side in (a, b)]
    software = [f" of {target.about.software}" if target.about.software else "" for target in targets]
    info_a, info_b = (
        SideInfo(str(t.address), executed=f"model {t.model}{s}") for t, s in zip(targets, software, strict=True)
    )
    notes = ["client-side latency, closed loop: with the network and this client's own share"]
    for letter, side in (("A", a), ("B", b)):
        if side.failed:
            notes.append(f"{letter}: {side.failed} of {side.requests} requests failed: {dict(side.outcomes)}")
        if side.bench.process is None:
            notes.append(f"{letter}: CPU and memory not known ({side.why})")
    if alike is not None and not alike.same:
        notes.append("the vectors are not those of one model: the speeds are of two different models")
    measured = Measured(a.latencies, b.latencies, "ms", a.bench.target.source, order)
    record = record_of(info_a, info_b, rules, measured=measured, failure=failure, notes=notes)
    web = HttpVersus(a=a.form(), b=b.form(), connections=connections, agreement=alike)
    if failure or record.latency is None:
        return replace(record, http=web)
    each_s = _ratio(_each(a.per_s, True), _each(b.per_s, True), rules)
    ratios = {
        LATENCY: _ratio(a.latencies, b.latencies, rules),
        THROUGHPUT: replace(each_s, ratio=1 / each_s.ratio, low=1 / each_s.high, high=1 / each_s.low),
    }
    busy = (*a.cpu_ms_per_request, *b.cpu_ms_per_request)
    if len(busy) == len(a.per_s) + len(b.per_s) and min(busy) > 0:
        ratios[CPU] = _ratio(_each(a.cpu_ms_per_request), _each(b.cpu_ms_per_request), rules)
    adjusted = holm([each.p_value for each in ratios.values()])
    for (name, each), p_value in zip(list(ratios.items()), adjusted, strict=True):
        gain = math.log(each.ratio) * (1 if name == THROUGHPUT else -1)
        verdict = verdict_of(gain, p_value, rules.level, math.log1p(rules.margin))
        ratios[name] = replace(each, p_adjusted=p_value, verdict=verdict)
    latency, throughput = ratios[LATENCY], ratios[THROUGHPUT]
    return replace(
        record,
        latency=replace(record.latency, p_adjusted=latency.p_adjusted, verdict=latency.verdict),
        verdict=overall([latency.verdict, throughput.verdict]),
        http=replace(web, throughput=throughput, cpu=ratios.get(CPU)),
    )


def _each(figures: Sequence[float], inverse: bool = False) -> list[list[float]]:
    return [[1 / value if inverse else value] for value in figures]


def _ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], rules: Rules) -> ServerRatio:
    latency = judge_latency(a, b, rules)
    return ServerRatio(latency.ratio, latency.low, latency.high, latency.p_value)

"""The highest rate that a server keeps up with: closed loops say where it lies, open loops decide.

A rate is kept if every request got a right answer, as many were answered as came, the latency does not climb while the
rate stands still (a queue that grows), and the percentile keeps its bound where one is given.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from anynpu.measure import stats
from anynpu.measure.load import SERVER, SINGLE, Settings, WarmUp
from anynpu.measure.outcome import verdict
from anynpu.measure.web.bench import OPEN_CONNECTIONS, WebBench, WebResult
from anynpu.records.web import LimitStep, RateLimit

MOST_CONNECTIONS = 64
GAIN = 1.05
"""Twice the connections that answer less than 5 % more have reached the limit."""
ANSWERED = 0.95
CLIMB = 2.0
ROUNDS = 5
START = 0.9


def per_second(measured: WebResult) -> float:
    """Returns the right answers a second of wall time."""
    seconds = measured.result.trace.wall_s()
    return len(measured.checked.good) / seconds if seconds else 0.0


def not_kept(measured: WebResult) -> str:
    """Returns why an open loop's rate was too high for the server, or ""."""
    result, samples = measured.result, measured.result.trace.samples_ms()
    if measured.checked.failed or result.error is not None:
        return f"{measured.checked.failed} requests failed"
    if per_second(measured) < ANSWERED * result.trace.arrived_per_s:
        return f"{per_second(measured):.4g} a second were answered"
    bound = verdict(result.settings, samples, result.trace)
    if bound is not None and not bound.met:
        return bound.why
    part = len(samples) // 4
    if part >= 8:
        first, last = statistics.median(samples[:part]), statistics.median(samples[-part:])
        trend = stats.trend(samples)
        if last > CLIMB * first and trend.tau > 0.3 and trend.p_value < 0.01:
            return f"the latency climbs from {first:.3g} to {last:.3g} ms"
    return ""


def step_of(measured: WebResult, why: str = "") -> LimitStep:
    samples, settings = measured.result.trace.samples_ms(), measured.result.settings
    supported = len(samples) >= stats.needed(0.99)
    return LimitStep(
        rate_per_s=None if settings.qps is None else measured.result.trace.arrived_per_s,
        connections=measured.connections,
        answered_per_s=per_second(measured),
        median_ms=stats.percentile(samples, 0.5) if samples else None,
        p99_ms=stats.percentile(samples, 0.99) if supported else None,
        failed=measured.checked.failed,
        kept=not why,
        why=why,
    )


def find_limit(
    bench: WebBench,
    settings: Settings,
    connections: int | None,
    warm: WarmUp,
    tell: Callable[[LimitStep], None] = lambda step: None,
) -> tuple[RateLimit, WebResult]:
    """Returns the limit, and the run at the highest rate that was kept (or the last run where none was).

    A server that dies, or Ctrl-C, ends the search: the steps so far are kept, with the run that broke off.
    """
    steps: list[LimitStep] = []

    def run(wanted: Settings, count: int, judge: bool) -> tuple[WebResult, LimitStep]:
        result = bench.run(wanted, count, warm)
        steps.append(step_of(result, not_kept(result) if judge else ""))
        tell(steps[-1])
        return result, steps[-1]

    closed, count, best = replace(settings, scenario=SINGLE, qps=None, bound_ms=None), 1, 0.0
    while count <= (connections or MOST_CONNECTIONS):
        last, step = run(closed, count, False)
        if last.result.error is not None:
            return limit_of(steps, best), last
        if step.answered_per_s < GAIN * best and count > 2:
            best = max(best, step.answered_per_s)
            break
        best, count = max(best, step.answered_per_s), 2 * count
    low, high, kept, rate = 0.0, None, None, START * best
    for _ in range(ROUNDS):
        open_loop = replace(settings, scenario=SERVER, qps=rate).for_verdict()
        last, step = run(open_loop, connections or OPEN_CONNECTIONS, True)
        if last.result.error is not None:
            return limit_of(steps, best), last
        if step.kept:
            low, kept = rate, last
        else:
            high = rate
        rate = (low + high) / 2 if high is not None else 1.15 * rate
    return limit_of(steps, best), kept or last


def limit_of(steps: Sequence[LimitStep], closed_per_s: float) -> RateLimit:
    """Returns the limit that the steps show."""
    tried = [(each.rate_per_s, each.kept) for each in steps if each.rate_per_s is not None]
    within = max((rate for rate, kept in tried if kept), default=None)
    beyond = min((rate for rate, kept in tried if not kept), default=None)
    return RateLimit(kept_per_s=within, not_kept_per_s=beyond, closed_per_s=closed_per_s, steps=tuple(steps))

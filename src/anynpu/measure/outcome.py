"""The record of a bench made of a measurement, and what it warns of; its form is `records.bench`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from anynpu.errors import AnyNpuError
from anynpu.measure import host, stats
from anynpu.measure.energy import Meter, account
from anynpu.measure.load import OFFLINE, SERVER, Result, Settings, Trace
from anynpu.records.bench import (
    BenchRecord,
    BenchSettings,
    BoundVerdict,
    Checked,
    Cold,
    EnergyForm,
    Late,
    Latency,
    Queue,
    Reconciled,
    Spike,
    StageFigures,
    Throughput,
    TimerForm,
    WarmUpForm,
)
from anynpu.records.host import Host
from anynpu.records.shared import ErrorForm, Summary
from anynpu.schema import from_json

SCHEMA_VERSION = 2
SPIKES = 20
UNEXPLAINED = 0.05
LATE = 0.1
CHECKS = 0.1
PAUSED, HELD_BACK, STOLEN, ASLEEP_S = 0.1, 0.01, 0.05, 0.1
"""Shares of the window, of it, of the cores used, and seconds, from which on they are spoken of."""
BEHIND = 0.9
INTERRUPTED = 130


def figure(samples: Sequence[float]) -> StageFigures:
    """Returns what one stage took."""
    return StageFigures(
        min=min(samples), median=stats.percentile(samples, 0.5), max=max(samples), samples=tuple(samples)
    )


def latency(samples: Sequence[float], started_s: Sequence[float], unit: str = "ms", batch: int = 1) -> Latency:
    """Returns the samples and what they support saying."""
    summary = stats.summarize(samples) if samples else None
    return Latency(unit=unit, samples=tuple(samples), started_s=tuple(started_s), batch=batch, summary=summary)


def error_of(error: BaseException | None) -> ErrorForm | None:
    """Returns what broke a measurement off."""
    if error is None:
        return None
    if isinstance(error, AnyNpuError):
        return ErrorForm(kind=type(error).__name__, message=error.message, exit_status=error.exit_status)
    return ErrorForm(kind="Interrupted", message="interrupted", exit_status=INTERRUPTED)


def to_record(result: Result, meter: Meter | None = None) -> BenchRecord:
    """Returns a measurement without the name of what was measured."""
    trace, settings = result.trace, result.settings
    samples = trace.samples_ms()
    energy = account(meter, result.reading, result.idle, trace.calls)
    if result.energy_error is not None:
        energy = replace(energy, why=result.energy_error.message)
    record = BenchRecord(
        schema_version=SCHEMA_VERSION,
        kind="bench",
        executed=result.what,
        scenario=settings.scenario,
        scope=result.scope,
        clock="wall clock of this host",
        settings=BenchSettings(**{field.name: getattr(settings, field.name) for field in fields(BenchSettings)}),
        seed=settings.seed if settings.scenario == SERVER else None,
        warmup=result.warm_up.runs,
        runs=len(samples),
        cold=Cold(load_ms=result.load_ns / 1e6, first_ms=result.first_ns / 1e6),
        warm_up=WarmUpForm(**vars(result.warm_up)),
        latency=latency(samples, trace.started_s(), batch=trace.per if trace.mean else 1),
        throughput=_throughput(trace),
        stages={name: figure([ns / 1e6 for ns in values]) for name, values in trace.stages.items() if values},
        reconciled=reconcile(trace),
        queue=_queue(trace) if settings.scenario == SERVER else None,
        verdict=verdict(settings, samples, trace),
        spikes=_spikes(result, samples),
        outputs=from_json(Checked, result.outputs),
        timer=TimerForm(**vars(result.timer)),
        host=Host(
            **vars(result.machine), **vars(result.used), gc="disabled while timing", timed_share=_timed_share(result)
        ),
        energy=energy,
        complete=result.error is None,
        error=error_of(result.error),
    )
    return replace(record, warnings=tuple(warnings(result, record)))


def _throughput(trace: Trace) -> Throughput | None:
    """Returns inferences a second of the clock on the wall, never the inverse of a mean."""
    seconds = trace.wall_s()
    if not trace.calls or not seconds:
        return None
    paused_s = None
    if trace.queries is None:  # by how much the gaps between calls are longer than the usual one
        ends = [began + spent for began, spent in zip(trace.began, trace.elapsed, strict=True)]
        gaps = [began - ended for ended, began in zip(ends, trace.began[1:], strict=False)]
        usual = stats.percentile(gaps, 0.5) if gaps else 0.0
        paused_s = sum(max(0.0, gap - usual) for gap in gaps) / 1e9
    return Throughput(
        per_s=trace.calls / seconds,
        samples_per_query=1 if trace.mean else trace.per,
        wall_s=seconds,
        paused_s=paused_s,
    )


def _timed_share(result: Result) -> float:
    spent = result.trace.elapsed
    if result.settings.scenario == SERVER:
        waited = result.trace.stages.get("queue", [])
        spent = [ns - wait for ns, wait in zip(spent, waited, strict=False)]
    return min(1.0, sum(spent) / 1e9 / max(result.used.wall_s, 1e-9))


def reconcile(trace: Trace) -> Reconciled | None:
    """Returns how much of the end-to-end time the stages explain; None where there is one stage only."""
    if len(trace.stages) < 2 or not trace.elapsed:
        return None
    sums = [sum(parts) for parts in zip(*trace.stages.values(), strict=False)]
    whole, parts = sum(trace.elapsed[: len(sums)]), sum(sums)
    return Reconciled(
        end_to_end=stats.percentile(trace.elapsed, 0.5) / 1e6,
        stages=stats.percentile(sums, 0.5) / 1e6,
        unexplained=(whole - parts) / whole if whole else 0.0,
    )


def _queue(trace: Trace) -> Queue:
    late = [ns / 1e6 for ns in trace.late] or [0.0]
    queries = trace.queries or 0
    return Queue(
        queries=queries,
        unanswered=queries - len(trace.began),
        arrived_per_s=trace.arrived_per_s,
        late_ms=Late(median=stats.percentile(late, 0.5), max=max(late)),
    )


def verdict(settings: Settings, samples: Sequence[float], trace: Trace) -> BoundVerdict | None:
    """Returns whether the percentile keeps the bound; too few samples and unanswered queries never do."""
    if settings.bound_ms is None:
        return None
    p = settings.percentile / 100
    judged = BoundVerdict(met=False, percentile=settings.percentile, bound_ms=settings.bound_ms)
    missing = (trace.queries or 0) - len(samples)
    if missing or len(samples) < stats.needed(p):
        few = f"p{settings.percentile:g} needs {stats.needed(p)} queries, there are {len(samples)}"
        return replace(judged, why=f"{missing} of {trace.queries} queries were not answered" if missing else few)
    value = stats.percentile(samples, p)
    low, high = stats.interval(samples, p, effective=stats.effective_size(samples)) or (None, None)
    met = value <= settings.bound_ms
    why = f"p{settings.percentile:g} is {value:.4g} ms, {'within' if met else 'above'} {settings.bound_ms:g} ms"
    return replace(judged, met=met, value_ms=value, low_ms=low, high_ms=high, why=why)


def _spikes(result: Result, samples: Sequence[float]) -> tuple[Spike, ...]:
    """Returns the largest outliers, each with the moment and what may have caused it."""
    trace, spikes = result.trace, []
    started = trace.started_s()
    high = sorted(stats.outliers(samples) if samples else (), key=lambda i: -samples[i])[:SPIKES]
    for index in high:
        began = trace.began[index]
        causes = result.watch.causes(began, began + trace.elapsed[index])
        spikes.append(Spike(index=index, at_s=started[index], value=samples[index], causes=tuple(causes)))
    return tuple(spikes)


def warnings(result: Result, record: BenchRecord) -> list[str]:
    """Returns every reason to distrust the figures, as sentences."""
    settings, trace = result.settings, result.trace
    summary = record.latency.summary if record.latency else None
    sentences = []
    if (warm := result.warm_up).stable is False:
        change = "" if warm.change is None else f"; the median last changed by {warm.change:.1%}"
        sentences.append(f"still not stable after {warm.seconds:.1f} s of warm-up{change}")
    sentences += _of_summary(summary) if summary else ()
    if " twin of " in result.what:
        sentences.append("a twin computes what the NPU does, at this host's speed: the times say nothing about the NPU")
    if trace.mean and settings.scenario != OFFLINE:
        sentences.append(
            f"a call is too short for this clock (steps of {result.timer.resolution_ns:g} ns): "
            f"each sample is the mean of {trace.per} calls"
        )
    if trace.ended == "maximum count" and settings.scenario != SERVER:
        seconds = f"{trace.wall_s():.2g} of {settings.min_time_s:g} s"
        sentences.append(f"stopped after {len(trace.began):,} runs, the maximum that is kept, in {seconds}")
    if trace.ended == "maximum time" and settings.scenario != SERVER:
        runs = f"{len(trace.began)} of {settings.min_count} runs"
        sentences.append(f"stopped after {settings.max_time_s:g} s with {runs}")
    if record.reconciled is not None and abs(record.reconciled.unexplained) > UNEXPLAINED:
        sentences.append(f"{record.reconciled.unexplained:.1%} of the end-to-end time is in no stage")
    return [*sentences, *_of_host(result), *_of_energy(record.energy), *_of_queue(record), *_of_outputs(record)]


def _of_summary(summary: Summary) -> list[str]:
    sentences, trend, modes, count = [], summary.trend, summary.modes, summary.count
    if trend.p_value < 0.01 and abs(trend.tau) > 0.1:
        way = "rises" if trend.tau > 0 else "falls"
        sentences.append(f"drift: the latency {way} over the run (tau {trend.tau:.2f}, p {trend.p_value:.1g})")
    if modes is not None:
        sentences.append(
            f"two modes: around {modes.low:.4g} and {modes.high:.4g}, "
            f"{modes.share_high:.0%} of the samples in the upper one"
        )
    if summary.outliers:
        sentences.append(f"{len(summary.outliers)} of {count} samples are outliers; they are kept")
    if count >= 50 and summary.effective_size < 0.5 * count:
        worth = f"{count} samples are worth {summary.effective_size:.0f} independent ones"
        sentences.append(f"neighbouring samples are alike: {worth}; the intervals count with those")
    return sentences


def _of_host(result: Result) -> list[str]:
    used, sentences = result.used, []
    if (mhz := used.frequency_mhz) is not None and host.throttled(used):
        sentences.append(f"throttling: the cores fell from {mhz.first:.0f} to {mhz.last:.0f} MHz")
    if (used.other_cores_used or 0.0) > host.BUSY_CORES:
        sentences.append(f"other programs used {used.other_cores_used:.1f} cores meanwhile")
    if (used.stolen_cores or 0.0) > STOLEN * used.cores_used:
        sentences.append(f"the machine's host took {used.stolen_cores:.2f} cores away meanwhile (steal)")
    if used.held_back_s > HELD_BACK * used.wall_s:
        sentences.append(f"a CPU limit of this container or group stopped the program for {used.held_back_s:.2g} s")
    if used.asleep_s > ASLEEP_S:
        sentences.append(f"the machine slept for {used.asleep_s:.1f} s meanwhile; its clock stood still")
    sentences += _of_pauses(_throughput(result.trace))
    if used.gc_collections:
        sentences.append(f"the garbage collector ran {used.gc_collections} times, called by the session")
    share = _timed_share(result)
    if result.reading is not None and share < 1 - CHECKS and result.settings.scenario != SERVER:
        sentences.append(f"{1 - share:.0%} of the energy window is the harness's own checks")
    return sentences


def _of_energy(energy: EnergyForm | None) -> list[str]:
    if energy is None or energy.idle_w is None or energy.net_j is not None:
        return []
    drawn = f"{energy.idle_w:.3g} W before, {energy.average_w:.3g} W while measuring"
    return [f"the machine drew no less at rest ({drawn}): what an inference takes is not known"]


def _of_pauses(throughput: Throughput | None) -> list[str]:
    if throughput is None or throughput.paused_s is None or throughput.wall_s is None:
        return []
    wall, paused = throughput.wall_s, throughput.paused_s
    if paused <= PAUSED * wall:
        return []
    return [
        f"the program was kept waiting between calls for {paused:.2g} of {wall:.2g} s: "
        "the throughput holds that, the latencies do not"
    ]


def _of_queue(record: BenchRecord) -> list[str]:
    queue, summary = record.queue, record.latency.summary if record.latency else None
    if queue is None:
        return []
    sentences = []
    if queue.unanswered and record.complete:
        sentences.append(
            f"overload: {queue.unanswered} of {queue.queries} queries were not answered in time; "
            "the percentiles are those of the others, and too low"
        )
    asked, arrived = record.settings.qps if record.settings else None, queue.arrived_per_s or 0.0
    answered = record.throughput.per_s if record.throughput else 0.0
    if record.complete and not queue.unanswered and asked and answered < BEHIND * arrived:
        sentences.append(f"overload: {arrived:.4g} queries a second came, {answered:.4g} were answered")
    if summary is not None and queue.late_ms.median > LATE * summary.median:
        sentences.append(f"queries were sent {queue.late_ms.median:.3g} ms late (median); that counts as latency")
    return sentences


def _of_outputs(record: BenchRecord) -> list[str]:
    outputs, sentences = record.outputs, []
    if outputs is None:
        return []
    if outputs.differ:
        sentences.append(f"{outputs.differ} of {outputs.checked} answers differ from the first")
    if (outputs.connections or 1) > 1 and record.scenario != SERVER:
        opened = f"{outputs.connections} were opened, which counts as latency"
        sentences.append(f"the server closed the connection: {opened}")
    return sentences

"""The record of a bench, kind "bench", schema_version 2, and what it warns of.

    executed, scenario, scope, clock, unit ("ms", or "instructions" where nothing but those was counted), input
    warmup, runs           runs before and samples kept
    settings               times, counts, streams, qps, bound, percentile as asked for
    seed                   of the arrivals (server), else None
    cold                   {load_ms, first_ms}
    warm_up                {runs, seconds, stable (None: a number was asked for), change}
    latency                {unit, samples, started_s, batch, summary}; the samples in the order of their start, none
                           left out; summary as measure.stats.Summary.to_json() gives it, None without samples;
                           None where time was not measured
    counts                 the same of instructions, where those were counted and not time (a board of an emulator)
    throughput             {per_s, samples_per_query, wall_s, paused_s}: inferences a second of wall time, from the
                           start to the end of the last call; paused_s is how much longer the gaps between calls were
                           than they usually are: time in which the program was not let onto a core
    stages                 {name: {min, median, max, samples}}; empty where several calls make one sample
    reconciled             {end_to_end, stages, unexplained}: medians of the whole and of the parts' sum, share of it
                           that no part explains; None with one part
    queue                  {queries, unanswered, arrived_per_s, late_ms: {median, max}} (server), else None
    verdict                {met, percentile, value_ms, low_ms, high_ms, bound_ms, why} with a bound, else None
    spikes                 [{index, at_s, value, causes}] of the outliers, largest first, SPIKES at most
    outputs                {checked, differ, crc32}
    timer                  {resolution_ns, overhead_ns}
    host                   the machine, and what was used in the measured window; "gc" says what the collector did
    energy                 measure.energy.account
    warnings               sentences
    complete, error        False and {kind, message, exit_status} for a measurement that broke off
    together               with several models at once, measure.together; else None
Of a board also: board, tick_hz, ticks, per_inference, known_answers, memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anynpu.errors import AnyNpuError
from anynpu.measure import host, stats
from anynpu.measure.energy import Meter, account
from anynpu.measure.load import OFFLINE, SERVER, Result, Settings, Trace, WarmUp

SPIKES = 20
UNEXPLAINED = 0.05
LATE = 0.1
CHECKS = 0.1
PAUSED, HELD_BACK, STOLEN, ASLEEP_S = 0.1, 0.01, 0.05, 0.1
"""Shares of the window, of it, of the cores used, and seconds, from which on they are spoken of."""
BEHIND = 0.9
INTERRUPTED = 130


def figure(samples: Sequence[float]) -> dict[str, Any]:
    """Returns one stage as plain data."""
    return {
        "min": min(samples),
        "median": stats.percentile(samples, 0.5),
        "max": max(samples),
        "samples": list(samples),
    }


def latency(samples: Sequence[float], started_s: Sequence[float], unit: str = "ms", batch: int = 1) -> dict[str, Any]:
    """Returns the samples and what they support saying."""
    summary = stats.summarize(samples).to_json() if samples else None
    return {
        "unit": unit,
        "samples": list(samples),
        "started_s": list(started_s),
        "batch": batch,
        "summary": summary,
    }


def error_of(error: BaseException | None) -> dict[str, Any] | None:
    """Returns what broke a measurement off as plain data."""
    if error is None:
        return None
    if isinstance(error, AnyNpuError):
        return {"kind": type(error).__name__, "message": error.message, "exit_status": error.exit_status}
    return {"kind": "Interrupted", "message": "interrupted", "exit_status": INTERRUPTED}


def to_record(result: Result, meter: Meter | None = None) -> dict[str, Any]:
    """Returns a measurement as plain data, without the name of what was measured."""
    trace, settings = result.trace, result.settings
    samples = trace.samples_ms()
    stages = {name: figure([ns / 1e6 for ns in values]) for name, values in trace.stages.items() if values}
    found: dict[str, Any] = {
        "executed": result.what,
        "scenario": settings.scenario,
        "scope": result.scope,
        "unit": "ms",
        "clock": "wall clock of this host",
        "settings": _settings(settings),
        "seed": settings.seed if settings.scenario == SERVER else None,
        "warmup": result.warm_up.runs,
        "runs": len(samples),
        "cold": {"load_ms": result.load_ns / 1e6, "first_ms": result.first_ns / 1e6},
        "warm_up": vars(result.warm_up),
        "latency": latency(samples, trace.started_s(), batch=trace.per if trace.mean else 1),
        "throughput": _throughput(trace),
        "stages": stages,
        "reconciled": reconcile(trace),
        "queue": _queue(trace) if settings.scenario == SERVER else None,
        "verdict": verdict(settings, samples, trace),
        "spikes": _spikes(result, samples),
        "outputs": result.outputs,
        "timer": vars(result.timer),
        "host": {**result.machine, **result.used, "gc": "disabled while timing", "timed_share": _timed_share(result)},
        "energy": account(meter, result.reading, result.idle, trace.calls),
        "complete": result.error is None,
        "error": error_of(result.error),
    }
    if result.energy_error is not None:
        found["energy"]["why"] = result.energy_error.message
    return {**found, "warnings": warnings(result, found), "together": None}


def _settings(settings: Settings) -> dict[str, Any]:
    named = ("min_time_s", "min_count", "max_time_s", "runs", "warm_up", "warm_up_cap_s", "streams", "qps")
    return {name: getattr(settings, name) for name in (*named, "bound_ms", "percentile")}


def _throughput(trace: Trace) -> dict[str, Any] | None:
    """Returns inferences a second of the clock on the wall, never the inverse of a mean."""
    seconds = trace.wall_s()
    if not trace.calls or not seconds:
        return None
    return {
        "per_s": trace.calls / seconds,
        "samples_per_query": 1 if trace.mean else trace.per,
        "wall_s": seconds,
        "paused_s": None if trace.queries is not None else _paused_s(trace),
    }


def _paused_s(trace: Trace) -> float:
    """Returns by how much the gaps between calls are longer than the usual one."""
    ends = [began + spent for began, spent in zip(trace.began, trace.elapsed, strict=True)]
    gaps = [began - ended for ended, began in zip(ends, trace.began[1:], strict=False)]
    usual = stats.percentile(gaps, 0.5) if gaps else 0.0
    return sum(max(0.0, gap - usual) for gap in gaps) / 1e9


def _timed_share(result: Result) -> float:
    spent = result.trace.elapsed
    if result.settings.scenario == SERVER:
        waited = result.trace.stages.get("queue", [])
        spent = [ns - wait for ns, wait in zip(spent, waited, strict=False)]
    wall: float = result.used["wall_s"]
    return min(1.0, sum(spent) / 1e9 / max(wall, 1e-9))


def reconcile(trace: Trace) -> dict[str, Any] | None:
    """Returns how much of the end-to-end time the stages explain; None where there is one stage only."""
    if len(trace.stages) < 2 or not trace.elapsed:
        return None
    sums = [sum(parts) for parts in zip(*trace.stages.values(), strict=False)]
    whole, parts = sum(trace.elapsed[: len(sums)]), sum(sums)
    return {
        "end_to_end": stats.percentile(trace.elapsed, 0.5) / 1e6,
        "stages": stats.percentile(sums, 0.5) / 1e6,
        "unexplained": (whole - parts) / whole if whole else 0.0,
    }


def _queue(trace: Trace) -> dict[str, Any]:
    late = [ns / 1e6 for ns in trace.late] or [0.0]
    queries = trace.queries or 0
    return {
        "queries": queries,
        "unanswered": queries - len(trace.began),
        "arrived_per_s": trace.arrived_per_s,
        "late_ms": {"median": stats.percentile(late, 0.5), "max": max(late)},
    }


def verdict(settings: Settings, samples: Sequence[float], trace: Trace) -> dict[str, Any] | None:
    """Returns whether the percentile keeps the bound; too few samples and unanswered queries never do."""
    if settings.bound_ms is None:
        return None
    p = settings.percentile / 100
    found: dict[str, Any] = {"percentile": settings.percentile, "bound_ms": settings.bound_ms}
    missing = (trace.queries or 0) - len(samples)
    if missing or len(samples) < stats.needed(p):
        few = f"p{settings.percentile:g} needs {stats.needed(p)} queries, there are {len(samples)}"
        why = f"{missing} of {trace.queries} queries were not answered" if missing else few
        return {"met": False, **found, "value_ms": None, "low_ms": None, "high_ms": None, "why": why}
    value = stats.percentile(samples, p)
    low, high = stats.interval(samples, p, effective=stats.effective_size(samples)) or (None, None)
    met = value <= settings.bound_ms
    why = f"p{settings.percentile:g} is {value:.4g} ms, {'within' if met else 'above'} {settings.bound_ms:g} ms"
    return {"met": met, **found, "value_ms": value, "low_ms": low, "high_ms": high, "why": why}


def _spikes(result: Result, samples: Sequence[float]) -> list[dict[str, Any]]:
    """Returns the largest outliers, each with the moment and what may have caused it."""
    trace, found = result.trace, []
    started = trace.started_s()
    high = sorted(stats.outliers(samples) if samples else (), key=lambda i: -samples[i])[:SPIKES]
    for index in high:
        began = trace.began[index]
        causes = result.watch.causes(began, began + trace.elapsed[index])
        found.append({"index": index, "at_s": started[index], "value": samples[index], "causes": causes})
    return found


def warnings(result: Result, record: Mapping[str, Any]) -> list[str]:
    """Returns every reason to distrust the figures, as sentences."""
    settings, trace = result.settings, result.trace
    found = [*_of_warm_up(result.warm_up), *_of_summary(record["latency"]["summary"])]
    if " twin of " in result.what:
        found.append("a twin computes what the NPU does and says nothing of its time: these are times of this host")
    if trace.mean and settings.scenario != OFFLINE:
        found.append(
            f"a call is too short for this clock (steps of {result.timer.resolution_ns:g} ns): "
            f"each sample is the mean of {trace.per} calls"
        )
    if trace.ended == "maximum count" and settings.scenario != SERVER:
        seconds = f"{trace.wall_s():.2g} of {settings.min_time_s:g} s"
        found.append(f"stopped after {len(trace.began):,} runs, the most that are kept, in {seconds}")
    if trace.ended == "maximum time" and settings.scenario != SERVER:
        found.append(f"stopped after {settings.max_time_s:g} s with {len(trace.began)} of {settings.min_count} runs")
    parts = record["reconciled"]
    if parts is not None and abs(parts["unexplained"]) > UNEXPLAINED:
        found.append(f"{parts['unexplained']:.1%} of the end-to-end time is in no stage")
    return [*found, *_of_host(result), *_of_energy(record["energy"]), *_of_queue(record), *_of_outputs(record)]


def _of_warm_up(warm: WarmUp) -> list[str]:
    if warm.stable is not False:
        return []
    change = "" if warm.change is None else f"; the median last changed by {warm.change:.1%}"
    return [f"still not stable after {warm.seconds:.1f} s of warm-up{change}"]


def _of_summary(summary: Mapping[str, Any] | None) -> list[str]:
    if summary is None:
        return []
    found, trend, modes, count = [], summary["trend"], summary["modes"], summary["count"]
    if trend["p_value"] < 0.01 and abs(trend["tau"]) > 0.1:
        way = "rises" if trend["tau"] > 0 else "falls"
        found.append(f"drift: the latency {way} over the run (tau {trend['tau']:.2f}, p {trend['p_value']:.1g})")
    if modes is not None:
        found.append(
            f"two modes: around {modes['low']:.4g} and {modes['high']:.4g}, "
            f"{modes['share_high']:.0%} of the samples in the upper one"
        )
    if summary["outliers"]:
        found.append(f"{len(summary['outliers'])} of {count} samples are outliers; they are kept")
    if count >= 50 and summary["effective_size"] < 0.5 * count:
        worth = f"{count} samples are worth {summary['effective_size']:.0f} independent ones"
        found.append(f"neighbouring samples are alike: {worth}; the intervals count with those")
    return found


def _of_host(result: Result) -> list[str]:
    used, found = result.used, []
    if host.throttled(used):
        mhz = used["frequency_mhz"]
        found.append(f"throttling: the cores fell from {mhz['first']:.0f} to {mhz['last']:.0f} MHz")
    if (used["other_cores_used"] or 0.0) > host.BUSY_CORES:
        found.append(f"other programs used {used['other_cores_used']:.1f} cores meanwhile")
    if (used["stolen_cores"] or 0.0) > STOLEN * used["cores_used"]:
        found.append(f"the machine's host took {used['stolen_cores']:.2f} cores away meanwhile (steal)")
    if used["held_back_s"] > HELD_BACK * used["wall_s"]:
        found.append(f"a CPU limit of this container or group stopped the program for {used['held_back_s']:.2g} s")
    if used["asleep_s"] > ASLEEP_S:
        found.append(f"the machine slept for {used['asleep_s']:.1f} s meanwhile; its clock stood still")
    found += _of_pauses(result)
    if used["gc_collections"]:
        found.append(f"the garbage collector ran {used['gc_collections']} times, called by the session")
    share = _timed_share(result)
    if result.reading is not None and share < 1 - CHECKS and result.settings.scenario != SERVER:
        found.append(f"{1 - share:.0%} of the energy window is the harness's own checks")
    return found


def _of_energy(energy: Mapping[str, Any]) -> list[str]:
    if energy.get("idle_w") is None or energy["net_j"] is not None:
        return []
    drawn = f"{energy['idle_w']:.3g} W before, {energy['average_w']:.3g} W while measuring"
    return [f"the machine drew no less at rest ({drawn}): what an inference takes is not known"]


def _of_pauses(result: Result) -> list[str]:
    """Says what the throughput holds and the latencies do not."""
    throughput, found = _throughput(result.trace), []
    if throughput is None or throughput["paused_s"] is None:
        return []
    wall, paused = throughput["wall_s"], throughput["paused_s"]
    if paused > PAUSED * wall:
        found.append(
            f"the program was kept waiting between calls for {paused:.2g} of {wall:.2g} s: "
            "the throughput holds that, the latencies do not"
        )
    return found


def _of_queue(record: Mapping[str, Any]) -> list[str]:
    queue, summary = record["queue"], record["latency"]["summary"]
    if queue is None:
        return []
    found = []
    if queue["unanswered"] and record["complete"]:
        found.append(
            f"overload: {queue['unanswered']} of {queue['queries']} queries were not answered in time; "
            "the percentiles are those of the others, and too low"
        )
    asked, done = record["settings"]["qps"], (record["throughput"] or {"per_s": 0.0})["per_s"]
    if record["complete"] and not queue["unanswered"] and asked and done < BEHIND * queue["arrived_per_s"]:
        found.append(f"overload: {queue['arrived_per_s']:.4g} queries a second came, {done:.4g} were answered")
    if summary is not None and queue["late_ms"]["median"] > LATE * summary["median"]:
        found.append(f"queries were sent {queue['late_ms']['median']:.3g} ms late (median); that counts as latency")
    return found


def _of_outputs(record: Mapping[str, Any]) -> list[str]:
    outputs, found = record["outputs"], []
    if outputs.get("differ"):
        found.append(f"{outputs['differ']} of {outputs['checked']} answers differ from the first")
    if outputs.get("connections", 1) > 1 and record["scenario"] != SERVER:
        found.append(f"the server closed the connection: {outputs['connections']} were opened, which counts as latency")
    return found

"""The record of a bench as text."""

from __future__ import annotations

from collections.abc import Mapping

import click

from anynpu.cli.receipt import lines
from anynpu.cli.table import print_table
from anynpu.measure import stats
from anynpu.measure.bench import INSTRUCTIONS
from anynpu.measure.subject import HTTP
from anynpu.records.bench import BenchRecord, StageFigures, Together
from anynpu.records.shared import Summary
from anynpu.report.figures import versions_text


def show(record: BenchRecord) -> None:
    """Prints a measurement of this host."""
    click.echo(f"executed: {record.executed}{versions_text(record.versions)}")
    if (warm := record.warm_up) and record.host:
        click.echo(
            f"{record.scenario}, {record.scope}: {record.runs:,} runs in {record.host.wall_s:.1f} s after "
            f"{warm.runs:,} to warm up ({warm.seconds:.1f} s), on {record.input}"
        )
    if cold := record.cold:
        click.echo(f"cold: load {number(cold.load_ms)} ms, first run {number(cold.first_ms)} ms")
    if record.latency and record.latency.summary:
        print_table(latency_rows(record.latency.summary))
    if record.together is not None:
        print_table(_together_rows(record.together), "several models at once")
        click.echo(f"cores used by all: {number(record.together.cores_used)}")
    if len(record.stages) > 1:
        print_table(_stage_rows(record.stages, record.unit, "{:.4g}"))
    if (parts := record.reconciled) is not None:
        click.echo(
            f"end to end {parts.end_to_end:.4g} ms, stages {parts.stages:.4g} ms (medians): "
            f"{parts.unexplained:.1%} of the time is in no stage"
        )
    if record.throughput is not None:
        click.echo(f"throughput: {record.throughput.per_s:,.4g} inferences/s")
    if host := record.host:
        delta, workers = host.rss_delta_bytes, host.worker_processes
        theirs = f" ({host.worker_cpu_s / host.wall_s:.2f} by {workers} of its processes)" if workers else ""
        whose = "cores used by this client" if record.scope == HTTP else "cores used"
        click.echo(
            f"{whose}: {host.cores_used:.2f}{theirs}; memory: {host.peak_rss_bytes / 2**20:.1f} MiB at most in "
            f"{host.peak_rss_of}" + ("" if delta is None else f", {delta / 2**20:.1f} MiB above its start")
        )
    if energy := record.energy:
        text = f"not measured ({energy.why})"
        if energy.source is not None and energy.gross_j_per_inference is not None:
            net = energy.net_j_per_inference
            rate = "" if energy.rate_hz is None else f", {energy.rate_hz:.3g} samples/s"
            above = "idle not known" if net is None else f"{1000 * net:.4g} mJ net"
            gross = f"{1000 * energy.gross_j_per_inference:.4g} mJ an inference gross"
            text = f"{gross}, {above} ({energy.source}{rate}; {energy.label})"
        click.echo(f"energy: {text}")
    show_verdict(record)
    for spike in record.spikes[:3]:
        causes = ", ".join(spike.causes) or "cause unknown"
        click.echo(f"spike: {spike.value:.4g} ms at {spike.at_s:.3f} s ({causes})")
    show_break(record)
    for line in lines(record.receipt) if record.receipt else ():
        click.echo(line)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{low:.4g} .. {'?' if high is None else f'{high:.4g}'}"


def latency_rows(summary: Summary, name: str = "latency") -> list[dict[str, str]]:
    """Returns the figures that the samples support, and how many samples the others need."""
    low, high = summary.median_interval or (None, None)
    rows: list[tuple[str, float | None, str]] = [
        ("min", summary.min, ""),
        ("median", summary.median, _interval(low, high)),
    ]
    for p in stats.PERCENTILES[1:]:
        estimate = summary.percentiles.get(f"p{100 * p:g}")
        between = _interval(estimate.low, estimate.high) if estimate else f"needs {stats.needed(p):,} runs"
        rows.append((f"p{100 * p:g}", estimate.value if estimate else None, between))
    rows += [("max", summary.max, ""), ("mean", summary.mean, "")]
    return [{name: figure, "ms": number(value), "95 % interval": between} for figure, value, between in rows]


def _together_rows(together: Together) -> list[dict[str, str]]:
    rows = []
    for model in together.models:
        alone, shared = (run.summary if run else None for run in (model.alone, model.together))
        slow = model.slowdown
        rows.append(
            {
                "model": model.name,
                "alone ms": number(alone.median if alone else None),
                "together ms": number(shared.median if shared else None),
                "slowdown": number(slow.ratio if slow else None),
                "interval": _interval(slow.low, slow.high) if slow else "-",
            }
        )
    return rows


def _stage_rows(stages: Mapping[str, StageFigures | None], unit: str, shown: str) -> list[dict[str, str]]:
    return [
        {
            "stage": name,
            "unit": unit,
            "min": shown.format(stage.min),
            "median": shown.format(stage.median),
            "max": shown.format(stage.max),
        }
        for name, stage in stages.items()
        if stage
    ]


def show_verdict(record: BenchRecord) -> None:
    """Prints whether the bound was kept, and every reason to distrust the figures."""
    if record.verdict is not None:
        click.echo(f"bound {'kept' if record.verdict.met else 'NOT kept'}: {record.verdict.why}")
    for line in record.warnings or ():
        click.echo(f"warning: {line}")


def show_break(record: BenchRecord) -> None:
    if not record.complete:
        click.echo(f"INCOMPLETE after {record.runs} runs: {record.trouble}")


def show_board(record: BenchRecord) -> None:
    """Prints what a board measured of itself."""
    click.echo(f"executed: {record.executed}{versions_text(record.versions)}")
    click.echo(f"clock: {record.clock}; {record.runs} runs after {record.warmup} to warm up, on {record.input}")
    shown = "{:,.0f}" if record.unit == INSTRUCTIONS else "{:.4g}"
    print_table(_stage_rows(record.stages, record.unit, shown))
    click.echo(f"in one go: {shown.format(record.per_inference)} {record.unit} per inference")
    if record.layers:
        click.echo("instructions by layer, counted by the emulator: not cycles and not time")
        print_table(
            [
                {
                    "layer": f"{layer.index:02d} {layer.kind}",
                    "output": layer.output,
                    "kernels": layer.variant,
                    "MACs": f"{layer.macs:,}" if layer.macs else "-",
                    "instructions": f"{layer.instructions:,}",
                    "per MAC": f"{layer.instructions / layer.macs:.2f}" if layer.macs else "-",
                    "expected": "-" if layer.expected_instructions is None else f"{layer.expected_instructions:,}",
                }
                for layer in record.layers
            ]
        )
    if record.memory and record.memory.flash_bytes is not None:
        memory = record.memory
        click.echo(
            f"flash {memory.flash_bytes:,} B (known answers {memory.known_answer_bytes:,}), "
            f"RAM {memory.ram_bytes:,} B, arena {memory.arena_bytes:,} B"
        )
        if memory.includes:
            click.echo(f"these include {memory.includes}")
        print_table(
            [
                {"section": each.name, "flash": str(each.flash_bytes), "RAM": str(each.ram_bytes)}
                for each in memory.sections or ()
            ]
        )
    show_break(record)

"""The record of a bench as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from anynpu.cli.receipt import lines
from anynpu.cli.table import print_table
from anynpu.measure import stats
from anynpu.measure.bench import INSTRUCTIONS
from anynpu.measure.subject import HTTP
from anynpu.report.figures import versions_of

Record = Mapping[str, Any]


def show(record: Record) -> None:
    """Prints a measurement of this host."""
    warm, latency, host = record["warm_up"], record["latency"], record["host"]
    click.echo(f"executed: {record['executed']}{versions_of(record)}")
    click.echo(
        f"{record['scenario']}, {record['scope']}: {record['runs']:,} runs in {host['wall_s']:.1f} s after "
        f"{warm['runs']:,} to warm up ({warm['seconds']:.1f} s), on {record['input']}"
    )
    click.echo(f"cold: load {record['cold']['load_ms']:.4g} ms, first run {record['cold']['first_ms']:.4g} ms")
    if latency["summary"] is not None:
        print_table(latency_rows(latency["summary"]))
    if record["together"] is not None:
        print_table(_together_rows(record["together"]), "several models at once")
        click.echo(f"cores used by all: {number(record['together']['cores_used'])}")
    _show_stages(record)
    _show_rest(record)
    for line in lines(record["receipt"]) if record.get("receipt") else ():
        click.echo(line)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{low:.4g} .. {'?' if high is None else f'{high:.4g}'}"


def latency_rows(summary: Record, name: str = "latency") -> list[dict[str, str]]:
    """Returns the figures that the samples support, and how many samples the others need."""
    middle = _interval(*(summary["median_interval"] or (None, None)))
    rows = [("min", summary["min"], ""), ("median", summary["median"], middle)]
    for p in stats.PERCENTILES[1:]:
        found = summary["percentiles"].get(f"p{100 * p:g}")
        told = _interval(found["low"], found["high"]) if found else f"needs {stats.needed(p):,} runs"
        rows.append((f"p{100 * p:g}", found["value"] if found else None, told))
    rows += [("max", summary["max"], ""), ("mean", summary["mean"], "")]
    return [{name: figure, "ms": number(value), "95 % interval": told} for figure, value, told in rows]


def _together_rows(together: Record) -> list[dict[str, str]]:
    rows = []
    for model in together["models"]:
        alone, shared = model["alone"]["summary"], (model["together"] or {"summary": None})["summary"]
        slow = model["slowdown"]
        rows.append(
            {
                "model": model["name"],
                "alone ms": number(alone and alone["median"]),
                "together ms": number(shared and shared["median"]),
                "slowdown": number(slow and slow["ratio"]),
                "interval": _interval(slow["low"], slow["high"]) if slow else "-",
            }
        )
    return rows


def _show_stages(record: Record) -> None:
    if len(record["stages"]) > 1:
        print_table(_stage_rows(record["stages"], record["unit"], "{:.4g}"))
    if record["reconciled"] is not None:
        parts = record["reconciled"]
        click.echo(
            f"end to end {parts['end_to_end']:.4g} ms, stages {parts['stages']:.4g} ms (medians): "
            f"{parts['unexplained']:.1%} of the time is in no stage"
        )


def _stage_rows(stages: Record, unit: str, shown: str) -> list[dict[str, str]]:
    return [
        {"stage": name, "unit": unit, **{key: shown.format(figure[key]) for key in ("min", "median", "max")}}
        for name, figure in stages.items()
    ]


def _show_rest(record: Record) -> None:
    host = record["host"]
    if record["throughput"] is not None:
        click.echo(f"throughput: {record['throughput']['per_s']:,.4g} inferences/s")
    delta, workers = host["rss_delta_bytes"], host["worker_processes"]
    theirs = f" ({host['worker_cpu_s'] / host['wall_s']:.2f} by {workers} of its processes)" if workers else ""
    whose = "cores used by this client" if record["scope"] == HTTP else "cores used"
    click.echo(
        f"{whose}: {host['cores_used']:.2f}{theirs}; memory: {host['peak_rss_bytes'] / 2**20:.1f} MiB at most in "
        f"{host['peak_rss_of']}" + ("" if delta is None else f", {delta / 2**20:.1f} MiB above its start")
    )
    click.echo(f"energy: {_energy(record['energy'])}")
    if record["verdict"] is not None:
        click.echo(f"bound {'kept' if record['verdict']['met'] else 'NOT kept'}: {record['verdict']['why']}")
    for line in record["warnings"]:
        click.echo(f"warning: {line}")
    for spike in record["spikes"][:3]:
        click.echo(
            f"spike: {spike['value']:.4g} ms at {spike['at_s']:.3f} s ({', '.join(spike['causes']) or 'cause unknown'})"
        )
    show_break(record)


def _energy(energy: Record) -> str:
    if energy["source"] is None:
        return f"not measured ({energy['why']})"
    net = energy["net_j_per_inference"]
    rate = "" if energy["rate_hz"] is None else f", {energy['rate_hz']:.3g} samples/s"
    told = "idle not known" if net is None else f"{1000 * net:.4g} mJ net"
    gross = f"{1000 * energy['gross_j_per_inference']:.4g} mJ an inference gross"
    return f"{gross}, {told} ({energy['source']}{rate}; {energy['label']})"


def show_break(record: Record) -> None:
    if not record["complete"]:
        click.echo(f"INCOMPLETE after {record['runs']} runs: {record['error']['message']}")


def show_board(record: Record) -> None:
    """Prints what a board measured of itself."""
    click.echo(f"executed: {record['executed']}{versions_of(record)}")
    click.echo(
        f"clock: {record['clock']}; {record['runs']} runs after {record['warmup']} to warm up, on {record['input']}"
    )
    shown = "{:,.0f}" if record["unit"] == INSTRUCTIONS else "{:.4g}"
    print_table(_stage_rows(record["stages"], record["unit"], shown))
    click.echo(f"in one go: {shown.format(record['per_inference'])} {record['unit']} per inference")
    memory = record.get("memory", {})
    if "flash_bytes" in memory:
        click.echo(
            f"flash {memory['flash_bytes']:,} B (known answers {memory['known_answer_bytes']:,}), "
            f"RAM {memory['ram_bytes']:,} B, arena {memory['arena_bytes']:,} B"
        )
        if "includes" in memory:
            click.echo(f"these include {memory['includes']}")
        rows = [{name: str(value) for name, value in part.items()} for part in memory["sections"]]
        print_table([{"section": r["name"], "flash": r["flash_bytes"], "RAM": r["ram_bytes"]} for r in rows])
    show_break(record)

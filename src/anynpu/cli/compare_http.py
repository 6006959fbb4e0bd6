"""anynpu compare http://A http://B: two servers, measured in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from anynpu.cli.bench_http import BATCH, TOKEN
from anynpu.cli.bench_text import number
from anynpu.cli.command import refuse_unused
from anynpu.cli.table import print_table
from anynpu.errors import AccuracyError, AnyNpuError, ConfigError
from anynpu.measure.compare import Rules, fewest_launches
from anynpu.measure.launch import conditions
from anynpu.measure.load import Settings
from anynpu.measure.web.address import Address
from anynpu.measure.web.bench import WebBench
from anynpu.measure.web.forms import read_inputs
from anynpu.measure.web.process import find_server
from anynpu.measure.web.target import open_target
from anynpu.measure.web.versus import Side, agreed, compared, versus
from anynpu.records.compare import LETTERS, Agreement, CompareRecord, ServerSide, SideSummaries
from anynpu.records.shared import Summary

OPTIONS = (
    click.option(
        "--connections",
        type=click.IntRange(1, 1000),
        default=1,
        show_default=True,
        help="Connections to a server; each waits for its answer.",
    ),
    click.option("--model", metavar="NAME", help="The model of server A (and of B); its first by default."),
    click.option("--model-b", metavar="NAME", help="The model of server B, if it has another name there."),
    TOKEN,
    click.option("--token-b", metavar="TEXT", help="Bearer token of server B, if it has one of its own."),
    BATCH,
    click.option("--pid", type=click.IntRange(1), help="The process of server A, where it is here and is not found."),
    click.option("--pid-b", type=click.IntRange(1), help="The process of server B."),
    click.option(
        "--min-agreement",
        type=click.FloatRange(-1, 1),
        help="Mean cosine of the two servers' vectors (rank correlation for different widths); less: status 7.",
    ),
)
ONLY_SERVERS = (*("connections", "model", "model_b", "token", "token_b", "batch", "pid", "pid_b", "min_agreement"),)
ONLY_ARTIFACTS = ("preprocess", "limit", "metric", "min_sqnr", "timed", "device", "different_networks", "ledger")
TIMEOUT_S, MOST_TURN_S = 30.0, 5.0


def compare_servers(
    ctx: click.Context, urls: tuple[str, str], rules: Rules, given: Mapping[str, Any]
) -> tuple[CompareRecord, AnyNpuError | None]:
    """Returns the comparison of two servers, and what broke it off if something did."""
    refuse_unused(ctx, "two servers are compared", *ONLY_ARTIFACTS)
    fewest = fewest_launches(rules.level, 3)
    if given["launches"] < fewest:
        raise ConfigError(
            f"--launches {given['launches']}: too few for a verdict at level {rules.level:g}",
            f"{fewest} turns of each server are the least",
        )
    inputs = read_inputs(Path(given["data"]) if given["data"] else None)
    sides = []
    for url, letter in zip(urls, "ab", strict=True):
        own = {name: _own(given, name, letter) for name in ("model", "token", "pid")}
        address = Address.parse(url)
        target = open_target(
            *(address, inputs),
            model=own["model"] or "",
            token=own["token"] or "",
            batch=given["batch"],
            timeout_s=TIMEOUT_S,
        )
        pid = given["pid"] if letter == "a" else given["pid_b"]
        sides.append(Side(WebBench(target, *find_server(address, pid), TIMEOUT_S)))
    a, b = sides
    settings = Settings(
        min_time_s=given["seconds"],
        min_count=given["runs"],
        max_time_s=max(MOST_TURN_S, given["seconds"]),
        warm_up=0,
    )
    before = conditions()
    alike = agreed(a, b, TIMEOUT_S)
    for side in sides:
        side.bench.warm_up(Settings(), given["connections"])

    def progress(done: int, total: int) -> None:
        if not given["quiet"]:
            click.echo(f"turn {done} of {total}", err=True)

    order, failure = versus(a, b, given["launches"], settings, given["connections"], progress)
    told = failure.message if failure else ""
    record = compared(a, b, order, rules, alike, given["connections"], told)
    record = replace(record, host=replace(before, load_after=conditions().load))
    if failure is None:
        failure = _disagreement(given["min_agreement"], alike.figure if alike else None)
    return record, failure


def _own(given: Mapping[str, Any], name: str, letter: str) -> Any:
    return given[name] if letter == "a" or given[f"{name}_b"] is None else given[f"{name}_b"]


def _disagreement(wanted: float | None, figure: float | None) -> AnyNpuError | None:
    if wanted is None:
        return None
    if figure is None:
        raise ConfigError("--min-agreement: the answers hold no vectors, or there are too few texts")
    if figure >= wanted:
        return None
    return AccuracyError(f"the servers agree to {figure:.4f}, under {wanted:g}", "agreement", figure, wanted)


def show_servers(record: CompareRecord) -> None:
    """Prints a comparison of two servers as text."""
    web, latency = record.http, record.latency
    if web is None or latency is None:
        return
    for letter in LETTERS:
        side = record.side(letter)
        click.echo(f"{letter.upper()}: {side.name}, {side.executed}")
    summaries = latency.summary or SideSummaries()
    print_table([_row("A", web.a, summaries.a), _row("B", web.b, summaries.b)])
    if (ratio := latency.ratio) is not None:
        p_adjusted, verdict = latency.p_adjusted, latency.verdict
        click.echo(_ratio_line("latency", ratio.median, ratio.low, ratio.high, p_adjusted, verdict))
        for name, each in (("throughput", web.throughput), ("CPU an answer", web.cpu)):
            if each is not None:
                click.echo(_ratio_line(name, each.ratio, each.low, each.high, each.p_adjusted, each.verdict))
    if web.agreement is not None:
        click.echo(f"vectors: {_agreement(web.agreement)}")
    for note in record.notes:
        click.echo(f"note: {note}")
    if host := record.host:
        click.echo(f"host: {host.cpus} CPUs, load {host.load} before and {host.load_after} after")
    click.echo(f"verdict: {record.verdict or 'none, the measurement broke off'}")


def _row(name: str, side: ServerSide, summary: Summary | None) -> dict[str, str]:
    p99 = summary.percentiles.get("p99") if summary else None
    memory = _middle(side.rss_bytes)
    return {
        "server": name,
        "median ms": number(summary.median if summary else None),
        "p99 ms": number(p99.value if p99 else None),
        "answers/s": number(_middle(side.per_s)),
        "cores used": number(_middle(side.cores_used)),
        "CPU ms an answer": number(_middle(side.cpu_ms_per_request)),
        "resident MiB": "-" if memory is None else f"{memory / 2**20:.0f}",
        "width": str(side.width or "-"),
        "failed": str(side.failed),
    }


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _ratio_line(
    name: str, ratio: float | None, low: float | None, high: float | None, p_value: float | None, verdict: str | None
) -> str:
    return f"{name}: B / A = {ratio:.4g} [{low:.4g}, {high:.4g}], p = {p_value:.2g}: {verdict}"


def _agreement(alike: Agreement) -> str:
    parts = []
    if alike.cosine is not None:
        mean, low, high = alike.cosine
        parts.append(f"cosine {mean:.5f} [{low:.5f}, {high:.5f}], {alike.least_cosine:.5f} at the lowest")
    else:
        parts.append(f"widths {alike.width_a} and {alike.width_b}, no cosine")
    if alike.overlap is not None and alike.rank_correlation is not None:
        parts.append(
            f"{alike.overlap[0]:.0%} of the {alike.neighbours} nearest texts are the same, "
            f"rank correlation {alike.rank_correlation[0]:.3f}"
        )
    return "; ".join(parts) + f" ({alike.texts} texts)"

"""anynpu compare http://A http://B: two servers, measured in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import click

from anynpu.api.compare import Asked
from anynpu.cli.bench_http import BATCH, TOKEN
from anynpu.cli.bench_text import number
from anynpu.cli.table import print_table
from anynpu.cli.verb import Common, flag
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
from anynpu.records.compare import LETTERS, CompareRecord, ServerSide, SideSummaries
from anynpu.records.shared import Summary


@dataclass(frozen=True, kw_only=True)
class Turns(Common):
    """What both sides are run on, artifacts as well as servers, and how often."""

    data: str = flag(
        "Samples: .npy, .npz, a folder of images, zoo:NAME, file.py:generator. Servers: texts.txt.",
        "",
        metavar="SOURCE",
    )
    launches: int = flag("Number of processes per side.", Asked.launches, minimum=2, maximum=1000, shown=True)
    seconds: float = flag("Minimum time of a launch.", Asked.seconds, minimum=0.0, maximum=3600, shown=True)
    runs: int = flag(
        "Minimum runs per launch, if they take at most 5 s.", Asked.runs, "-n", minimum=1, maximum=20000, shown=True
    )


@dataclass(frozen=True, kw_only=True)
class ServerFlags(Turns):
    """Two servers."""

    connections: int = flag(
        "Connections to a server; each waits for its answer.", 1, minimum=1, maximum=1000, shown=True
    )
    model: str = flag("The model of server A (and of B); its first by default.", "", metavar="NAME")
    model_b: str = flag("The model of server B, if it has another name there.", "", metavar="NAME")
    token: str = flag(TOKEN, "", metavar="TEXT")
    token_b: str = flag("Bearer token of server B, if it has one of its own.", "", metavar="TEXT")
    batch: int = flag(BATCH, 1, minimum=1, maximum=4096, shown=True)
    pid: int | None = flag("The process id of server A, if it runs here and is not found.", None, minimum=1)
    pid_b: int | None = flag("The process id of server B.", None, minimum=1)
    min_agreement: float | None = flag(
        "Mean cosine of the two servers' vectors (rank correlation for different widths); less: status 7.",
        None,
        minimum=-1,
        maximum=1,
    )


ONLY_SERVERS = (*("connections", "model", "model_b", "token", "token_b", "batch", "pid", "pid_b", "min_agreement"),)
ONLY_ARTIFACTS = ("preprocess", "limit", "metric", "min_sqnr", "timed", "device", "different_networks", "ledger")
TIMEOUT_S, MOST_TURN_S = 30.0, 5.0


def compare_servers(
    urls: tuple[str, str], rules: Rules, asked: ServerFlags
) -> tuple[CompareRecord, AnyNpuError | None]:
    """Returns the comparison of two servers, and what broke it off if something did."""
    fewest = fewest_launches(rules.level, 3)
    if asked.launches < fewest:
        raise ConfigError(
            f"--launches {asked.launches}: too few for a verdict at level {rules.level:g}",
            f"{fewest} turns of each server is the minimum",
        )
    inputs = read_inputs(Path(asked.data) if asked.data else None)
    sides = []
    of_a = (asked.model, asked.token, asked.pid)
    of_b = (asked.model_b or asked.model, asked.token_b or asked.token, asked.pid_b)
    for url, (model, token, pid) in zip(urls, (of_a, of_b), strict=True):
        address = Address.parse(url)
        target = open_target(address, inputs, model=model, token=token, batch=asked.batch, timeout_s=TIMEOUT_S)
        sides.append(Side(WebBench(target, *find_server(address, pid), TIMEOUT_S)))
    a, b = sides
    settings = Settings(
        min_time_s=asked.seconds,
        min_count=asked.runs,
        max_time_s=max(MOST_TURN_S, asked.seconds),
        warm_up=0,
    )
    before = conditions()
    alike = agreed(a, b, TIMEOUT_S)
    for side in sides:
        side.bench.warm_up(Settings(), asked.connections)

    def progress(done: int, total: int) -> None:
        if not asked.quiet:
            click.echo(f"turn {done} of {total}", err=True)

    order, failure = versus(a, b, asked.launches, settings, asked.connections, progress)
    why = failure.message if failure else ""
    record = compared(a, b, order, rules, alike, asked.connections, why)
    record = replace(record, host=replace(before, load_after=conditions().load))
    wanted, figure = asked.min_agreement, alike.figure if alike else None
    if failure is None and wanted is not None:
        if figure is None:
            raise ConfigError("--min-agreement: the answers hold no vectors, or there are too few texts")
        if figure < wanted:
            message = f"the servers agree to {figure:.4f}, under {wanted:g}"
            failure = AccuracyError(message, "agreement", figure, wanted)
    return record, failure


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
    if (alike := web.agreement) is not None:
        vectors = f"widths {alike.width_a} and {alike.width_b}, no cosine"
        if alike.cosine is not None:
            mean, low, high = alike.cosine
            vectors = f"cosine {mean:.5f} [{low:.5f}, {high:.5f}], {alike.least_cosine:.5f} at the lowest"
        if alike.overlap is not None and alike.rank_correlation is not None:
            vectors += (
                f"; {alike.overlap[0]:.0%} of the {alike.neighbours} nearest texts are the same, "
                f"rank correlation {alike.rank_correlation[0]:.3f}"
            )
        click.echo(f"vectors: {vectors} ({alike.texts} texts)")
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

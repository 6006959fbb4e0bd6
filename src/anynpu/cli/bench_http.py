"""anynpu bench http://HOST:PORT: a server, measured from outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from anynpu.cli.bench_text import latency_rows, number, show_break, show_verdict
from anynpu.cli.progress import observer
from anynpu.cli.run import OnDevice
from anynpu.cli.table import print_table
from anynpu.cli.verb import flag
from anynpu.errors import ConfigError
from anynpu.measure.load import SERVER, SINGLE, Settings, Tell
from anynpu.measure.web.address import Address, is_url
from anynpu.measure.web.bench import OPEN_CONNECTIONS, WebBench, measure_overhead
from anynpu.measure.web.forms import Inputs, read_body, read_inputs
from anynpu.measure.web.limit import find_limit
from anynpu.measure.web.process import find_server
from anynpu.measure.web.record import record_of
from anynpu.measure.web.target import open_target
from anynpu.records.bench import BenchRecord
from anynpu.records.web import Http, LimitStep

ONLY_ARTIFACTS = (
    *("device", "scope", "preprocess", "post", "others", "streams"),
    *("energy_csv", "energy_window", "energy_idle"),
)
ONLY_SERVERS = ("model", "token", "batch", "pid", "limit", "body", "connections")
TOKEN = "Bearer token that the server asks for."
BATCH = "Texts per request to a server."


@dataclass(frozen=True, kw_only=True)
class ServerFlags(OnDevice):
    """What is sent to a server, and how it is reached."""

    inputs: str = flag(
        "x.npy or x.npz, an image with --scope pipeline; by default a known answer. Servers: also texts.txt, x.json.",
        "",
        "-i",
        "--input",
        metavar="FILE",
    )
    body: Path | None = flag("JSON file to send to a server instead of texts.", None)
    connections: int = flag("Connections to a server.", 1, minimum=1, maximum=1000, shown=True)
    model: str = flag("The server's model, where it has several; its first by default.", "", metavar="NAME")
    token: str = flag(TOKEN, "", metavar="TEXT")
    batch: int = flag(BATCH, 1, minimum=1, maximum=4096, shown=True)
    pid: int | None = flag("The server's process id, if it runs here and is not found.", None, minimum=1)
    limit: bool = flag("Find the highest rate that the server keeps up with.", False)


class ArtifactOrUrl(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """The folder of an artifact, or the URL of a server, which a path would spoil."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        return value if isinstance(value, Path) or is_url(value) else Path(value)


def measure_server(url: str, asked: ServerFlags, settings: Settings) -> tuple[BenchRecord, BaseException | None]:
    """Returns the record of a measurement, and what broke it off."""
    if settings.scenario not in (SINGLE, SERVER):
        raise ConfigError(
            f"the scenario {settings.scenario} is for artifacts",
            "a server takes --qps (open loop) or --connections (closed loop)",
        )
    address = Address.parse(url)
    if asked.body is not None:
        inputs = Inputs(str(asked.body), body=read_body(asked.body))
    else:
        inputs = read_inputs(Path(asked.inputs) if asked.inputs else None)
    target = open_target(
        address, inputs, model=asked.model, token=asked.token, batch=asked.batch, timeout_s=asked.timeout
    )
    process, why = find_server(address, asked.pid)
    stated = click.get_current_context().get_parameter_source("connections") != ParameterSource.DEFAULT
    connections = asked.connections if stated else None
    with observer(asked.quiet) as progress:
        tell: Tell = lambda stage, seconds: progress.finished("bench", stage, seconds, False)  # noqa: E731
        bench = WebBench(target, process, why, asked.timeout, tell)
        overhead = measure_overhead(size=bench.size)
        usual = OPEN_CONNECTIONS if settings.scenario == SERVER else 1
        warm = bench.warm_up(settings, min(connections or 1, 8))
        limit = None
        if asked.limit:

            def report(step: LimitStep) -> None:
                load = f"{step.connections} connections" if step.rate_per_s is None else f"{step.rate_per_s:.4g}/s"
                why = f", not kept: {step.why}" if step.why else ""
                tell(f"{load}: {step.answered_per_s:.4g}/s answered{why}", 0.0)

            limit, run = find_limit(bench, settings, connections, warm, report)
        else:
            run = bench.run(settings.for_verdict(), connections or usual, warm)
    run.overhead = overhead
    return record_of(run, limit), run.result.error


def show_server(record: BenchRecord) -> None:
    """Prints the measurement of a server."""
    web = record.http or Http()
    click.echo(f"executed: {record.executed}, model {web.model}")
    loop = f"closed loop, {web.connections.limit} connection(s)"
    if web.loop == "open" and record.queue:
        loop = f"open loop, {record.queue.arrived_per_s:.4g} arrivals/s, {web.connections.opened} connections"
    if record.host and record.warm_up:
        click.echo(
            f"{loop}: {web.requests:,} requests in {record.host.wall_s:.1f} s after {record.warm_up.runs:,} to warm "
            f"up, on {record.input}" + (f", {web.batch} a request" if web.batch > 1 else "")
        )
    if web.limit is not None:
        rows = [
            {
                "loop": "closed" if step.rate_per_s is None else "open",
                "connections": str(step.connections) if step.rate_per_s is None else "",
                "arrivals/s": number(step.rate_per_s),
                "answers/s": number(step.answered_per_s),
                "median ms": number(step.median_ms),
                "p99 ms": number(step.p99_ms),
                "": step.why or ("" if step.rate_per_s is None else "kept"),
            }
            for step in web.limit.steps
        ]
        print_table(rows)
        above = f", {web.limit.not_kept_per_s:.4g} is too much" if web.limit.not_kept_per_s else ""
        kept = "no rate was kept" if web.limit.kept_per_s is None else f"{web.limit.kept_per_s:.4g} requests/s are kept"
        click.echo(f"limit: {kept}{above}; the figures below are those of that rate")
    if record.latency and record.latency.summary:
        print_table(latency_rows(record.latency.summary, web.label))
    per_s = record.throughput.per_s if record.throughput else 0.0
    items = f" ({per_s * web.batch:,.4g} texts/s)" if web.batch > 1 else ""
    click.echo(f"throughput: {per_s:,.4g} answers/s{items}; failed: {web.failed:,} of {web.requests:,}")
    for name, count in web.outcomes.items() if web.failed else ():
        click.echo(f"  {count:,} x {name}")
    process, client = web.server.process, web.client
    if process is None:
        click.echo(f"server: CPU and memory not known ({web.server.why})")
    else:
        click.echo(
            f"server: {process.cores_used:.2f} cores used, {number(process.cpu_ms_per_request)} ms CPU a request, "
            f"{process.rss_bytes / 2**20:.0f} MiB resident ({process.program})"
        )
    no_op = client.no_op
    own = f"; {no_op.median_ms:.2g} ms (median) against a server that does nothing" if no_op else ""
    click.echo(f"client: {client.cores_used:.2f} cores used, {client.cpu_us_per_request:.0f} us a request{own}")
    if web.server.info_digest:
        click.echo(f"server's /info: {web.server.info_digest[:16]}")
    show_verdict(record)
    show_break(record)

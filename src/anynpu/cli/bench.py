"""anynpu bench: how long an artifact takes, measured where it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from anynpu.api.bench import Asked, Measured, longest, measure, sealed_record
from anynpu.api.session import is_board
from anynpu.cli import bench_http, flags
from anynpu.cli.bench_http import ArtifactOrUrl, asked_of, measure_server, show_server
from anynpu.cli.bench_text import show, show_board
from anynpu.cli.command import Command, refuse_unused
from anynpu.cli.progress import observer
from anynpu.cli.run import DEVICE, TIMEOUT
from anynpu.errors import AnyNpuError, ConfigError, DeviceError
from anynpu.files import check_free, write_whole
from anynpu.measure.load import MULTI, SCENARIOS, SERVER, SINGLE, Settings, Tell
from anynpu.measure.outcome import INTERRUPTED
from anynpu.measure.subject import INFER, PIPELINE
from anynpu.records.bench import BenchRecord
from anynpu.records.parts import as_json
from anynpu.runtime.base import open_artifact
from anynpu.schema import to_dict

HOST_ONLY = ("min_time", "min_count", "max_time", "preprocess", "energy_csv", "energy_window", "energy_idle")

LOAD = (
    click.option(
        "--scenario", type=click.Choice(SCENARIOS), default=SINGLE, show_default=True, help="How queries come."
    ),
    click.option(
        "--scope",
        type=click.Choice([INFER, PIPELINE]),
        default=INFER,
        show_default=True,
        help="infer: stored values to stored values; pipeline: from real input to real result.",
    ),
    click.option("-n", "--runs", type=click.IntRange(1, 100000), help="Exactly so many runs; boards: 10."),
    click.option(
        "--warmup", type=click.IntRange(0, 100000), help="Exactly so many runs before; until stable if not said."
    ),
    click.option("--min-time", type=float, default=3.0, show_default=True, help="Least seconds to measure."),
    click.option("--min-count", type=click.IntRange(1, 1000000), default=100, show_default=True, help="Least runs."),
    click.option("--max-time", type=float, help="Most seconds to measure; 60, or --min-time where that is more."),
    click.option(
        "--streams",
        type=click.IntRange(1, 10000),
        default=8,
        show_default=True,
        help="Samples a query of multi-stream.",
    ),
    click.option("--qps", type=float, help="Queries a second that arrive in the scenario server."),
    click.option(
        "--bound", type=float, metavar="MS", help="Latency that the percentile must keep (server); else status 1."
    ),
    click.option(
        "--percentile", type=float, default=99.0, show_default=True, help="The percentile that --bound is for."
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the arrivals (server)."),
)
MORE = (
    click.option(
        "-P",
        "--preprocess",
        multiple=True,
        metavar="NAME=VALUE",
        help="How an image becomes the input; else as its card says.",
    ),
    click.option("--post", metavar="MODULE:FUNCTION", help="Called with the real outputs at the end of the pipeline."),
    click.option(
        "--with",
        "others",
        multiple=True,
        type=click.Path(path_type=Path),
        help="Another artifact at the same time. Repeat for more.",
    ),
    click.option(
        "--body",
        type=click.Path(path_type=Path),
        help="JSON file to send to a server instead of texts.",
    ),
    click.option(
        "--connections",
        type=click.IntRange(1, 1000),
        default=1,
        show_default=True,
        help="Connections to a server.",
    ),
    click.option(
        "--energy-csv",
        type=click.Path(path_type=Path),
        help="What an external meter writes: time and watts, or volts and amps.",
    ),
    click.option(
        "--energy-window", metavar="START,END", help="The part of the file that is the measurement, in its own time."
    ),
    click.option("--energy-idle", metavar="START,END", help="The part of the file that is the machine at rest."),
    click.option(
        "--layers",
        is_flag=True,
        help="Generated C on --on qemu: count the instructions of each layer too. They are no time.",
    ),
    click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the record to this JSON file too."),
    flags.OVERWRITE,
)


@click.command(cls=Command)
@click.argument("artifact", metavar="ARTIFACT|URL", type=ArtifactOrUrl())
@DEVICE
@click.option(
    "-i",
    "--input",
    "inputs",
    metavar="FILE",
    help="x.npy or x.npz, an image with --scope pipeline; else a known answer. To a server also texts.txt, x.json.",
)
@flags.apply(LOAD, MORE, bench_http.OPTIONS)
@TIMEOUT
@flags.apply(flags.COMMON)
@click.pass_context
def bench(ctx: click.Context, /, artifact: Path | str, **given: Any) -> int:
    """Measure how long an artifact or a server takes; every run's output is compared with the first.

    Cold start is told apart, warm-up lasts until it is stable, and runs go on until both --min-time and --min-count are
    met. Percentiles are told where the samples support them. What is measured before a device dies or Ctrl-C is kept.
    Firmware measures itself, stage by stage. An emulator counts instructions, which say nothing of time. A server is
    measured over HTTP: with --qps requests arrive on their own (open loop), else each connection waits for its answer.

    \b
    anynpu bench out/cpu
    anynpu bench out/cpu --scenario server --qps 50 --bound 20
    anynpu bench out/cpu --with other/cpu -o together.json
    anynpu bench http://127.0.0.1:8080 --qps 50 --bound 20
    anynpu bench http://127.0.0.1:8080/detect -i pictures --limit
    anynpu bench out/cortex-m55 --on qemu -n 5 --layers
    """
    if (output := given["output"]) is not None:
        folder = artifact if isinstance(artifact, Path) else None
        check_free(output, given["overwrite"], (folder, given["inputs"], given["body"], given["energy_csv"]))
    else:
        refuse_unused(ctx, "there is no -o", "overwrite")
    if isinstance(artifact, str):
        measured = _server(ctx, artifact, given)
    else:
        refuse_unused(ctx, "it is for the URL of a server", *bench_http.ONLY_SERVERS)
        _refuse_without_use(ctx, given)
        measured = _artifact(ctx, artifact, given)
    record = sealed_record(measured.record)
    if output is not None:
        write_whole(output, as_json(to_dict(record)))
    if given["format"] == "json":
        click.echo(as_json(to_dict(record)), nl=False)
    else:
        (show_board if record.board else show_server if record.http else show)(record)
    return _status(record, measured.error)


def _server(ctx: click.Context, url: str, given: Mapping[str, Any]) -> Measured:
    """Measures a server over HTTP; --qps makes it an open loop."""
    asked = asked_of(ctx, url, given)
    if asked.limit and given["qps"] is not None:
        raise ConfigError("--limit finds the rate itself: --qps has no place beside it")
    if asked.limit:
        given = {**given, "qps": 1.0}  # every rate that is tried takes its place
    scenario = SERVER if given["qps"] is not None else given["scenario"]
    given = {**given, "scenario": scenario}
    _refuse_without_use(ctx, given)
    return Measured(*measure_server(asked, _settings(given)))


def _refuse_without_use(ctx: click.Context, given: Mapping[str, Any]) -> None:
    """Raises for a flag that this scenario has no use for."""
    if given["scenario"] != SERVER:
        refuse_unused(ctx, f"the scenario is {given['scenario']}", "seed", hint="it is for --scenario server")
    if given["scenario"] != MULTI:
        refuse_unused(ctx, f"the scenario is {given['scenario']}", "streams", hint="it is for --scenario multi-stream")
    if given["bound"] is None:
        refuse_unused(ctx, "there is no --bound", "percentile")
    if given["runs"] is not None:
        refuse_unused(ctx, "-n is an exact number of runs", "min_time", "min_count", "max_time")


def _artifact(ctx: click.Context, path: Path, given: Mapping[str, Any]) -> Measured:
    """Measures an artifact on this host, or lets a board measure itself."""
    subject = open_artifact(path)
    if is_board(subject, given["device"]):
        refuse_unused(ctx, "a board measures itself", *HOST_ONLY)
    else:
        refuse_unused(ctx, "nothing runs on a board", "timeout")
    asked = Asked(
        _settings(given),
        on=given["device"],
        scope=given["scope"],
        inputs=given["inputs"] or "",
        preprocess=flags.preprocess(given["preprocess"]),
        post=given["post"],
        others=given["others"],
        energy_csv=given["energy_csv"],
        energy_window=given["energy_window"],
        energy_idle=given["energy_idle"],
        timeout_s=given["timeout"],
        layers=given["layers"],
    )
    with observer(given["quiet"]) as progress:
        tell: Tell = lambda stage, seconds: progress.finished("bench", stage, seconds, False)  # noqa: E731
        measured = measure(subject, asked, flags.store(given), tell)
    for note in measured.notes:
        click.echo(f"note: {note}", err=True)
    return measured


def _settings(given: Mapping[str, Any]) -> Settings:
    return Settings(
        scenario=given["scenario"],
        min_time_s=given["min_time"],
        min_count=given["min_count"],
        max_time_s=longest(given["min_time"], given["max_time"]),
        runs=given["runs"],
        warm_up=given["warmup"],
        streams=given["streams"],
        qps=given["qps"],
        bound_ms=given["bound"],
        percentile=given["percentile"],
        seed=given["seed"],
    )


def _status(record: BenchRecord, error: BaseException | None) -> int:
    """Says what broke the measurement off, and returns the exit status."""
    if isinstance(error, AnyNpuError):
        click.echo(f"anynpu: {error.message}", err=True)
        if isinstance(error, DeviceError) and error.cause:
            click.echo(f"  likely cause: {error.cause}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
        return error.exit_status
    if error is not None:
        click.echo("anynpu: interrupted; the samples before are kept", err=True)
        return INTERRUPTED
    failed = record.http is not None and record.http.failed
    return 1 if failed or (record.verdict is not None and not record.verdict.met) else 0

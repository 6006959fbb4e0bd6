"""anynpu bench: how long an artifact takes, measured where it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from anynpu.api.bench import Asked, Measured, longest, measure, sealed_record
from anynpu.api.session import is_board
from anynpu.cli.bench_http import (
    ONLY_ARTIFACTS,
    ONLY_SERVERS,
    ArtifactOrUrl,
    ServerFlags,
    measure_server,
    show_server,
)
from anynpu.cli.bench_text import show, show_board
from anynpu.cli.flags import read_preprocess
from anynpu.cli.progress import observer
from anynpu.cli.table import print_record
from anynpu.cli.terminal import show_error
from anynpu.cli.verb import Writes, argument, flag, verb
from anynpu.errors import AnyNpuError, ConfigError
from anynpu.files import write_whole
from anynpu.measure.load import MULTI, SCENARIOS, SERVER, Settings, Tell
from anynpu.measure.outcome import INTERRUPTED
from anynpu.measure.subject import INFER, PIPELINE
from anynpu.records.parts import as_json
from anynpu.runtime.base import open_artifact
from anynpu.schema import to_dict
from anynpu.tasks.images import Preprocess

HOST_ONLY = ("min_time", "min_count", "max_time", "preprocess", "energy_csv", "energy_window", "energy_idle")


@dataclass(frozen=True, kw_only=True)
class Load:
    """How queries arrive, and when it is enough."""

    scenario: str = flag("How queries arrive.", Settings.scenario, shown=True, type=click.Choice(SCENARIOS))
    scope: str = flag(
        "infer: stored values to stored values; pipeline: from real input to real result.",
        INFER,
        shown=True,
        type=click.Choice([INFER, PIPELINE]),
    )
    runs: int | None = flag("Exact number of runs; 10 on boards.", None, "-n", minimum=1, maximum=100000)
    warmup: int | None = flag(
        "Exact number of warm-up runs; by default until times are stable.", None, minimum=0, maximum=100000
    )
    min_time: float = flag("Minimum seconds to measure.", Settings.min_time_s, shown=True)
    min_count: int = flag("Minimum number of runs.", Settings.min_count, minimum=1, maximum=1000000, shown=True)
    max_time: float | None = flag("Maximum seconds to measure; 60 by default, or --min-time if that is more.", None)
    streams: int = flag("Samples per query (multi-stream).", Settings.streams, minimum=1, maximum=10000, shown=True)
    qps: float | None = flag("Queries per second (server).", None)
    bound: float | None = flag(
        "Maximum latency at the percentile (server); more ends with status 1.", None, metavar="MS"
    )
    percentile: float = flag("The percentile that --bound is for.", Settings.percentile, shown=True)
    seed: int = flag("Seed of the arrivals (server).", Settings.seed, minimum=0, shown=True)

    def settings(self) -> Settings:
        """Returns what to do, and when it is enough, as the flags say it."""
        return Settings(
            scenario=self.scenario,
            min_time_s=self.min_time,
            min_count=self.min_count,
            max_time_s=longest(self.min_time, self.max_time),
            runs=self.runs,
            warm_up=self.warmup,
            streams=self.streams,
            qps=self.qps,
            bound_ms=self.bound,
            percentile=self.percentile,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class BenchAsked(Load, ServerFlags, Writes):
    """An artifact or a server, what is measured of it and with what."""

    artifact: Path | str = argument(metavar="ARTIFACT|URL", type=ArtifactOrUrl())
    preprocess: Preprocess | None = flag(
        "How an image becomes the input; by default as the card says.",
        None,
        "-P",
        metavar="NAME=VALUE",
        read=read_preprocess,
    )
    post: str | None = flag("Called with the real outputs at the end of the pipeline.", None, metavar="MODULE:FUNCTION")
    others: tuple[Path, ...] = flag("Another artifact at the same time. Repeat for more.", (), "--with")
    energy_csv: Path | None = flag("What an external meter writes: time and watts, or volts and amps.", None)
    energy_window: str | None = flag(
        "The part of the file that is the measurement, in its own time.", None, metavar="START,END"
    )
    energy_idle: str | None = flag("The part of the file that is the machine at rest.", None, metavar="START,END")
    layers: bool = flag(
        "Generated C on --on qemu: count the instructions of each layer too. They are not times.", False
    )


@verb(BenchAsked)
def bench(asked: BenchAsked) -> int:
    """Measure how long an artifact or a server takes; every run's output is compared with the first.

    Cold start is reported apart, warm-up lasts until it is stable, and runs go on until both --min-time and --min-count
    are met. Percentiles are given where the samples support them. What is measured before a device dies or Ctrl-C is
    kept. Firmware measures itself, stage by stage. An emulator counts instructions, which say nothing about time. A
    server is measured over HTTP: with --qps requests arrive on their own (open loop), otherwise each connection waits
    for its answer.

    \b
    anynpu bench out/cpu
    anynpu bench out/cpu --scenario server --qps 50 --bound 20
    anynpu bench out/cpu --with other/cpu -o together.json
    anynpu bench http://127.0.0.1:8080 --qps 50 --bound 20
    anynpu bench http://127.0.0.1:8080/detect -i pictures --limit
    anynpu bench out/cortex-m55 --on qemu -n 5 --layers
    """
    subject = asked.artifact
    folder = subject if isinstance(subject, Path) else None
    asked.require_free(folder, asked.inputs, asked.body, asked.energy_csv)
    if isinstance(subject, str):
        asked.refuse_unused("a server is measured", *ONLY_ARTIFACTS)
        if asked.inputs and asked.body:
            raise ConfigError("-i and --body are both what to send: one of the two")
        if asked.limit and asked.qps is not None:
            raise ConfigError("--limit finds the rate itself, so --qps has no effect")
        if asked.limit:
            asked = replace(asked, qps=1.0)  # every rate that is tried takes its place
        if asked.qps is not None:
            asked = replace(asked, scenario=SERVER)
        _refuse_without_use(asked)
        measured = Measured(*measure_server(subject, asked, asked.settings()))
    else:
        asked.refuse_unused("it is for the URL of a server", *ONLY_SERVERS)
        _refuse_without_use(asked)
        measured = _artifact(subject, asked)
    record = sealed_record(measured.record)
    if asked.output is not None:
        write_whole(asked.output, as_json(to_dict(record)))
    if asked.json:
        print_record(record)
    else:
        (show_board if record.board else show_server if record.http else show)(record)
    if isinstance(measured.error, AnyNpuError):
        show_error(measured.error)
        return measured.error.exit_status
    if measured.error is not None:
        click.echo("anynpu: interrupted; the samples before are kept", err=True)
        return INTERRUPTED
    failed = record.http is not None and record.http.failed
    return 1 if failed or (record.verdict is not None and not record.verdict.met) else 0


def _refuse_without_use(asked: BenchAsked) -> None:
    """Raises for a flag that this scenario has no use for."""
    if asked.scenario != SERVER:
        asked.refuse_unused(f"the scenario is {asked.scenario}", "seed", hint="it is for --scenario server")
    if asked.scenario != MULTI:
        asked.refuse_unused(f"the scenario is {asked.scenario}", "streams", hint="it is for --scenario multi-stream")
    if asked.bound is None:
        asked.refuse_unused("there is no --bound", "percentile")
    if asked.runs is not None:
        asked.refuse_unused("-n is an exact number of runs", "min_time", "min_count", "max_time")


def _artifact(path: Path, asked: BenchAsked) -> Measured:
    """Measures an artifact on this host, or lets a board measure itself."""
    subject = open_artifact(path)
    if is_board(subject, asked.device):
        asked.refuse_unused("a board measures itself", *HOST_ONLY)
    else:
        asked.refuse_unused("nothing runs on a board", "timeout")
    wanted = Asked(
        asked.settings(),
        on=asked.device,
        scope=asked.scope,
        inputs=asked.inputs,
        preprocess=asked.preprocess,
        post=asked.post,
        others=asked.others,
        energy_csv=asked.energy_csv,
        energy_window=asked.energy_window,
        energy_idle=asked.energy_idle,
        timeout_s=asked.timeout,
        layers=asked.layers,
    )
    with observer(asked.quiet) as progress:
        tell: Tell = lambda stage, seconds: progress.finished("bench", stage, seconds, False)  # noqa: E731
        measured = measure(subject, wanted, asked.store(), tell)
    for note in measured.notes:
        click.echo(f"note: {note}", err=True)
    return measured

"""anynpu watch replay and simulate: traces that methods are scored on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from anynpu.cli.table import print_table
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.errors import ConfigError, on_one_line
from anynpu.files import check_free, write_whole

if TYPE_CHECKING:
    from anynpu.apps.watch.replay import Alarm, FaultScore
    from anynpu.apps.watch.seed_method import Embed
    from anynpu.apps.watch.trace import Trace

RATE, LIMIT = 0.5, 0.97
RATE_HELP = "False alarms per host and week that the thresholds aim at."
MODEL_HELP = "Text model of --method seed: an artifact."


@dataclass(frozen=True, kw_only=True)
class Replay(Common):
    """A trace, and the method that looks at it."""

    trace: Path = argument()
    labels: Path | None = flag("Labelled faults; trace.labels.csv by default.", None)
    method: Literal["robust", "sigma", "seed"] = flag("", "robust", shown=True)
    false_alarms: float = flag(RATE_HELP, RATE, minimum=0.01, maximum=100, metavar="RATE", shown=True)
    sigmas: float = flag("Of --method sigma.", 3.0, minimum=0.1, shown=True)
    learn: float | None = flag(
        "Time at the start that is not scored; by default four weeks, or half of a shorter trace.",
        None,
        metavar="DAYS",
        minimum=0,
    )
    model: Path | None = flag(MODEL_HELP, None)
    limit: float = flag(
        "Mean cosine of --method seed below which there is an alarm.", LIMIT, minimum=0, maximum=1, shown=True
    )


@contextmanager
def embedder(model: Path) -> Iterator[tuple[Embed, str, int, bool]]:
    """Gives a function from texts to vectors, the fingerprint of its model, and the form of its vectors."""
    from anynpu.cli.task import TaskFlags, opened
    from anynpu.runtime.base import open_artifact
    from anynpu.tasks.embed import TextTower

    with opened(model, "embed-text", TaskFlags()) as opened_model:
        tower = TextTower(opened_model)
        fingerprint = open_artifact(model).manifest.fingerprint or str(model)
        yield tower.embed, fingerprint, tower.width, tower.space.normalized


@verb(Replay)
def replay(asked: Replay) -> int:
    """Replay a trace and score a method by its labels: recall, false alarms per host-week, delay; with intervals.

    A trace is a CSV file with the columns time, host, received (optional) and one for every metric; its labels are in
    a second one with the columns host, fault, metric, start, end. Without labels the alarms are printed.

    \b
    anynpu watch simulate --hosts 4 -o trace.csv
    anynpu watch replay trace.csv
    anynpu watch replay trace.csv --method sigma
    """
    from anynpu.apps.watch import methods
    from anynpu.apps.watch.replay import score
    from anynpu.apps.watch.trace import read_trace

    if asked.method != "seed":
        asked.refuse_unused("only --method seed has a model", "model", "limit")
    elif asked.model is None:
        raise ConfigError("--method seed needs --model", "the artifact of a text model, such as minilm/cpu")
    trace = read_trace(asked.trace, asked.labels)
    start = min(float(host.received_s[0]) for host in trace.hosts)
    from_s = methods.learning_end(trace) if asked.learn is None else start + asked.learn * 86_400
    alarms = _alarms(trace, from_s, asked)
    if not trace.labels:
        alarms = [alarm for alarm in alarms if alarm.time_s >= from_s]
        from anynpu.apps.watch.sinks import moment

        if asked.format == "json":
            click.echo(json.dumps({"schema_version": 1, "kind": "watch-alarms", "alarms": [asdict(a) for a in alarms]}))
            return 0
        print_table(
            [
                {"time": moment(a.time_s), "host": on_one_line(a.host), "metric": a.metric, "test": a.test}
                for a in alarms
            ]
        )
        click.echo(f"{len(alarms)} alarms; there are no labels to score them by", err=True)
        return 0
    result = score(trace, alarms, from_s)
    if asked.json:
        record = {"schema_version": 1, "kind": "watch-replay", "method": asked.method, **asdict(result)}
        click.echo(json.dumps(record))
    else:
        print_table([_fault_row(fault) for fault in result.faults])
        recall, rate = result.recall, result.false_alarms_a_host_week
        click.echo(f"recall {recall.value:.3f} [{recall.low:.3f}, {recall.high:.3f}]")
        click.echo(
            f"false alarms per host-week {rate.value:.2f} [{rate.low:.2f}, {rate.high:.2f}] "
            f"({result.false_alarms} in {result.host_weeks:.1f} host-weeks)"
        )
    return 0


def _alarms(trace: Trace, from_s: float, asked: Replay) -> list[Alarm]:
    from anynpu.apps.watch import methods

    def progress(done: float) -> None:
        if not asked.quiet and sys.stderr.isatty():
            click.echo(f"\r{100 * done:5.1f} %", err=True, nl=False)

    if asked.method == "sigma":
        return methods.three_sigma(trace, from_s, asked.sigmas)
    if asked.method == "robust":
        return methods.robust(trace, asked.false_alarms, progress)
    from anynpu.apps.watch.registry import Registry
    from anynpu.apps.watch.seed_method import SeedDetector

    assert asked.model is not None  # as `replay` has seen to
    with embedder(asked.model) as (embed, *_):
        detector = SeedDetector(Registry(), embed, None, trace.interval_s, asked.limit)
        return methods.detected(trace, detector, progress)


def _fault_row(fault: FaultScore) -> dict[str, str]:
    from anynpu.apps.watch.explain import duration

    delay = fault.delay_s
    return {
        "fault": fault.fault,
        "found": f"{fault.found} of {fault.count}",
        "recall": f"{fault.recall.value:.2f} [{fault.recall.low:.2f}, {fault.recall.high:.2f}]",
        "delay, median": ""
        if delay is None
        else f"{duration(delay.value)} [{duration(delay.low)}, {duration(delay.high)}]",
        "delay, p90": "" if fault.delay_p90_s is None else duration(fault.delay_p90_s),
    }


@dataclass(frozen=True, kw_only=True)
class Simulate(Common):
    """Simulated machines."""

    output: Path = flag("The trace, a CSV file.", MISSING, "-o")
    hosts: int = flag("", 4, minimum=1, maximum=1000, shown=True)
    weeks: float = flag("", 6.0, minimum=0.1, maximum=26, shown=True)
    clean: float = flag("Weeks without faults.", 4.0, minimum=0, maximum=26, shown=True)
    interval: float = flag("", 60.0, metavar="SECONDS", minimum=1, maximum=3600, shown=True)
    seed: int = flag("", 0, minimum=0, maximum=1_000_000, shown=True)
    overwrite: bool = flag("Replace the written file if it exists.", False)


@verb(Simulate)
def simulate(asked: Simulate) -> int:
    """Write a trace of simulated machines, with labelled faults, to try methods on.

    \b
    anynpu watch simulate --hosts 4 --seed 7 -o trace.csv
    """
    from anynpu.testing.traces import csv_of, fleet

    labels_path = asked.output.with_suffix(".labels.csv")
    for path in (asked.output, labels_path):
        check_free(path, asked.overwrite)
    trace = fleet(range(asked.seed, asked.seed + asked.hosts), asked.weeks, asked.clean, asked.interval)
    samples, labels = csv_of(trace)
    write_whole(asked.output, samples)
    write_whole(labels_path, labels)
    click.echo(f"{asked.output}: {asked.hosts} hosts; {labels_path}: {len(trace.labels)} faults", err=True)
    return 0

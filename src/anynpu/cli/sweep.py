"""anynpu sweep: models x chips x options."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click

from anynpu.api.result import Build as Built
from anynpu.cli import options
from anynpu.cli.command import refuse_unused
from anynpu.cli.flags import pairs
from anynpu.cli.table import print_json, print_record, print_table
from anynpu.cli.verb import Common, flag, verb
from anynpu.errors import ConfigError
from anynpu.files import write_whole
from anynpu.pipeline.build import build
from anynpu.pipeline.preview import Silent
from anynpu.pipeline.search import Search
from anynpu.pipeline.search import search as run_search
from anynpu.pipeline.sweep import CELLS, RECORD, Sweep, local, on_cluster
from anynpu.pipeline.sweep import row as row_of
from anynpu.pipeline.sweep import sweep as run_sweep
from anynpu.records.sweep import SweepRecord, SweepRow
from anynpu.report.figures import decibel, kib, percent
from anynpu.report.html import render
from anynpu.source.load import ModelSource

BEST = "best"
"""Where a search puts the best build of each chip."""


def _alternatives(texts: Sequence[str], stated: Mapping[str, object] | None) -> dict[str, object]:
    """Returns the values of every option that is named; commas separate them."""
    named = pairs("-O", tuple(texts))
    return {**(stated or {}), **{name: tuple(map(str.strip, text.split(","))) for name, text in named.items()}}


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of a sweep, or the file that names them."""

    model: tuple[str, ...] = flag("A model; repeat for more.", (), "-m", metavar="MODEL")
    config: Path | None = flag("TOML file with the lists instead of flags.", None, "-c")


@dataclass(frozen=True, kw_only=True)
class Where(Common):
    """Where results go, and where they are made."""

    output: str = flag("Where results go; a sweep that stopped goes on from there.", "", "-o", metavar="FOLDER")
    jobs: int | None = flag("Builds at once [number of processors].", None, "-j", minimum=1, maximum=256)
    cluster: str = flag("Build on a Dask cluster: tcp://scheduler:8786.", "", metavar="ADDRESS")
    search: float | None = flag(
        "Instead of building every combination, search all options of the quantiser for this long.",
        None,
        metavar="MINUTES",
    )
    qat: bool = flag("With --search: try training too (minutes per build).", False)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Whether to build at all."""

    plan: bool = flag("Show the combinations; build nothing.", False, "--plan", "--dry-run")


@dataclass(frozen=True, kw_only=True)
class SweepAsked(Models, options.DataFlags, Where, options.GateFlags, Plan):
    """Models, chips and options, every combination of which is built."""

    option: Mapping[str, tuple[str | int | float | bool, ...]] = flag(
        "Option of a compiler: method=mse, activations=int16, vela.optimise=size, ...",
        {},
        "-O",
        "--option",
        metavar="NAME=VALUE",
        read=_alternatives,
    )


@verb(SweepAsked)
def sweep(asked: SweepAsked) -> int:
    """Build every combination of models, chips and options, and show which of them are worth having.

    Alternatives of an option are separated by commas. Each combination is built and proved as `anynpu build` does it;
    one that fails does not stop the others, and one that is done is not done again. The front is drawn by accuracy,
    latency estimate and memory.

    With --search the options need not be named: range method, rounding, equalisation, bits, single tensors in 16 bits
    and whatever else a chip's compiler has are tried, one step from the best so far, for as many minutes as you give.
    -O then says what an option may be: -O activations=int8 keeps to 8 bits. The best build of each chip is in best/.

    \b
    anynpu sweep -m zoo:kws -m zoo:resnet8 -t tflm,ethos-u55-128 -O method=minmax,mse -o sweep
    anynpu sweep -m net.onnx -t cpu,tflite --data photos/ --search 10 -o search
    anynpu sweep -c sweep.toml -o sweep --cluster tcp://scheduler:8786
    """
    if asked.cluster:
        refuse_unused(click.get_current_context(), "the cluster decides how many builds run at once", "jobs")
        if asked.search is not None:
            raise ConfigError("a search builds on this machine", "leave --cluster or --search out")
    wanted, jobs = _wanted(asked), asked.jobs or os.cpu_count() or 1
    searched = None if asked.search is None else Search(wanted, asked.search, jobs, asked.qat)
    if searched is None:
        asked.refuse_unused("it goes with --search", "qat", hint="`anynpu build --qat` trains one build")
    if asked.plan:
        rows = [row_of(cell) for cell in (wanted.cells() if searched is None else searched.first_steps())]
        cells = [{"model": each.model, "chip": each.chip, "options": each.option_text or "-"} for each in rows]
        if asked.format == "json":
            print_json("sweep-plan", {"cells": cells})
        else:
            print_table(cells)
            click.echo(f"{len(cells)} combinations")
        return 0
    if not asked.output:
        raise ConfigError("no output folder is named", "give -o FOLDER")
    out = Path(asked.output)
    written = [name for name in (RECORD, "sweep.csv", "report.html") if (out / name).exists()]
    if written and not (out / CELLS).is_dir():
        raise ConfigError(f"{out}: has a {written[0]} that is not of a sweep", "choose another -o")
    if searched is not None:
        record = _search(searched, out, asked)
    else:
        runner = on_cluster(asked.cluster) if asked.cluster else local(jobs)

        def say(row: SweepRow, done: int, total: int) -> None:
            if not asked.quiet:
                what = f"{row.model} {row.chip} {row.option_text or '-'}"
                click.echo(f"{done}/{total}  {what}: {row.status}" + (f": {row.error}" if row.error else ""), err=True)

        record = run_sweep(wanted, out, asked.store(), runner, say)
        _write(out, record)
    if asked.json:
        print_record(record)
    else:
        _show(record)
    if not asked.quiet:
        click.echo(f"report: {out / 'report.html'}", err=True)
    return record.exit_status


def _search(searched: Search, out: Path, asked: SweepAsked) -> SweepRecord:
    """Searches, with the table and the page rewritten after every build, and keeps the best build of each chip."""

    def say(row: SweepRow, tried: int, seconds: float) -> None:
        if not asked.quiet:
            clock = f"{seconds / 60:.1f} of {searched.minutes:g} min"
            click.echo(f"{tried}  {clock}  {row.title}: {_outcome(row)}", err=True)

    store = asked.store()
    for record in run_search(searched, out, store, local(searched.jobs), say):
        _write(out, record)
    for folder, request in searched.best_of(record).items():
        Built(build(replace(request, repair=False), store, Silent())).save(out / BEST / folder, overwrite=True)
    return record


def _outcome(row: SweepRow) -> str:
    """Returns what a build came to, in a few words."""
    if row.error or row.sqnr_db is None:
        return f"{row.status}: {row.error}" if row.error else row.status
    return f"{percent(row.score)}, {row.sqnr_db:.1f} dB" if row.score is not None else f"{row.sqnr_db:.1f} dB"


def _wanted(asked: SweepAsked) -> Sweep:
    """Returns the sweep that the flags name."""
    if not asked.model:
        raise ConfigError("no model is named", "give -m MODEL, more than once for several")
    alternatives = {
        name: tuple(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
        for name, values in asked.option.items()
    }
    for name, values in alternatives.items():
        if not all(values) or not values:
            raise ConfigError(f"-O {name}: an alternative is empty", "separate values by one comma")
    base = replace(asked, option={}).request(ModelSource(asked.model[0]))
    return Sweep(asked.judged(base), tuple(dict.fromkeys(asked.model)), alternatives)


def _show(record: SweepRecord) -> None:
    print_table(
        [
            {
                "": "*" if row.on_front else "",
                "model": row.model,
                "chip": row.chip,
                "options": row.option_text or "-",
                "result": row.status,
                "float": percent(row.score_float),
                "here": percent(row.score),
                "SQNR dB": decibel(row.sqnr_db),
                "on NPU": percent(row.on_npu),
                "est. ms": "-" if row.latency_ms is None else f"{row.latency_ms:.3f}",
                "SRAM KiB": kib(row.sram_bytes),
                "flash KiB": kib(row.flash_bytes),
            }
            for row in record.rows
        ]
    )
    click.echo("* on the front of accuracy, latency estimate and memory: nothing else is as good in all")
    for note in record.notes:
        click.echo(note)
    for row in record.rows:
        if row.best:
            start = next(each for each in record.rows if (each.model, each.chip) == (row.model, row.chip))
            gain = "" if start is row else f"; {start.option_text or 'the default'}: {_outcome(start)}"
            options = row.option_text or "the default"
            click.echo(f"best of {row.model} on {row.chip}: {options}: {_outcome(row)}{gain}")
    for row in record.rows:
        if row.error:
            click.echo(f"{row.model} {row.chip} {row.option_text or '-'}: {row.error}")


def _write(out: Path, record: SweepRecord) -> None:
    """Writes the rows as CSV and the page next to the record."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in fields(SweepRow)])
    writer.writeheader()
    for row in record.rows:
        options = " ".join(f"{name}={value}" for name, value in (row.options or {}).items())
        writer.writerow({**vars(row), "options": options or "-"})
    write_whole(out / "sweep.csv", text.getvalue())
    write_whole(out / "report.html", render(record))

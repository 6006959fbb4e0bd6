"""anynpu sweep: models x chips x options."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click

from anynpu.cli import options
from anynpu.cli.command import refuse_unused
from anynpu.cli.flags import pairs
from anynpu.cli.table import print_table
from anynpu.cli.verb import Common, flag, verb
from anynpu.errors import ConfigError
from anynpu.files import write_whole
from anynpu.pipeline.sweep import CELLS, RECORD, Sweep, local, on_cluster
from anynpu.pipeline.sweep import sweep as run_sweep
from anynpu.records.parts import as_json
from anynpu.records.sweep import SweepRecord, SweepRow
from anynpu.report.figures import decibel, kib, percent
from anynpu.report.html import render
from anynpu.schema import to_dict
from anynpu.source.load import ModelSource


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
    jobs: int | None = flag("Builds at once [number of processors].", None, "-j", least=1, most=256)
    cluster: str = flag("Build on a Dask cluster: tcp://scheduler:8786.", "", metavar="ADDRESS")


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

    \b
    anynpu sweep -m zoo:kws -m zoo:resnet8 -t tflm,ethos-u55-128 -O method=minmax,mse -o sweep
    anynpu sweep -c sweep.toml -o sweep --cluster tcp://scheduler:8786
    """
    if asked.cluster:
        refuse_unused(click.get_current_context(), "the cluster decides how many builds run at once", "jobs")
    wanted = _wanted(asked)
    if asked.plan:
        return _plan(wanted, asked.format)
    if not asked.output:
        raise ConfigError("no output folder is named", "give -o FOLDER")
    out = Path(asked.output)
    _check_folder(out)
    runner = on_cluster(asked.cluster) if asked.cluster else local(asked.jobs or os.cpu_count() or 1)
    heard = _silent if asked.quiet else _say
    found = run_sweep(wanted, out, asked.store(), runner, heard)
    _write(out, found)
    if asked.json:
        click.echo(as_json(to_dict(found)), nl=False)
    else:
        _show(found)
    if not asked.quiet:
        click.echo(f"report: {out / 'report.html'}", err=True)
    return found.exit_status


def _check_folder(out: Path) -> None:
    """Raises for a folder with files of the names of a sweep's that no sweep has written."""
    written = [name for name in (RECORD, "sweep.csv", "report.html") if (out / name).exists()]
    if written and not (out / CELLS).is_dir():
        raise ConfigError(f"{out}: has a {written[0]} that is not of a sweep", "choose another -o")


def _wanted(asked: SweepAsked) -> Sweep:
    """Returns the sweep that the flags name."""
    if not asked.model:
        raise ConfigError("no model is named", "give -m MODEL, more than once for several")
    alternatives = {name: tuple(_text(value) for value in values) for name, values in asked.option.items()}
    for name, values in alternatives.items():
        if not all(values) or not values:
            raise ConfigError(f"-O {name}: an alternative is empty", "separate values by one comma")
    base = replace(asked, option={}).request(ModelSource(asked.model[0]))
    return Sweep(asked.judged(base), tuple(dict.fromkeys(asked.model)), alternatives)


def _text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plan(wanted: Sweep, format: str) -> int:
    cells = [
        {"model": c.request.source.model, "chip": c.chip, "options": _options(c.request.options)}
        for c in wanted.cells()
    ]
    if format == "json":
        click.echo(as_json({"schema_version": 1, "kind": "sweep-plan", "cells": cells}), nl=False)
    else:
        print_table(cells)
        click.echo(f"{len(cells)} combinations")
    return 0


def _options(chosen: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in chosen.items()) or "-"


def _silent(row: SweepRow, done: int, total: int) -> None:
    return


def _say(row: SweepRow, done: int, total: int) -> None:
    what = f"{row.model} {row.chip} {row.option_text or '-'}"
    click.echo(f"{done}/{total}  {what}: {row.status}" + (f": {row.error}" if row.error else ""), err=True)


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
    click.echo("* on the front of accuracy, latency estimate and memory: nothing else is as good in all three")
    for note in record.notes:
        click.echo(note)
    for row in record.rows:
        if row.error:
            click.echo(f"{row.model} {row.chip} {row.option_text or '-'}: {row.error}")


def _write(out: Path, record: SweepRecord) -> None:
    """Writes the rows as CSV and the page beside the record."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.name for column in fields(SweepRow)])
    writer.writeheader()
    writer.writerows({**vars(row), "options": row.option_text or "-"} for row in record.rows)
    write_whole(out / "sweep.csv", text.getvalue())
    write_whole(out / "report.html", render(record))

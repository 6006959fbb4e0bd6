"""anynpu build."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from anynpu.api.result import Build as Built
from anynpu.cli import options
from anynpu.cli.progress import observer
from anynpu.cli.table import print_json, print_record, print_table
from anynpu.cli.verb import Common, flag, verb
from anynpu.errors import ConfigError
from anynpu.pipeline.build import build as run_build
from anynpu.pipeline.output import check_output
from anynpu.pipeline.preview import preview
from anynpu.pipeline.repair import lines
from anynpu.pipeline.request import Request
from anynpu.report.figures import chip_row, table_notes
from anynpu.schema import to_dict
from anynpu.store import Store


@dataclass(frozen=True, kw_only=True)
class Output(Common):
    """Where results go."""

    output: str = flag("Folder for artifacts and reports; an existing one is backed up.", "", "-o", metavar="FOLDER")
    overwrite: bool = flag("Replace the output folder of an earlier build instead of keeping it.", False)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Whether to build at all."""

    plan: bool = flag("Show the steps, tools and cache hits; build nothing.", False, "--plan", "--dry-run")


@dataclass(frozen=True, kw_only=True)
class Strictness:
    """What else is a shortfall, and whether one is repaired."""

    repair: bool | None = flag(
        "If a result misses the gate, try repairs one by one, cheapest first, until it passes. By default a few "
        "minutes are spent on one that misses the default gate, and no -O of yours changes.",
        None,
        "--repair/--no-repair",
    )
    keep_failed: bool = flag("Keep a result that misses the accuracy gate, as failed/CHIP: for diagnosis only.", False)
    strict_calibration: bool = flag("End with status 7 if there are too few calibration samples.", False)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Whether and how to train."""

    qat: bool = flag(
        "Train with each chip's rounding in the loop: the float model teaches, and labels where the samples have them.",
        False,
    )
    seed: int = flag("Order of the samples in training; equal seeds give equal weights.", 0, minimum=0, shown=True)


@dataclass(frozen=True, kw_only=True)
class Build(options.ModelFlags, options.DataFlags, Training, Output, options.GateFlags, Strictness, Plan):
    """A model to build, for which chips, and what the results must reach."""


@verb(Build)
def build(asked: Build) -> int:
    """Export, quantise, compile, execute and compare a model for one or more chips.

    Every result is executed on held-out samples and compared with the float model before it counts. A chip that fails
    does not stop the others; the closing table and the exit status show it.

    \b
    anynpu build -m zoo:resnet8 -t cpu,tflm,ethos-u55-128 -o out
    anynpu build -m net.onnx -t hxwe2 --data photos/ -P size=96x96 -P resize=stretch -o out
    """
    source = asked.source() if asked.repair is not False else asked.source().as_given
    request, store = asked.judged(asked.request(source)), asked.store()
    request = replace(request, strict_calibration=asked.strict_calibration, repair=asked.repair)
    request = replace(request, qat=asked.qat, seed=asked.seed, keep_failed=asked.keep_failed)
    if asked.plan:
        rows = preview(request, store)
        if asked.format == "json":
            print_json("plan", {"steps": to_dict(rows)})
            return 0
        shown = [
            {
                "chip": row.chip,
                "step": row.step,
                "state": row.state,
                "tools": ", ".join(f"{name} {version}" for name, version in row.tools.items()),
            }
            for row in rows
        ]
        print_table(shown, title=f"plan for {request.source.model}")
        return 0
    if not asked.output:
        raise ConfigError("no output folder is named", "give -o FOLDER")
    return build_and_report(request, store, asked, asked.config)


def build_and_report(request: Request, store: Store, asked: Output, config: Path | None = None) -> int:
    """Builds, writes the output folder and prints the closing table; returns the exit status."""
    out = Path(asked.output)
    check_output(out, asked.overwrite, files_read(request, config), store.cache)
    with observer(asked.quiet) as watcher:
        built = Built(run_build(request, store, watcher))
    kept = built.save(out, asked.overwrite)
    if asked.json:
        print_record(built.record)
    else:
        print_table([chip_row(chip) for chip in built.record.chips], title=request.source.model)
        for note in (*table_notes(built.record.chips), *built.record.notes):
            click.echo(note)
        for chip in built.record.chips:
            for line in lines(chip.repairs, chip.diagnosis):
                click.echo(f"{chip.chip}: {line}")
            if error := chip.error:
                click.echo(f"{chip.chip}: {error.sentence}")
                for finding in error.findings or ():
                    click.echo(f"  {finding}")
                for line in error.last_lines or ():
                    click.echo(f"  | {line}")
                for cause in chip.diagnosis.causes if chip.diagnosis else ():
                    click.echo(f"  cause: {cause.cause} at {cause.tensor}: {cause.evidence}; {cause.repair}")
            elif chip.verdict:
                click.echo(f"{chip.chip}: {chip.verdict}")
                for op in chip.receipt.elsewhere if chip.receipt else ():
                    click.echo(f"  on the CPU: {op.kind} {op.name}: {op.reason}")
    if kept is not None and not asked.quiet:
        click.echo(f"the earlier {out} is kept as {kept.name}", err=True)
    if not asked.quiet:
        click.echo(f"report: {out / 'report.html'}", err=True)
    return built.exit_status


def files_read(request: Request, config: Path | None = None) -> list[str]:
    """Returns what a build reads: files, folders, and names of the form file.py:name."""
    source = request.source
    named = (source.model, source.checkpoint, request.data, request.test, request.task, request.tokenizer)
    return [str(name) for name in (*named, config) if name]

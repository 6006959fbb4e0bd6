"""anynpu bisect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from anynpu.cli.flags import preprocess
from anynpu.cli.table import print_record, print_table
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.records.bisect import BisectRecord, OutputDifference


def _tolerance(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    from anynpu.pipeline.bisect.run import EXACT

    if value in ("", EXACT):
        return value
    try:
        if -200 < float(value) < 200:
            return value
    except ValueError:
        pass
    raise click.BadParameter(f"{value!r} is neither a number of dB nor 'exact'", ctx, parameter)


@dataclass(frozen=True, kw_only=True)
class Bisect(Common):
    """Two executions of one model, and when they disagree."""

    a: str = argument(metavar="A")
    b: str = argument(metavar="B")
    data: str = flag("Samples: .npy, .npz, a folder of images, random:8.", "", metavar="SOURCE")
    preprocess: tuple[str, ...] = flag("How images become inputs.", (), "-P", metavar="NAME=VALUE")
    limit: int = flag("Maximum number of samples to run.", 16, minimum=1, shown=True)
    tolerance: str = flag(
        "SQNR below which they disagree, or 'exact'; by default 20, or 60 if both are in floating point.",
        "",
        metavar="DB",
        callback=_tolerance,
    )
    on_a: str = flag("What runs A: a device, ort-native, ort-plain.", "", "--on-a", metavar="DEVICE")
    on_b: str = flag("What runs B.", "", "--on-b", metavar="DEVICE")
    out: Path | None = flag("Write the bundle for a tracker to this folder.", None, "-o", "--out", metavar="FOLDER")
    overwrite: bool = flag("Replace an earlier bundle.", False)
    different_networks: bool = flag("Continue although the two are different networks.", False)


@verb(Bisect)
def bisect(asked: Bisect) -> int:
    """Cut two executions of one model that disagree to the smallest sub-model that still does; status 1 if they do.

    A and B are artifact folders of builds, .onnx or .tflite files, or `float`, the float model of the other side's
    build. After every cut both get the values that A has there, so that about log2 of the operators are run, not all.
    The bundle (-o) holds the sub-model, its inputs, both results, versions and a text, ready for a vendor's tracker.

    \b
    anynpu bisect float out/cpu --data test.npz -o bundle
    anynpu bisect out/tflm out/ethos-u55-128 --tolerance exact
    anynpu bisect net.int8.onnx net.int8.onnx --on-a ort-plain --on-b ort-native --data random:8
    """
    from anynpu.api.bisect import bisect as searched

    def progress(done: int, total: int) -> None:
        if not asked.quiet:
            click.echo(f"run {done} of about {total}", err=True)

    record = searched(
        asked.a,
        asked.b,
        asked.data or None,
        preprocess=preprocess(asked.preprocess),
        limit=asked.limit,
        tolerance=asked.tolerance,
        on_a=asked.on_a,
        on_b=asked.on_b,
        output=asked.out,
        overwrite=asked.overwrite,
        different_networks=asked.different_networks,
        cache_dir=asked.store().cache,
        progress=progress,
    )
    if asked.json:
        print_record(record)
    else:
        _print(record)
    return 0 if record.agree else 1


def _print(record: BisectRecord) -> None:
    for letter, side in (("A", record.a), ("B", record.b)):
        click.echo(f"{letter}: {side.name}, {side.executed}")
    tolerance = "every value must be equal" if record.tolerance_db is None else f"tolerance {record.tolerance_db:g} dB"
    worst = f"{_shown(record.whole)} on sample {record.sample} of {record.samples}"
    if record.agree:
        click.echo(f"they agree: the worst output, {worst} ({tolerance}); --tolerance looks closer")
        return
    click.echo(f"they disagree: the worst output, {worst} ({tolerance})")
    print_table(
        [
            {
                "run": str(number),
                "cut to": f"{len(run.inputs)} in, {len(run.outputs)} out: {', '.join(run.inputs[:2])} -> {run.worst}",
                "SQNR dB": "-" if run.sqnr_db is None else f"{run.sqnr_db:.1f}",
                "": "cannot be run" if run.disagrees is None else "differs" if run.disagrees else "agrees",
            }
            for number, run in enumerate(record.runs, start=1)
        ]
    )
    assert record.difference is not None
    if record.guilty is not None:
        click.echo(f"guilty: {record.guilty.name} ({record.guilty.kind}), one of {record.cuts} places to cut at")
    others = [f"{each.name} ({each.kind})" for each in record.operators if each != record.guilty]
    if others:
        click.echo(f"in the sub-model with it: {', '.join(others[:8])}" + (" ..." if len(others) > 8 else ""))
    click.echo(f"given the same values, {_shown(record.difference)}")
    for note in record.notes:
        click.echo(f"note: {note}")


def _shown(worst: OutputDifference) -> str:
    error = f"largest error {worst.max_abs_error:.4g} at {list(worst.at)}"
    return f"{worst.tensor}, is {worst.sqnr_db:.1f} dB apart; {error}: {worst.a:.6g} in A, {worst.b:.6g} in B"

"""anynpu bench: how long an artifact takes, measured where it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from anynpu.artifact import Artifact
from anynpu.cli import options
from anynpu.cli.run import DEVICE, TIMEOUT, open_on, read_stored
from anynpu.cli.table import print_table
from anynpu.measure.bench import INSTRUCTIONS, Bench, Figure, Sample, known_sample, time_board, time_session
from anynpu.pipeline.output import as_json
from anynpu.pipeline.steps import own_version


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@DEVICE
@click.option(
    "-i", "--input", "inputs", metavar="FILE", help="x.npy or x.npz; a known answer of the build if not said."
)
@click.option("-n", "--runs", type=click.IntRange(1, 100000), default=10, show_default=True, help="Runs that count.")
@click.option("--warmup", type=click.IntRange(0, 100000), default=2, show_default=True, help="Runs before them.")
@TIMEOUT
@options.apply(options.COMMON)
@click.pass_context
def bench(ctx: click.Context, /, artifact: Path, inputs: str | None, runs: int, warmup: int, **given: Any) -> int:
    """Measure how long an artifact takes; every run's output is compared with the first.

    Firmware measures itself, stage by stage. An emulator counts instructions, which say nothing of time.

    \b
    anynpu bench out/cortex-m55 --on qemu -n 5
    anynpu bench out/cortex-m4 --on serial:/dev/ttyACM0 -f json
    """
    subject = Artifact.open(artifact)
    sample = Sample(inputs, read_stored(Path(inputs), subject.manifest.inputs)) if inputs else known_sample(subject)
    session, running = open_on(subject, given)
    try:
        if running is None:
            found = time_session(session, sample, runs, warmup)
        else:
            found = time_board(session, sample, runs, warmup, running.clock)
    finally:
        session.close()
    record = {**_record(subject, found), **({"memory": running.memory()} if running else {})}
    if given["format"] == "json":
        click.echo(as_json(record), nl=False)
    else:
        _show(found, record)
    return 0


def _record(artifact: Artifact, found: Bench) -> dict[str, Any]:
    """Returns a measurement and its conditions as plain data."""
    return {
        "schema_version": 1,
        "kind": "bench",
        "anynpu": own_version(),
        "artifact": artifact.digest,
        "fingerprint": artifact.manifest.fingerprint,
        "executed": found.executed,
        "board": found.board,
        "unit": found.unit,
        "clock": found.clock,
        "tick_hz": found.tick_hz,
        "input": found.input,
        "warmup": found.warmup,
        "runs": len(next(iter(found.stages.values())).samples),
        "stages": {name: _figure(figure) for name, figure in found.stages.items()},
        "ticks": None if found.ticks is None else {name: list(values) for name, values in found.ticks.items()},
        "per_inference": found.per_inference,
        "known_answers": found.known_answers,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {"min": figure.least, "median": figure.median, "max": figure.most, "samples": list(figure.samples)}


def _show(found: Bench, record: dict[str, Any]) -> None:
    click.echo(f"executed: {found.executed}")
    click.echo(f"clock: {found.clock}; {record['runs']} runs after {found.warmup} to warm up, on {found.input}")
    shown = "{:,.0f}" if found.unit == INSTRUCTIONS else "{:.4g}"
    print_table(
        [
            {
                "stage": name,
                "unit": found.unit,
                "min": shown.format(figure.least),
                "median": shown.format(figure.median),
                "max": shown.format(figure.most),
            }
            for name, figure in found.stages.items()
        ]
    )
    if found.per_inference is not None:
        click.echo(f"in one go: {shown.format(found.per_inference)} {found.unit} per inference")
    memory = record.get("memory", {})
    if "flash_bytes" in memory:
        click.echo(
            f"flash {memory['flash_bytes']:,} B (known answers {memory['known_answer_bytes']:,}), "
            f"RAM {memory['ram_bytes']:,} B, arena {memory['arena_bytes']:,} B"
        )
        rows = [{name: str(value) for name, value in part.items()} for part in memory["sections"]]
        print_table([{"section": r["name"], "flash": r["flash_bytes"], "RAM": r["ram_bytes"]} for r in rows])

"""anynpu run: executing an artifact."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path

import click
import numpy as np

from anynpu.api.feed import read_feed
from anynpu.api.session import ANSWER_S, Session, is_board
from anynpu.api.session import open_on as open_session
from anynpu.artifact import Artifact
from anynpu.cli.command import refuse_unused
from anynpu.cli.flags import read_preprocess
from anynpu.cli.receipt import lines
from anynpu.cli.table import print_record, print_table
from anynpu.cli.verb import Common, Writes, argument, flag, verb
from anynpu.files import write_whole
from anynpu.records.parts import receipt
from anynpu.report import figures
from anynpu.runtime.base import open_artifact
from anynpu.tasks.images import Preprocess
from anynpu.tensors import Array

ON_BOARD = "anynpu.on_board"
MOST_ROWS = 40
STRICT_HELP = "Refuse a .cix file whose container contradicts its program; by default a warning."


@dataclass(frozen=True, kw_only=True)
class OnDevice(Common):
    """What executes an artifact; by default the reference of its format."""

    device: str | None = flag(
        "ort, litert, tflm, ...; generated C: host, qemu or serial:PORT[@BAUD]. By default the format's reference.",
        None,
        "--on",
        metavar="DEVICE",
    )
    timeout: float = flag(
        "Seconds that a board may take for an answer, plus 30 per inference.", ANSWER_S, minimum=0.1, shown=True
    )


@dataclass(frozen=True, kw_only=True)
class Run(Writes, OnDevice):
    """An artifact and what it is run on."""

    artifact: Path = argument()
    inputs: str = flag(
        "x.npy, x.npz with an array per input, an image, a folder of images, texts.txt, zoo:NAME or random:1.",
        MISSING,
        "-i",
        "--input",
        metavar="SOURCE",
    )
    preprocess: Preprocess | None = flag(
        "How an image becomes an input, if there is no card.",
        None,
        "-P",
        metavar="NAME=VALUE",
        read=read_preprocess,
    )
    limit: int | None = flag("Take only the first samples; by default one of zoo:NAME.", None, minimum=1)
    output: Path | None = flag("Write the outputs to this .npz file.", None, "-o")
    strict: bool = flag(STRICT_HELP, False)


@verb(Run)
def run(asked: Run) -> int:
    """Run an artifact on one input, or several, and show what comes out.

    Arrays are in the layout of the model that the artifact was built from, as for `anynpu build --data`, or in the one
    that `anynpu show` prints; a note names what is moved. Real numbers are quantised by the input's own scale and zero
    point; integers of the input's own type are taken as they are. Outputs are real numbers. A runtime that may leave
    operators to the CPU reports at the end which ran on the NPU.

    \b
    anynpu run out/tflm -i image.npy -o scores.npz
    anynpu run out/tflm -i random:1
    anynpu run out/tflm -i photo.jpg
    anynpu run out/cortex-m4 -i image.npy --on qemu
    """
    asked.require_free(asked.inputs, asked.artifact)
    subject = open_artifact(asked.artifact, asked.strict)
    feed = read_feed(asked.inputs, subject, asked.preprocess, asked.limit)
    with open_on(subject, asked) as session:
        answer = session.answer(feed)
        versions = session.versions
    real, notes = answer.outputs, list(answer.notes)
    if asked.output is not None:
        packed = io.BytesIO()
        np.savez(packed, **real)  # type: ignore[arg-type]  # numpy types the keywords as its own options
        write_whole(asked.output, packed.getvalue())
    more: dict[str, object] = {"versions": versions} if versions else {}
    more |= {"memory": session.board.memory()} if session.board else {}
    more |= {"notes": notes} if notes else {}
    placed = receipt(session.placement)
    more |= {"receipt": placed} if placed else {}
    if asked.json:
        values = {name: {"shape": list(a.shape), "values": a.ravel().tolist()} for name, a in real.items()}
        record = {
            "schema_version": 1,
            "kind": "run",
            "executed": session.executed,
            "samples": len(feed.samples),
            "outputs": values,
        }
        print_record({**record, **more})
    else:
        click.echo(f"executed: {session.executed}{figures.versions_text(versions)}")
        _show_outputs(real, len(feed.samples))
        for line in lines(placed) if placed else ():
            click.echo(line)
    for note in () if asked.quiet else notes:
        click.echo(f"note: {note}", err=True)
    return 0


def open_on(artifact: Artifact, asked: OnDevice) -> Session:
    """Returns a session on the device that the flags name."""
    ctx = click.get_current_context(silent=True)  # there is none in the threads of a bench
    if ctx is not None:
        if is_board(artifact, asked.device):
            ctx.meta[ON_BOARD] = True
        elif not ctx.meta.get(ON_BOARD):
            refuse_unused(ctx, "nothing runs on a board", "timeout")
    return open_session(artifact, asked.device, asked.store(), asked.timeout)


def _show_outputs(real: Mapping[str, Array], samples: int) -> None:
    rows = [
        {
            **({"sample": str(at)} if samples > 1 else {}),
            "output": name,
            "shape": "x".join(map(str, part.shape)),
            "min": f"{part.min():.5g}",
            "max": f"{part.max():.5g}",
            "mean": f"{part.mean():.5g}",
            "argmax": str(int(part.argmax())),
        }
        for at in range(samples)
        for name, a in real.items()
        for part in (np.array_split(a, samples)[at],)
    ]
    print_table(rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        click.echo(f"{len(rows) - MOST_ROWS} more rows are not shown; -o writes all of them")

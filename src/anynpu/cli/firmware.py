"""anynpu firmware: a project tree around a built model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from anynpu.artifact import Artifact
from anynpu.cli.command import refuse_unused
from anynpu.cli.table import print_json, print_record, print_table
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.errors import ConfigError
from anynpu.files import folder_beside
from anynpu.firmware.project.boards import BOARDS
from anynpu.firmware.project.tree import VECTORS, make_project
from anynpu.pipeline.output import check_output, swap


@dataclass(frozen=True, kw_only=True)
class Firmware(Common):
    """A built model, and the board that its project is for."""

    artifact: Path | None = argument(None)
    board: str | None = flag("The board; without it all boards are listed.", None, "-b", metavar="BOARD")
    output: Path | None = flag("Where the tree goes.", None, "-o", metavar="FOLDER")
    vectors: Path | None = flag("Known answers from this file instead.", None, metavar="FILE")
    count: int = flag("Maximum number of known answers to embed.", VECTORS, minimum=1, shown=True)
    compiled: Path | None = flag("A .tflite file that a vendor's converter made.", None, metavar="FILE")
    overwrite: bool = flag("Replace an earlier tree instead of keeping it.", False)


@verb(Firmware)
def firmware(asked: Firmware) -> int:
    """Write a project for a board that builds without editing and proves itself by known answers.

    ARTIFACT is the folder of one chip that `anynpu build` made. The tree holds the model, an application with the
    known-answer test and the measuring protocol, the board's layer, a Makefile and a CMakeLists.txt.

    \b
    anynpu firmware out/cortex-m55 -b qemu-mps3-an547 -o firmware
    anynpu firmware out/hxwe2 -b hxwe2 -o firmware
    """
    artifact, board = asked.artifact, asked.board
    if board is None:
        if artifact is not None:
            raise ConfigError(
                f"for which board is {artifact}?", "give -b BOARD; without ARTIFACT all boards are listed"
            )
        others = ("output", "vectors", "count", "compiled", "overwrite")
        refuse_unused(click.get_current_context(), "without -b the boards are listed", *others)
        rows = [{"board": b.name, "what": b.title, "model": b.engine} for b in BOARDS.values()]
        if asked.format == "json":
            print_json("boards", {"boards": rows})
        else:
            print_table(rows)
        return 0
    if artifact is None:
        raise ConfigError("no artifact is named", "name the folder of one chip, such as out/cortex-m4")
    out = asked.output or Path(f"firmware-{board}")
    reads = [str(path) for path in (artifact, asked.vectors, asked.compiled) if path is not None]
    check_output(out, asked.overwrite, reads, asked.store().cache)
    project = make_project(Artifact.open(artifact), board, asked.vectors, asked.compiled, asked.count)
    kept = write_tree(project.files, out, asked.overwrite)
    if asked.format == "json":
        print_record({**project.report, "output": str(out), "files": list(project.files)})
    else:
        report = project.report
        click.echo(f"{report['model']} for {project.board.title}")
        arena = f"arena {report['arena_bytes']} bytes, " if report["arena_bytes"] else ""
        click.echo(f"{arena}{report['vectors']} known answers, {len(project.files)} files")
        for note in project.notes:
            click.echo(note)
        click.echo(f"next: {out / 'README.md'}")
    if kept is not None and not asked.quiet:
        click.echo(f"the earlier {out} is kept as {kept.name}", err=True)
    return 0


def write_tree(files: Mapping[str, bytes], out: Path, overwrite: bool) -> Path | None:
    """Puts the files at `out` in one move and returns where an earlier folder was kept, if any."""
    with folder_beside(out) as (fresh, place):
        for name, data in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_bytes(data)
        return swap(fresh, place, overwrite)

"""What `anynpu search` prints: how far a run is, what it did, what was found."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from anynpu import schema
from anynpu.apps.search.intake import Progress, Summary
from anynpu.apps.search.query import Answer, Result
from anynpu.cli.table import print_json, print_table
from anynpu.errors import on_one_line

TELL_S = 2.0
MOST_LISTED = 20


def teller(quiet: bool) -> Callable[[Progress], None]:
    """Returns what shows how far a run is: one line every two seconds, in place on a terminal."""
    last = [0.0]

    def tell(progress: Progress) -> None:
        finished = progress.done == progress.total
        if quiet or (time.monotonic() - last[0] < TELL_S and not finished):
            return
        last[0] = time.monotonic()
        remaining_s = (progress.total - progress.done) / progress.per_second if progress.per_second else 0.0
        share = progress.model_s / progress.seconds if progress.seconds else 0.0
        line = (
            f"{progress.done:,} of {progress.total:,} files, {progress.per_second:.1f} a second, "
            f"{share:.0%} of the time in the model, {timedelta(seconds=round(remaining_s))} to go"
        )
        place = sys.stderr.isatty()
        click.echo(f"\r{line}\x1b[K" if place else line, err=True, nl=not place or finished)

    return tell


def show_summary(folder: Path, summary: Summary) -> None:
    rate = summary.computed / summary.seconds if summary.seconds else 0.0
    share = summary.model_s / summary.seconds if summary.seconds else 0.0
    click.echo(
        on_one_line(
            f"{folder}: {summary.files:,} files; {summary.computed:,} computed, {summary.known:,} known contents, "
            f"{summary.unchanged:,} unchanged, {summary.removed:,} gone; {summary.seconds:.1f} s, {rate:.1f} a second, "
            f"{share:.0%} of the time in the model"
        )
    )
    if summary.skipped:
        click.echo(f"{summary.skipped:,} files of a kind without a model: --image-model, --text-model")
    for _, reason in summary.problems[:MOST_LISTED]:
        click.echo(on_one_line(f"anynpu: {reason}"), err=True)
    if len(summary.problems) > MOST_LISTED:
        more = len(summary.problems) - MOST_LISTED
        click.echo(f"anynpu: {more:,} more cannot be read: `anynpu search state --problems` lists all", err=True)


def show_answer(answer: Answer, format: str) -> None:
    """Prints what was found."""
    if format == "json":
        print_json("search", schema.to_dict(answer, whole=True))
        return
    print_table([_row(each) for each in answer.pictures], "pictures" if answer.documents else "")
    print_table([_row(each) for each in answer.documents], "documents" if answer.pictures else "")
    for note in answer.notes:
        click.echo(note, err=True)
    if not answer.pictures and not answer.documents:
        click.echo("nothing was found", err=True)


def _row(result: Result) -> dict[str, str]:
    where = result.paths[0] if result.paths else "?"
    where += f":{result.line}" if result.kind == "document" else ""
    more = f" and {len(result.paths) - 1} more" if len(result.paths) > 1 else ""
    gone = " (gone: index again)" if result.gone else ""
    row = {
        "score": f"{result.score:.4f}",
        "taken": datetime.fromtimestamp(result.taken, UTC).strftime("%Y-%m-%d"),
        "file": f"{where}{more}{gone}",
    }
    if result.kind == "document":
        row["text"] = result.text if len(result.text) <= 60 else result.text[:57] + "..."
    return row

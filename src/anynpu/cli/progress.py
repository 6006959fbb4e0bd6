"""Progress on stderr: bars on a terminal, one line a stage otherwise."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Any

import click

from anynpu.cli.terminal import drawn_on
from anynpu.errors import on_one_line


class Lines:
    """One line for each finished stage; nothing when quiet."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def started(self, chip: str, stage: str) -> None:
        return

    def progress(self, done: int, total: int) -> None:
        return

    def said(self, chip: str, stage: str, words: str) -> None:
        if not self.quiet:
            click.echo(on_one_line(f"{chip or 'model':<16} {stage:<12} {words}"), err=True)

    def finished(self, chip: str, stage: str, seconds: float, hit: bool) -> None:
        if not self.quiet:
            cached = "  (cached)" if hit else ""
            click.echo(on_one_line(f"{chip or 'model':<16} {stage:<12} {seconds:6.2f} s{cached}"), err=True)


class Bars:
    """A live bar for the stage at work, and a line for each finished one."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.console = Console(file=drawn_on(sys.stderr))
        self.bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self.task: Any = None

    def __enter__(self) -> Bars:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def started(self, chip: str, stage: str) -> None:
        self._clear()
        self.task = self.bars.add_task(on_one_line(f"{chip or 'model'}: {stage}"), total=None)

    def progress(self, done: int, total: int) -> None:
        if self.task is not None:
            self.bars.update(self.task, completed=done, total=total)

    def said(self, chip: str, stage: str, words: str) -> None:
        line = on_one_line(f"{chip or 'model':<16} {stage:<12} {words}").replace("[", r"\[")
        self.console.print(f"  {line}", highlight=False)

    def finished(self, chip: str, stage: str, seconds: float, hit: bool) -> None:
        self._clear()
        cached = "  [dim]cached[/dim]" if hit else ""
        line = on_one_line(f"{chip or 'model':<16} {stage:<12} {seconds:6.2f} s").replace("[", r"\[")
        self.console.print(f"[green]✓[/green] {line}{cached}", highlight=False)

    def _clear(self) -> None:
        if self.task is not None:
            self.bars.remove_task(self.task)
            self.task = None


def observer(quiet: bool) -> Lines | Bars:
    """Returns what fits where stderr goes."""
    if quiet or not sys.stderr.isatty() or os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        return Lines(quiet)
    return Bars()

"""Tables on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import click

from anynpu.cli.terminal import drawn_on
from anynpu.errors import on_one_line
from anynpu.report.text import columns

STYLES = {"ok": "green", "ready": "green", "yes": "green", "not executed": "yellow"}


def print_table(rows: Sequence[Mapping[str, str]], title: str = "") -> None:
    """Prints rows of equal keys: drawn with rich on a terminal, plain columns otherwise."""
    if not rows:
        return
    if sys.stdout.isatty():
        _rich([{name: on_one_line(cell) for name, cell in row.items()} for row in rows], title)
        return
    for line in ([title] if title else []) + columns(rows):
        click.echo(line)


def _rich(rows: Sequence[Mapping[str, str]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=on_one_line(title).replace("[", r"\[") or None, header_style="bold", title_justify="left")
    for name in rows[0]:
        numeric = all(row[name][:1].isdigit() or row[name] in ("-", "", "?") for row in rows)
        table.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(f"[{STYLES[v]}]{v}[/]" if v in STYLES else v.replace("[", r"\[") for v in row.values()))
    Console(file=drawn_on(sys.stdout)).print(table)

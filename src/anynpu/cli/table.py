"""Tables and JSON on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import click

from anynpu.cli.terminal import drawn_on
from anynpu.errors import on_one_line
from anynpu.records.parts import as_json
from anynpu.report.text import columns
from anynpu.schema import to_dict

STYLES = {"ok": "green", "ready": "green", "yes": "green", "not executed": "yellow"}


def print_table(rows: Sequence[Mapping[str, str]], title: str = "") -> None:
    """Prints rows of equal keys: drawn with rich on a terminal, plain columns otherwise."""
    if not rows:
        return
    if not sys.stdout.isatty():
        for line in ([title] if title else []) + columns(rows):
            click.echo(line)
        return
    from rich.console import Console
    from rich.table import Table

    rows = [{name: on_one_line(cell) for name, cell in row.items()} for row in rows]
    table = Table(title=on_one_line(title).replace("[", r"\[") or None, header_style="bold", title_justify="left")
    for name in rows[0]:
        numeric = all(row[name][:1].isdigit() or row[name] in ("-", "", "?") for row in rows)
        table.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(f"[{STYLES[v]}]{v}[/]" if v in STYLES else v.replace("[", r"\[") for v in row.values()))
    Console(file=drawn_on(sys.stdout)).print(table)


def print_record(record: object) -> None:
    """Prints a record as JSON."""
    click.echo(as_json(to_dict(record)), nl=False)


def print_json(kind: str, fields: Mapping[str, object]) -> None:
    """Prints JSON of a kind that has no dataclass; its fields come after the version and the kind."""
    print_record({"schema_version": 1, "kind": kind, **fields})

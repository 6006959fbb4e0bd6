"""A score as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from anynpu.cli.table import print_table
from anynpu.report.figures import versions_of

WORST = 20


def show(record: Mapping[str, Any]) -> None:
    """Prints the score with its interval, the other figures, and what is to be said of them."""
    click.echo(f"{record['path']}, {record['executed']}{versions_of(record)}")
    print_table([{"figure": name, **_cells(figure)} for name, figure in record["metrics"].items()])
    if record["classes"]:
        present = [row for row in record["classes"] if row["ap"]["value"] is not None]
        ordered = sorted(present, key=lambda row: row["ap"]["value"])
        print_table([_class_row(row) for row in ordered[:WORST]])
        if len(ordered) > WORST:
            click.echo(f"the {WORST} lowest of {len(ordered)} classes; -f json holds all")
        if absent := len(record["classes"]) - len(present):
            click.echo(f"{absent} of {len(record['classes'])} classes of the data have no object in these images")
    click.echo(f"{record['metric']} {_figure(record)} on {record['samples']} {record['unit']} ({record['interval']})")
    for note in record["notes"]:
        click.echo(f"note: {note}")
    if failed := record["data"]["failed"]:
        click.echo(f"note: {len(failed)} {record['unit']} could not be scored and are left out")
    if (other := record["against"]) is not None:
        _show_against(record, other)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _cells(figure: Mapping[str, Any]) -> dict[str, str]:
    return {name: _number(figure[name]) for name in ("value", "low", "high")}


def _class_row(row: Mapping[str, Any]) -> dict[str, str]:
    low, high = (_number(row["ap"][name]) for name in ("low", "high"))
    return {"class": row["class"], "AP": _number(row["ap"]["value"]), "low": low, "high": high} | {
        "AP50": _number(row["ap50"]["value"])
    }


def _figure(record: Mapping[str, Any]) -> str:
    return f"{_number(record['score'])} [{_number(record['low'])}, {_number(record['high'])}]"


def _show_against(record: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    click.echo(f"against {other['path']}, {other['executed']}: {_figure(other)}")
    change = other["difference"]
    shown = f"{change['value']:+.4f} [{change['low']:+.4f}, {change['high']:+.4f}]"
    click.echo(f"difference {shown}, p = {other['p_value']:.2g} ({other['test']})")
    click.echo(f"verdict: {other['verdict']}")

"""A score as text."""

from __future__ import annotations

import click

from anynpu.cli.table import print_table
from anynpu.records.eval import EvalRecord
from anynpu.records.shared import Figure
from anynpu.report.figures import versions_text

WORST = 20
NOTHING = Figure(None, None, None)


def show(record: EvalRecord) -> None:
    """Prints the score with its interval, the other figures, and the notes on them."""
    click.echo(f"{record.path}, {record.executed}{versions_text(record.versions)}")
    rows = [(name, figure or NOTHING) for name, figure in (record.metrics or {}).items()]
    print_table([{"figure": name, "value": _number(f.value), **_interval(f)} for name, f in rows])
    if record.classes:
        present = [(figure.value, row) for row in record.classes if (figure := row.ap) and figure.value is not None]
        ordered = [row for _, row in sorted(present, key=lambda pair: pair[0])]
        print_table(
            [
                {
                    "class": row.name,
                    "AP": _number((row.ap or NOTHING).value),
                    **_interval(row.ap or NOTHING),
                    "AP50": _number((row.ap50 or NOTHING).value),
                }
                for row in ordered[:WORST]
            ]
        )
        if len(ordered) > WORST:
            click.echo(f"the {WORST} lowest of {len(ordered)} classes; -f json holds all")
        if absent := len(record.classes) - len(present):
            click.echo(f"{absent} of {len(record.classes)} classes of the data have no object in these images")
    score = _bracketed(record.score, record.low, record.high)
    click.echo(f"{record.metric} {score} on {record.samples} {record.unit} ({record.interval})")
    for note in record.notes:
        click.echo(f"note: {note}")
    if record.data and record.data.failed:
        click.echo(f"note: {len(record.data.failed)} {record.unit} could not be scored and are left out")
    if record.against is not None:
        other = record.against
        click.echo(f"against {other.path}, {other.executed}: {_bracketed(other.score, other.low, other.high)}")
        if change := other.difference:
            shown = f"{change.value:+.4f} [{change.low:+.4f}, {change.high:+.4f}]"
            click.echo(f"difference {shown}, p = {other.p_value:.2g} ({other.test})")
        click.echo(f"verdict: {other.verdict}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _interval(figure: Figure) -> dict[str, str]:
    return {"low": _number(figure.low), "high": _number(figure.high)}


def _bracketed(score: float | None, low: float | None, high: float | None) -> str:
    return f"{_number(score)} [{_number(low)}, {_number(high)}]"

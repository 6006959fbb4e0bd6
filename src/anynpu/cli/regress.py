"""anynpu regress: what a new toolchain version changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from anynpu import schema
from anynpu.cli.compare import Judging, gate_of
from anynpu.cli.table import print_record, print_table
from anynpu.cli.verb import flag, verb
from anynpu.measure.compare import WORSE
from anynpu.measure.threshold import sentences
from anynpu.records.ledger import Change, RegressRecord
from anynpu.seals import check_seal


@dataclass(frozen=True, kw_only=True)
class Regress(Judging):
    """Records to add to a ledger, and the version that its newest rows are compared with."""

    added: tuple[str, ...] = flag("Add a record: build, bench, compare or eval.", (), "--add", metavar="FILE")
    against: str = flag("3.12.0, or ethos-u-vela=3.12.0.", "last", metavar="VERSION", shown=True)


@verb(Regress)
def regress(asked: Regress) -> int:
    """Report what changed from one toolchain version to the next; status 1 if something got worse.

    Results are rows of a ledger, a file that is only ever appended to. Rows of one network, chip and metric are
    compared: times with their raw samples by the tests of `anynpu compare`, single figures by --margin.

    \b
    anynpu regress --add out/report.json
    anynpu regress --against ethos-u-vela=3.12.0
    """
    from anynpu.measure.ledger import append, default_path, read, rows_of
    from anynpu.measure.regress import changes

    rules = asked.rules()
    path = asked.ledger or default_path()
    # Every record is read before the first is written: a bad one leaves the ledger as it was.
    records = {file: schema.read_json(Path(file)) for file in asked.added}
    fresh = [row for file, record in records.items() for row in rows_of(record, file)]
    for note in filter(None, (check_seal(record, file) for file, record in records.items())):
        click.echo(f"note: {note}", err=True)
    count = append(path, fresh) if asked.added else 0
    ledger = read(path)
    rows, damaged = ledger.rows, ledger.damaged
    changed = changes(rows, asked.against, rules)
    gate = gate_of(rules)
    worse = any(change.verdict == WORSE for change in changed)
    if asked.json:
        print_record(
            RegressRecord(
                ledger=str(path),
                rows=len(rows),
                added=count,
                damaged=damaged,
                gaps=ledger.gaps,
                unsealed=ledger.unsealed,
                level=rules.level,
                margin=rules.margin,
                verdict=WORSE if worse else "ok",
                gate=gate,
                changes=tuple(changed),
            )
        )
        return int(worse)
    new = f", {count} of them new" if asked.added else ""
    skipped = f"; {damaged} damaged lines are left out" if damaged else ""
    click.echo(f"{path}: {len(rows)} rows{new}{skipped}")
    if ledger.gaps:
        click.echo(f"note: {ledger.gaps} rows follow one that is not there any more: lines were taken out or moved")
    if ledger.unsealed:
        click.echo(f"note: {ledger.unsealed} rows have no seal, so a change of them would not be noticed")
    print_table([_change_row(change) for change in changed])
    for line in sentences(gate):
        click.echo(line)
    if not changed:
        click.echo("no network, chip and metric has figures of two versions yet")
    return int(worse)


def _change_row(change: Change) -> dict[str, str]:
    tools = "; ".join(f"{name} {old} -> {new}" for name, (old, new) in change.tools.items())
    ratio = "-" if change.ratio is None else f"{change.ratio:.4g}"
    if change.interval is not None:
        ratio += f" [{change.interval[0]:.4g}, {change.interval[1]:.4g}]"
    return {
        "network": change.fingerprint[:12],
        "chip": change.chip,
        "metric": change.metric,
        "before": f"{change.before:.6g} {change.unit}".strip(),
        "after": f"{change.after:.6g} {change.unit}".strip(),
        "ratio": ratio,
        "p": "-" if change.p_value is None else f"{change.p_value:.2g}",
        "verdict": change.verdict + (f" ({change.note})" if change.note else ""),
        "tools": tools,
    }

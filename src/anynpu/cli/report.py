"""anynpu report: a record as a page, as Markdown or as JUnit; and the published form of records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from anynpu.cli.command import refuse_unused
from anynpu.cli.table import print_json, print_record
from anynpu.cli.verb import Common, argument, flag, verb
from anynpu.errors import ConfigError, IntegrityError
from anynpu.files import check_free, write_whole, writing
from anynpu.records.load import FORMS as RECORDS
from anynpu.records.load import published, read
from anynpu.records.parts import REPORT
from anynpu.report import html, junit, markdown

FORMS = {
    "html": (html.render, "report.html"),
    "markdown": (markdown.render, "report.md"),
    "junit": (junit.render, "report.junit.xml"),
}


@dataclass(frozen=True, kw_only=True)
class Report(Common):
    """A record, and what is made of it."""

    record: Path | None = argument(None)
    output: str | None = flag(
        "Where the report goes; next to the record by default; - is stdout.", None, "-o", metavar="FILE"
    )
    overwrite: bool = flag("Replace the file of -o if it exists.", False)
    form: str = flag("What to write.", "html", "--as", type=click.Choice(list(FORMS)), shown=True)
    kind: str | None = flag(
        "Print the JSON Schema of a kind of record instead.", None, "--schema", type=click.Choice(list(RECORDS))
    )


@verb(Report)
def report(asked: Report) -> int:
    """Write the report of a build, bench, compare, sweep or eval from its record.

    RECORD is what -f json printed, or the output folder of a build. The HTML is one file that needs no network.

    \b
    anynpu report out/report.json
    anynpu bench out/cpu -f json > bench.json
    anynpu report bench.json -o bench.html
    anynpu report out --as junit -o -
    anynpu report --schema bench
    """
    record, output, kind = asked.record, asked.output, asked.kind
    if kind is not None:
        refuse_unused(click.get_current_context(), "--schema prints a schema", "record", "output", "form")
        print_record(published(kind))
        return 0
    if record is None:
        raise ConfigError("no record is named", "give RECORD.json, or --schema KIND")
    if output == "-" and asked.json:
        raise ConfigError(
            "-o - prints the report itself, which is not JSON", "leave out -f json, or name a file with -o"
        )
    render, ending = FORMS[asked.form]
    data, note = read(record)
    if note:
        click.echo(f"note: {note}", err=True)
    try:
        text = render(data)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # Its form is that of a record, and yet no command of ours can have written it.
        raise IntegrityError(f"{record}: not a whole record ({type(error).__name__}: {error})") from error
    if output == "-":
        click.echo(text.encode("utf-8", "backslashreplace"), nl=False)
        return 0
    if output:
        path = Path(output)
    else:  # out/report.html for out/report.json, bench.html for bench.json
        path = record / ending if record.is_dir() else record.with_name(record.stem + ending.removeprefix("report"))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # The report of a build's folder is made of the record next to it, again and again.
    check_free(path, asked.overwrite or (output is None and record.is_dir()), (record, record / REPORT))
    write_whole(path, text)
    if asked.json:
        print_json("report", {"of": data.kind, "as": asked.form, "path": str(path)})
    else:
        click.echo(str(path))
    return 0

"""Which layer each operation of a command stream comes from, as Vela's debug database has it."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from anynpu.targets.flatbuffer import TfliteOperator

FILE = "stream.csv"
COLUMNS = ("stream", "word", "operator", "kind", "name")


def write_origins(database: Path, before: Sequence[TfliteOperator], out: Path) -> None:
    """Writes one row an operation: the stream, its word in it, and the operator it was compiled from."""
    text = database.read_text("utf-8")
    tables = {name: _table(text, name) for name in ("queue", "optimised", "source")}
    sources = {row["id"]: int(row["ext_key"]) for row in tables["source"]}
    optimised = {row["id"]: sources.get(row["source_id"]) for row in tables["optimised"]}
    streams = list(dict.fromkeys(row["cmdstream_id"] for row in tables["queue"]))
    with (out / FILE).open("w", encoding="utf-8", newline="") as sink:
        writer = csv.writer(sink, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in tables["queue"]:
            index = optimised.get(row["optimised_id"])
            if index is not None and 0 <= index < len(before):
                op = before[index]
                number = streams.index(row["cmdstream_id"])
                writer.writerow([number, int(row["offset"]) // 4, index, op.kind, op.name])


def _table(text: str, name: str) -> list[dict[str, str]]:
    """Returns the rows of one table; a database without it has none."""
    match = re.search(rf'<table name="{name}">\s*<!\[CDATA\[\n(.*?)\]\]>', text, re.DOTALL)
    return list(csv.DictReader(match.group(1).splitlines())) if match else []

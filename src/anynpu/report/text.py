"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anynpu.errors import on_one_line


def columns(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns rows of equal keys as lines: a head, then a line for each row, in columns."""
    if not rows:
        return []
    shown = [{name: on_one_line(cell) for name, cell in row.items()} for row in rows]
    widths = {name: max(len(name), *(len(row[name]) for row in shown)) for name in shown[0]}
    lines = ({name: name for name in shown[0]}, *shown)
    return ["  ".join(cells[name].ljust(width) for name, width in widths.items()).rstrip() for cells in lines]

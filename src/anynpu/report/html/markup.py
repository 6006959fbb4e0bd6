"""HTML and SVG elements as text in which everything from a record is escaped."""

from __future__ import annotations

import functools
import html
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from anynpu.errors import visible


class Markup(str):
    """Text that is already markup; every other text is escaped when it becomes a child or an attribute."""

    __slots__ = ()


Child = str | int | float | None
VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})


def text(value: object) -> Markup:
    """Returns `value` as text of a page; a lone surrogate, which a file name may hold, is shown as an escape."""
    if isinstance(value, Markup):
        return value
    if type(value) in (int, float):  # nothing to escape
        return Markup(value)
    return Markup(html.escape(visible(str(value))))


def join(parts: Iterable[Child]) -> Markup:
    """Returns the parts one after the other."""
    return Markup("".join([part if type(part) is Markup else text(part) for part in parts if part is not None]))


def el(tag: str, *children: Child, **attributes: Any) -> Markup:
    """Returns an element; `class_` is class, `aria_label` is aria-label, True is bare, None and False leave it out."""
    pairs = attributes.items()
    head = "".join([_attribute(name, value) for name, value in pairs if value is not None and value is not False])
    if tag in VOID:
        return Markup(f"<{tag}{head}>")
    return Markup(f"<{tag}{head}>{join(children)}</{tag}>")


def _attribute(name: str, value: object) -> str:
    if value is True:
        return f" {_spelled(name)}"
    shown = number(value) if isinstance(value, float) else value if type(value) is int else text(value)
    return f' {_spelled(name)}="{shown}"'


@functools.cache
def _spelled(name: str) -> str:
    """Returns an attribute's name as a page has it."""
    return name.rstrip("_").replace("_", "-").replace("viewbox", "viewBox")


def number(value: float) -> str:
    """Returns a coordinate with two digits, without those that say nothing."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def data_block(name: str, data: object) -> Markup:
    """Returns data for the page's script; no character in it can end the element."""
    body = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        body = body.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(f'<script type="application/json" id="{text(name)}">{body}</script>')


def finite(data: Any) -> Any:
    """Returns the data with None for every number that JSON cannot hold."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return data


def table(
    rows: Iterable[Mapping[str, Child]], caption: str = "", numeric: Iterable[str] = (), **attributes: Any
) -> Markup:
    """Returns rows of equal keys as a table; an empty string without rows."""
    lines = list(rows)
    if not lines:
        return Markup("")
    right = set(numeric)
    head = el("tr", *(el("th", name, scope="col", class_="num" if name in right else None) for name in lines[0]))
    body = (
        el("tr", *(el("td", cell, class_="num" if name in right else None) for name, cell in line.items()))
        for line in lines
    )
    title = el("caption", caption) if caption else None
    whole = el("table", title, el("thead", head), el("tbody", *body), **attributes)
    return el("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption or "table")

"""One static HTML file of any record: no network, no external font, no script but its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anynpu.report.html.markup import join
from anynpu.report.html.page import whole_page

if TYPE_CHECKING:
    from anynpu.records.load import Record


def render(record: Record) -> str:
    """Returns the report of a record. Only the pages of its own kind are loaded."""
    if record.kind == "build":
        from anynpu.report.html import build

        head, sections = build.head(record), build.sections(record)
    else:
        from anynpu.report.html import measurement

        head, sections = measurement.parts(record)
    program = f"anynpu {record.anynpu}" if record.anynpu else "anynpu"
    foot = join((f"{program} · record of kind {record.kind}, version {record.schema_version}",))
    return whole_page(head, sections, foot)

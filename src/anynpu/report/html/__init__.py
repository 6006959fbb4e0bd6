"""One static HTML file of any record: no network, no external font, no script but its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anynpu.report.html import build, measurement
from anynpu.report.html.markup import join
from anynpu.report.html.page import Head, Section, whole_page

Record = Mapping[str, Any]

KINDS: Mapping[str, tuple[Callable[[Record], Head], Callable[[Record], list[Section]]]] = {
    "build": (build.head, build.sections),
    "bench": (measurement.bench_head, measurement.bench_sections),
    "compare": (measurement.compare_head, measurement.compare_sections),
    "sweep": (measurement.sweep_head, measurement.sweep_sections),
    "eval": (measurement.eval_head, measurement.eval_sections),
}


def render(record: Record) -> str:
    """Returns the report of a record that `report.schema.check` accepts."""
    head, sections = KINDS[record["kind"]]
    made = f"anynpu {record['anynpu']}" if record.get("anynpu") else "anynpu"
    foot = join((f"{made} · record of kind {record['kind']}, version {record.get('schema_version', '?')}",))
    return whole_page(head(record), sections(record), foot)

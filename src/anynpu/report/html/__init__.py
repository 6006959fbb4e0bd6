"""One static HTML file of any record: no network, no external font, no script but its own."""

from __future__ import annotations

from anynpu.records.bench import BenchRecord
from anynpu.records.build import BuildRecord
from anynpu.records.compare import CompareRecord
from anynpu.records.load import Record
from anynpu.records.sweep import SweepRecord
from anynpu.report.html import build, measurement
from anynpu.report.html.markup import join
from anynpu.report.html.page import Head, Section, whole_page


def _parts(record: Record) -> tuple[Head, list[Section]]:
    """Returns the top and the sections of a record's page."""
    if isinstance(record, BuildRecord):
        return build.head(record), build.sections(record)
    if isinstance(record, BenchRecord):
        return measurement.bench_head(record), measurement.bench_sections(record)
    if isinstance(record, CompareRecord):
        return measurement.compare_head(record), measurement.compare_sections(record)
    if isinstance(record, SweepRecord):
        return measurement.sweep_head(record), measurement.sweep_sections(record)
    return measurement.eval_head(record), measurement.eval_sections(record)


def render(record: Record) -> str:
    """Returns the report of a record."""
    head, sections = _parts(record)
    made = f"anynpu {record.anynpu}" if record.anynpu else "anynpu"
    foot = join((f"{made} · record of kind {record.kind}, version {record.schema_version}",))
    return whole_page(head, sections, foot)

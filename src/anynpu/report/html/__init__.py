"""One static HTML file of any record: no network, no external font, no script but its own."""

from __future__ import annotations

from anynpu.records.bench import BenchRecord
from anynpu.records.build import BuildRecord
from anynpu.records.compare import CompareRecord
from anynpu.records.load import Record
from anynpu.records.sweep import SweepRecord
from anynpu.report.html import build, measurement
from anynpu.report.html.markup import join
from anynpu.report.html.page import whole_page


def render(record: Record) -> str:
    """Returns the report of a record."""
    if isinstance(record, BuildRecord):
        head, sections = build.head(record), build.sections(record)
    elif isinstance(record, BenchRecord):
        head, sections = measurement.bench_head(record), measurement.bench_sections(record)
    elif isinstance(record, CompareRecord):
        head, sections = measurement.compare_head(record), measurement.compare_sections(record)
    elif isinstance(record, SweepRecord):
        head, sections = measurement.sweep_head(record), measurement.sweep_sections(record)
    else:
        head, sections = measurement.eval_head(record), measurement.eval_sections(record)
    program = f"anynpu {record.anynpu}" if record.anynpu else "anynpu"
    foot = join((f"{program} · record of kind {record.kind}, version {record.schema_version}",))
    return whole_page(head, sections, foot)

"""The reports of a bench, a comparison, a sweep and an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from anynpu.measure.stats import TIME_UNITS, quantity
from anynpu.records.bench import BenchRecord
from anynpu.records.compare import LETTERS, CompareRecord
from anynpu.records.eval import EvalRecord
from anynpu.records.shared import Summary
from anynpu.records.sweep import SweepRecord, SweepRow
from anynpu.report import measurements
from anynpu.report.facts import short
from anynpu.report.figures import percent
from anynpu.report.html import latency
from anynpu.report.html.axes import more
from anynpu.report.html.intervals import ratio_chart, score_chart
from anynpu.report.html.markup import Child, Markup, el, join, table
from anynpu.report.html.page import Head, Section, copied, notes
from anynpu.report.html.pareto import pareto

FASTER, FEWER = ("B is faster", "B is slower"), ("B takes fewer", "B takes more")
DIGESTS = ("artifact", "fingerprint")


Measurement = BenchRecord | CompareRecord | SweepRecord | EvalRecord


def parts(record: Measurement) -> tuple[Head, list[Section]]:
    """Returns the head and the sections of a measurement's report."""
    if isinstance(record, BenchRecord):
        return bench_head(record), bench_sections(record)
    if isinstance(record, CompareRecord):
        return compare_head(record), compare_sections(record)
    if isinstance(record, SweepRecord):
        return sweep_head(record), sweep_sections(record)
    return eval_head(record), eval_sections(record)


def _head(record: Measurement, title: str, verdict: tuple[str, str], *about: str) -> Head:
    by = f"anynpu {record.anynpu}" if record.anynpu else ""
    return Head(record.kind, title, *verdict, [fact for fact in (*about, by, record.at) if fact])


def _drawn(shown: measurements.Table, **attributes: str) -> Markup:
    return table(shown.rows, shown.title, shown.numeric, **attributes)


def bench_head(record: BenchRecord) -> Head:
    title = record.path or record.executed or record.board or "bench"
    about = (record.executed, record.scenario, record.scope, record.clock)
    return _head(record, title, measurements.bench_verdict(record), *about)


def bench_sections(record: BenchRecord) -> list[Section]:
    """Returns distribution, timeline, stages and conditions of a bench."""
    supported, stages, outliers, together, conditions = measurements.tables(record)
    summary, unit = measurements.latency_summary(record), measurements.latency_unit(record)
    warnings = _summary_notes(summary) if record.warnings is None else record.warnings
    runs = {
        f"{model.name} {name}": run.samples if run else ()
        for model in (record.together.models if record.together else ())
        for name, run in (("alone", model.alone), ("together", model.together))
    }
    at_once = join((_drawn(together), latency.overlay(runs, unit))) if together.rows else Markup("")
    rows = [*supported.rows]
    if record.throughput:
        rate = f"{short(record.throughput.per_s)} /s"
        rows.append({"": "throughput", unit: rate, "95 % interval": "-"})
    figures = table(rows, supported.title, supported.numeric)
    return [
        Section("summary", "Summary", join((notes(warnings, "notes warn"), figures))),
        Section("latency", quantity(unit).capitalize(), _samples(record, summary, outliers)),
        Section("stages", "Stages", _drawn(stages)),
        Section("together", "Several models at once", at_once),
        Section("provenance", "Conditions", _drawn(conditions, class_="pairs")),
    ]


def _samples(record: BenchRecord, summary: Summary | None, outliers: measurements.Table) -> Markup:
    """Returns the distribution of the samples, and how they went over time."""
    samples, started = measurements.latency_samples(record)
    if not samples or summary is None:
        return Markup("")
    unit = measurements.latency_unit(record)
    marks = {name: (at.value, at.low, at.high) for name, at in summary.percentiles.items()}
    spikes = {int(i): "" for i in summary.outliers}
    spikes |= {spike.index: ", ".join(spike.causes) for spike in record.spikes}
    listed = more("The largest outliers and what may have caused them", _drawn(outliers)) if outliers.rows else None
    return join((latency.histogram(samples, unit, marks), latency.timeline(samples, started, spikes, unit, listed)))


def _summary_notes(summary: Summary | None) -> list[str]:
    """Returns what disturbs the figures, as sentences."""
    if summary is None:
        return []
    sentences, trend, modes = [], summary.trend, summary.modes
    if trend.p_value < 0.01:
        way = "rise" if trend.tau > 0 else "fall"
        test = f"Mann-Kendall tau {short(trend.tau)}, p {short(trend.p_value)}"
        sentences.append(f"the samples {way} with time ({test})")
    if modes:
        heaps = f"{short(modes.low)} and {short(modes.high)}"
        sentences.append(f"two heaps, at {heaps}; {percent(modes.share_high)} in the upper")
    if summary.outliers:
        sentences.append(f"{len(summary.outliers)} outliers; none is left out")
    if summary.effective_size < 0.5 * summary.count:
        worth = f"{summary.count} are worth {summary.effective_size:.0f} independent ones"
        sentences.append(f"successive samples are alike: {worth}")
    return sentences


def compare_head(record: CompareRecord) -> Head:
    names = [row["name"] for row in measurements.side_rows(record)]
    return _head(record, f"{names[0]} against {names[1]}", measurements.compare_verdict(record))


def compare_sections(record: CompareRecord) -> list[Section]:
    """Returns ratio, distributions, accuracy and outputs of a comparison."""
    sides, timed, accuracy, outputs, conditions = measurements.tables(record)
    unit = measurements.compare_unit(record)
    launches = record.measured.launches if record.measured else None
    runs = {
        letter.upper(): [float(value) for launch in getattr(launches, letter, ()) for value in launch]
        for letter in LETTERS
    }
    ratio = ratio_chart(measurements.compare_ratio(record), *(FASTER if unit in TIME_UNITS else FEWER))
    who: list[dict[str, Child]] = [
        {name: copied(value) if name in DIGESTS and value != "-" else value for name, value in row.items()}
        for row in sides.rows
    ]
    test = table(timed.rows, "Test", class_="pairs")
    return [
        Section("summary", "Summary", join((ratio, table(who, sides.title, sides.numeric), notes(record.notes)))),
        Section("latency", timed.title, join((latency.overlay(runs, unit), test))),
        Section("accuracy", "Accuracy", _drawn(accuracy)),
        Section("outputs", "Outputs", table(outputs.rows, "B against A")),
        Section("provenance", "Conditions", _drawn(conditions, class_="pairs")),
    ]


def sweep_head(record: SweepRecord) -> Head:
    models = dict.fromkeys(row.model for row in record.rows)
    return _head(record, ", ".join(models) or "sweep", measurements.sweep_verdict(record))


def sweep_sections(record: SweepRecord) -> list[Section]:
    """Returns the Pareto plots of every group of comparable builds, and all builds as a table."""
    groups: dict[tuple[str, str], list[SweepRow]] = {}
    for row in record.rows:
        groups.setdefault((row.group or row.model, row.metric or "SQNR in dB"), []).append(row)
    plots = [_plots(metric, rows, group if len(groups) > 1 else "") for (group, metric), rows in groups.items()]
    builds, conditions = measurements.tables(record)
    failed = [f"{row.model} {row.chip}: {row.error}" for row in record.rows if row.error]
    every = table(builds.rows, "Every build", builds.numeric, class_="sortable")
    return [
        Section("pareto", "Pareto front", join(plots)),
        Section("builds", "Builds", join((every, notes(failed), notes(record.notes)))),
        Section("provenance", "Conditions", _drawn(conditions, class_="pairs")),
    ]


def _plots(metric: str, rows: Sequence[SweepRow], group: str) -> Markup:
    models = ", ".join(dict.fromkeys(row.model for row in rows))
    up = (metric, lambda row: row.sqnr_db if row.score is None else row.score)  # SQNR where there are no labels
    sources = ", ".join(dict.fromkeys(row.latency_source for row in rows if row.latency_source))
    note = el("p", f"Latencies are estimates ({sources}).", class_="muted") if sources else None
    return join(
        (
            el("h3", models, f" ({group})" if group != models else "") if group else None,
            pareto(f"{metric} against latency", rows, ("latency ESTIMATE in ms", lambda row: row.latency_ms), up),
            note,
            pareto(f"{metric} against SRAM", rows, ("SRAM in KiB", lambda row: _kib(row.sram_bytes)), up),
            pareto(f"{metric} against flash", rows, ("flash in KiB", lambda row: _kib(row.flash_bytes)), up),
        )
    )


def _kib(size: float | None) -> float | None:
    return None if size is None else size / 1024


def eval_head(record: EvalRecord) -> Head:
    title = record.executed or (record.data.source if record.data else "") or "evaluation"
    return _head(record, title, measurements.eval_verdict(record), record.metric)


def eval_sections(record: EvalRecord) -> list[Section]:
    """Returns the score with its interval, every other figure, and the data."""
    figures, data = measurements.tables(record)
    drawn = Markup("")
    if record.score is not None:
        drawn = score_chart(record.metric or "score", record.score, record.low, record.high)
    return [
        Section("summary", "Score", join((drawn, notes(record.notes, "notes")))),
        Section("figures", "Figures", table(figures.rows, "Figures and conditions", class_="pairs")),
        Section("provenance", "Data", _drawn(data, class_="pairs")),
    ]

"""The reports of a bench, a comparison, a sweep and an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anynpu.measure.stats import TIME_UNITS, quantity
from anynpu.report import facts
from anynpu.report.figures import percent
from anynpu.report.html import latency
from anynpu.report.html.axes import more
from anynpu.report.html.intervals import ratio_chart, score_chart
from anynpu.report.html.markup import Markup, el, join, table
from anynpu.report.html.page import Head, Section, copied, notes
from anynpu.report.html.pareto import pareto

Record = Mapping[str, Any]
BENCH_LEAVE = ("latency", "counts", "stages", "ticks", "spikes", "together", "throughput", "verdict")
COMPARE_LEAVE = ("latency", "counts", "accuracy", "outputs", "a", "b", "ratio")
FASTER, FEWER = ("B is faster", "B is slower"), ("B takes fewer", "B takes more")
LEAVE = ("schema_version", "kind", "notes", "warnings", "samples", "started_s", "summary")


def _facts(record: Record, *names: str) -> list[str]:
    told = [str(record[name]) for name in names if isinstance(record.get(name), str)]
    return [*told, f"anynpu {record['anynpu']}" if record.get("anynpu") else "", str(record.get("at") or "")]


def _head(kind: str, title: str, said: tuple[str, str], about: Sequence[str]) -> Head:
    return Head(kind, title, said[0], said[1], [fact for fact in about if fact])


def bench_head(record: Record) -> Head:
    title = str(record.get("path") or record.get("executed") or record.get("board") or "bench")
    return _head("bench", title, facts.bench_verdict(record), _facts(record, "executed", "scenario", "scope", "clock"))


def bench_sections(record: Record) -> list[Section]:
    """Returns distribution, timeline, stages and conditions of a bench."""
    samples, started = facts.latency_samples(record)
    summary, unit = facts.latency_summary(record), facts.latency_unit(record)
    marks = {
        name: (at["value"], at.get("low"), at.get("high"))
        for name, at in (summary.get("percentiles") or {}).items()
        if at.get("value") is not None
    }
    drawn = Markup("")
    if samples:
        drawn = join((latency.histogram(samples, unit, marks), _timeline(record, samples, started, summary, unit)))
    rows = facts.percentile_rows(summary, unit)
    stages = facts.stage_rows(record)
    told = notes(_summary_notes(summary) if record.get("warnings") is None else record["warnings"], "notes warn")
    speed = (record.get("throughput") or {}).get("per_s")
    rows += [{"": "throughput", unit: f"{facts.short(speed)} /s", "95 % interval": "-"}] if speed else []
    return [
        Section("summary", "Summary", join((told, table(rows, "What the samples support", (unit, "95 % interval"))))),
        Section("latency", quantity(unit).capitalize(), drawn),
        Section("stages", "Stages", table(stages, "Stages", ("min", "median", "max"))),
        Section("together", "Several models at once", _together(record)),
        Section("provenance", "Conditions", _conditions(record, BENCH_LEAVE)),
    ]


def _timeline(
    record: Record, samples: Sequence[float], started: Sequence[float] | None, summary: Record, unit: str
) -> Markup:
    spikes = {int(i): "" for i in summary.get("outliers") or ()}
    spikes |= {int(s["index"]): ", ".join(s.get("causes") or ()) for s in record.get("spikes") or () if "index" in s}
    rows = facts.spike_rows(record)
    listed = more(
        "The largest outliers and what may have caused them", table(rows, "Outliers", ("sample", "at s", unit))
    )
    return latency.timeline(samples, started, spikes, unit, listed if rows else None)


def _together(record: Record) -> Markup:
    rows = facts.together_rows(record)
    unit, runs = facts.latency_unit(record), {}
    for model in (record.get("together") or {}).get("models") or ():
        for name in ("alone", "together"):
            runs[f"{model.get('name')} {name}"] = (model.get(name) or {}).get("samples") or []
    drawn = latency.overlay(runs, unit) if rows else None
    return join((table(rows, "Alone and together", ("median alone", "median together", "slowdown")), drawn))


def _summary_notes(summary: Record) -> list[str]:
    """Returns what disturbs the figures, as sentences."""
    told, trend, modes = [], summary.get("trend") or {}, summary.get("modes") or {}
    if trend.get("p_value") is not None and trend["p_value"] < 0.01:
        way = "rise" if (trend.get("tau") or 0) > 0 else "fall"
        test = f"Mann-Kendall tau {facts.short(trend.get('tau'))}, p {facts.short(trend['p_value'])}"
        told.append(f"the samples {way} with time ({test})")
    if modes:
        heaps = " and ".join(facts.short(modes.get(name)) for name in ("low", "high"))
        told.append(f"two heaps, at {heaps}; {percent(modes.get('share_high'))} in the upper")
    if summary.get("outliers"):
        told.append(f"{len(summary['outliers'])} outliers; none is left out")
    size, count = summary.get("effective_size"), summary.get("count")
    if size and count and size < 0.5 * count:
        told.append(f"successive samples are alike: {count} are worth {size:.0f} independent ones")
    return told


def _conditions(record: Record, leave: Sequence[str]) -> Markup:
    return table(facts.condition_rows(record, (*LEAVE, *leave)), "Conditions", class_="pairs")


def compare_head(record: Record) -> Head:
    names = [row["name"] for row in facts.side_rows(record)]
    return _head("compare", f"{names[0]} against {names[1]}", facts.compare_verdict(record), _facts(record))


def compare_sections(record: Record) -> list[Section]:
    """Returns ratio, distributions, accuracy and outputs of a comparison."""
    timed = facts.measured(record)
    runs = {side.upper(): _launches(record, side) for side in ("a", "b")}
    unit = str(timed.get("unit") or "ms")
    ratio = ratio_chart(facts.compare_ratio(record), *(FASTER if unit in TIME_UNITS else FEWER))
    told = [
        {"what": name.replace("_", " "), "value": value}
        for name, value in facts.flat(timed, ("launches", "summary", "medians"))
    ]
    fidelity = facts.fidelity_rows(record["outputs"]) if isinstance(record.get("outputs"), Mapping) else []
    accuracy = facts.accuracy_rows(record)
    sides = table(_sides(record), "A and B", (f"median {unit}",))
    return [
        Section("summary", "Summary", join((ratio, sides, notes(record.get("notes") or ())))),
        Section(
            "latency",
            quantity(unit).capitalize(),
            join((latency.overlay(runs, unit), table(told, "Test", class_="pairs") if told else None)),
        ),
        Section("accuracy", "Accuracy", table(accuracy, "Accuracy", ("samples", "A", "B"))),
        Section("outputs", "Outputs", table(fidelity, "B against A")),
        Section("provenance", "Conditions", _conditions(record, COMPARE_LEAVE)),
    ]


def _sides(record: Record) -> list[dict[str, str]]:
    digests = ("artifact", "fingerprint")
    rows = facts.side_rows(record)
    return [{name: copied(v) if name in digests and v != "-" else v for name, v in row.items()} for row in rows]


def _launches(record: Record, side: str) -> list[float]:
    launches = (facts.measured(record).get("launches") or {}).get(side) or ()
    found = [float(value) for launch in launches for value in launch]
    about = record.get(side)
    if found or not isinstance(about, Mapping):
        return found
    return [float(value) for value in facts.measured(about).get("samples") or about.get("samples") or ()]


def sweep_head(record: Record) -> Head:
    models = dict.fromkeys(str(row.get("model", "")) for row in record["rows"])
    return _head("sweep", ", ".join(models) or "sweep", facts.sweep_verdict(record), _facts(record))


def sweep_sections(record: Record) -> list[Section]:
    """Returns the Pareto plots of every group of comparable builds, and all builds as a table."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for row in record["rows"]:
        key = (str(row.get("group") or row.get("model") or ""), str(row.get("metric") or "SQNR in dB"))
        groups.setdefault(key, []).append(row)
    plots = [_plots(metric, rows, group if len(groups) > 1 else "") for (group, metric), rows in groups.items()]
    rows = facts.sweep_rows(record)
    numeric = ("float", "score", "SQNR dB", "est. ms", "SRAM KiB", "flash KiB")
    failed = [f"{row.get('model')} {row.get('chip')}: {row['error']}" for row in record["rows"] if row.get("error")]
    return [
        Section("pareto", "Pareto front", join(plots)),
        Section(
            "builds",
            "Builds",
            join(
                (
                    table(rows, "Every build", numeric, class_="sortable"),
                    notes(failed),
                    notes(record.get("notes") or ()),
                )
            ),
        ),
        Section("provenance", "Conditions", _conditions(record, ("rows",))),
    ]


def _plots(metric: str, rows: Sequence[Record], group: str) -> Markup:
    models = ", ".join(dict.fromkeys(str(row.get("model", "")) for row in rows))
    up = (metric, _accuracy)
    sources = ", ".join(dict.fromkeys(str(row["latency_source"]) for row in rows if row.get("latency_source")))
    note = el("p", f"Latencies are estimates ({sources}).", class_="muted") if sources else None
    return join(
        (
            el("h3", models, f" ({group})" if group != models else "") if group else None,
            pareto(
                f"{metric} against latency", rows, ("latency ESTIMATE in ms", lambda row: row.get("latency_ms")), up
            ),
            note,
            pareto(f"{metric} against SRAM", rows, ("SRAM in KiB", lambda row: _kib(row.get("sram_bytes"))), up),
            pareto(f"{metric} against flash", rows, ("flash in KiB", lambda row: _kib(row.get("flash_bytes"))), up),
        )
    )


def _accuracy(row: Record) -> float | None:
    """Returns the task score, or the SQNR where the samples have no labels."""
    found = row.get("score") if row.get("score") is not None else row.get("sqnr_db")
    return None if found is None else float(found)


def _kib(size: float | None) -> float | None:
    return None if size is None else size / 1024


def eval_head(record: Record) -> Head:
    about = record.get("data") or {}
    source = about.get("source") if isinstance(about, Mapping) else about
    title = str(record.get("executed") or record.get("model") or source or "evaluation")
    return _head("eval", title, facts.eval_verdict(record), _facts(record, "metric"))


def eval_sections(record: Record) -> list[Section]:
    """Returns the score with its interval, every other figure, and the data."""
    score = record.get("score")
    drawn = (
        Markup("")
        if score is None
        else score_chart(str(record.get("metric") or "score"), score, record.get("low"), record.get("high"))
    )
    rows = facts.condition_rows(record, (*LEAVE, "data", "metric", "score", "low", "high"))
    data = record.get("data")
    about = [{"what": name, "value": value} for name, value in facts.flat(data)] if isinstance(data, Mapping) else []
    return [
        Section("summary", "Score", join((drawn, notes(record.get("notes") or (), "notes")))),
        Section("figures", "Figures", table(rows, "Figures and conditions", class_="pairs")),
        Section("provenance", "Data", table(about, "Data", class_="pairs")),
    ]

"""Records of measurements as sentences and tables for people: what the Markdown and the HTML report both say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch

from anynpu.measure.stats import quantity, summarize
from anynpu.records.bench import BenchRecord
from anynpu.records.compare import LETTERS, CompareRecord, LatencyVersus, Ratio
from anynpu.records.eval import EvalRecord
from anynpu.records.shared import Summary
from anynpu.records.sweep import SweepRecord
from anynpu.report.facts import Row, fidelity_rows, flat, short
from anynpu.report.figures import decibel, kib, percent
from anynpu.schema import to_dict

LEAVE = ("schema_version", "kind", "notes", "warnings")


@dataclass(frozen=True)
class Table:
    """A table of a record; `numeric` are the columns that hold figures."""

    title: str
    rows: Sequence[Mapping[str, str]]
    numeric: tuple[str, ...] = ()


def interval(low: float | None, high: float | None) -> str:
    """Returns "1.2 to 3.4", with what is known of it."""
    if low is None and high is None:
        return "-"
    return f"{short(low)} to {short(high)}" if high is not None else f"{short(low)} or more"


def condition_rows(form: object, leave: Iterable[str]) -> list[Row]:
    """Returns the fields of a record or of a part of it, one a row."""
    return [{"what": name.replace("_", " "), "value": value} for name, value in flat(to_dict(form), leave)]


def axis_title(unit: str) -> str:
    """Returns the title of an axis of samples: "latency in ms", or "instructions"."""
    return f"latency in {unit}" if quantity(unit) == "latency" else unit


def latency_unit(record: BenchRecord) -> str:
    """Returns the unit of a bench's samples."""
    return record.measured.unit if record.measured else record.unit


def latency_samples(record: BenchRecord) -> tuple[Sequence[float], Sequence[float] | None]:
    """Returns the samples of a bench and when each started; where there are only stages, those of the longest."""
    if record.measured and record.measured.samples:
        return record.measured.samples, record.measured.started_s
    stages = [stage.samples for stage in record.stages.values() if stage]
    return max(stages, key=sum, default=()), None


def latency_summary(record: BenchRecord) -> Summary | None:
    """Returns what the record says of its samples, or what they support where it says nothing."""
    if record.measured and record.measured.summary:
        return record.measured.summary
    samples, _ = latency_samples(record)
    return summarize(samples) if samples else None


def percentile_rows(summary: Summary | None, unit: str) -> list[Row]:
    """Returns the minimum, the mean, percentiles with intervals, and the maximum."""
    if summary is None:
        return []
    rows = [
        {"": name, unit: short(at.value), "95 % interval": interval(at.low, at.high)}
        for name, at in summary.percentiles.items()
    ]
    if not rows:
        middle = interval(*_ends(summary.median_interval))
        rows = [{"": "median", unit: short(summary.median), "95 % interval": middle}]
    for name, value in (("mean", summary.mean), ("min", summary.min), ("max", summary.max)):
        rows.append({"": name, unit: short(value), "95 % interval": "-"})
    return rows


def _ends(ends: Sequence[float | None] | None) -> tuple[float | None, float | None]:
    low, high = (*(ends or ()), None, None)[:2]
    return low, high


def stage_rows(record: BenchRecord) -> list[Row]:
    """Returns the stages of a run with their minimum, median and maximum."""
    return [
        {
            "stage": name,
            "unit": record.unit,
            "min": short(stage.min),
            "median": short(stage.median),
            "max": short(stage.max),
        }
        for name, stage in record.stages.items()
        if stage is not None
    ]


def bench_verdict(record: BenchRecord) -> tuple[str, str]:
    """Returns what a bench came to in one sentence, and whether that is good, warn or bad."""
    summary, unit = latency_summary(record), latency_unit(record)
    broken = not record.complete or bool(record.error)
    because = f" ({record.trouble})" if record.trouble else ""
    if summary is None:
        return (f"nothing was measured{because}" if broken else "no samples", "bad" if broken else "none")
    low, high = _ends(summary.median_interval)
    sentence = f"median {short(summary.median)} {unit}"
    sentence += f" ({interval(low, high)})" if low is not None else ""
    sentence += f", {summary.count} samples" if summary.count else ""
    if broken:
        return f"broke off{because}: {sentence}", "bad"
    bound = record.verdict
    if bound is not None and bound.met is not None:
        kept = "kept" if bound.met else "not kept"
        why = f" ({bound.why})" if bound.why else ""
        return f"latency bound {kept}{why}: {sentence}", "good" if bound.met else "bad"
    return sentence, "warn" if record.warnings else "good"


def spike_rows(record: BenchRecord) -> list[Row]:
    """Returns the largest outliers of a bench, when they were and what may have caused them."""
    return [
        {
            "sample": short(spike.index),
            "at s": short(spike.at_s),
            latency_unit(record): short(spike.value),
            "may come from": ", ".join(spike.causes) or "not known",
        }
        for spike in record.spikes
    ]


def together_rows(record: BenchRecord) -> list[Row]:
    """Returns each of several models alone and together with the others."""
    rows = []
    for model in record.together.models if record.together else ():
        alone, shared = (run.summary if run else None for run in (model.alone, model.together))
        slow = model.slowdown
        rows.append(
            {
                "model": short(model.name),
                "executed": short(model.executed),
                "median alone": short(alone.median if alone else None),
                "median together": short(shared.median if shared else None),
                "slowdown": f"{short(slow.ratio)} ({interval(slow.low, slow.high)})" if slow else "- (-)",
            }
        )
    return rows


def compare_ratio(record: CompareRecord) -> Ratio:
    """Returns the ratio of medians, B over A, wherever the record holds it."""
    return (record.measured.ratio if record.measured else None) or record.ratio or Ratio()


def compare_unit(record: CompareRecord) -> str:
    """Returns the unit of a comparison's samples."""
    return record.measured.unit if record.measured else "ms"


def compare_verdict(record: CompareRecord) -> tuple[str, str]:
    """Returns what a comparison came to, and whether that is good, warn or bad."""
    verdict = record.verdict or "no verdict"
    moods = {"better": "good", "no difference": "good", "same": "good", "worse": "bad", "different": "bad"}
    ratio = compare_ratio(record)
    sentence = f"B is {verdict} than A" if verdict in ("better", "worse") else verdict
    if ratio.median is not None:
        ends = interval(ratio.low, ratio.high)
        sentence += f": {quantity(compare_unit(record))} B / A {short(ratio.median)} ({ends})"
    failed = record.partial or record.failure
    return (f"broke off: {sentence}", "bad") if failed else (sentence, moods.get(verdict, "warn"))


def side_rows(record: CompareRecord) -> list[Row]:
    """Returns who A and B are, and the medians of both."""
    rows = []
    timed = record.measured or LatencyVersus()
    for letter in LETTERS:
        side = record.side(letter)
        # The medians that the ratio is of; that of all samples is another figure.
        median = getattr(timed.medians, letter, None)
        summary = getattr(timed.summary, letter, None)
        rows.append(
            {
                "side": letter.upper(),
                "name": short(side.name),
                "chip": short(side.chip),
                "executed": short(side.executed),
                "artifact": short(side.artifact),
                "fingerprint": short(side.fingerprint),
                f"median {timed.unit}": short(median or (summary.median if summary else None)),
            }
        )
    return rows


def accuracy_rows(record: CompareRecord) -> list[Row]:
    """Returns the accuracy of both sides and the test between them."""
    accuracy = record.accuracy
    if accuracy is None:
        return []
    mean, low, high = (*accuracy.difference, None, None, None)[:3]
    return [
        {
            "metric": short(accuracy.metric),
            "samples": short(accuracy.samples),
            "A": short(accuracy.a),
            "B": short(accuracy.b),
            "B − A": f"{short(mean)} ({interval(low, high)})",
            "p (adjusted)": short(accuracy.p_value if accuracy.p_adjusted is None else accuracy.p_adjusted),
            "test": short(accuracy.test),
            "verdict": short(accuracy.verdict),
        }
    ]


def sweep_rows(record: SweepRecord) -> list[Row]:
    """Returns one row a build of a sweep."""
    return [
        {
            "front": "● best" if row.best else "●" if row.on_front else "",
            "model": short(row.model),
            "chip": short(row.chip),
            "options": row.option_text,
            "status": short(row.status),
            "metric": short(row.metric),
            "float": percent(row.score_float),
            "score": percent(row.score),
            "SQNR dB": decibel(row.sqnr_db),
            "est. ms": short(row.latency_ms),
            "SRAM KiB": kib(row.sram_bytes),
            "flash KiB": kib(row.flash_bytes),
        }
        for row in record.rows
    ]


def sweep_verdict(record: SweepRecord) -> tuple[str, str]:
    """Returns how many builds went well and how many nothing beats."""
    rows, defaults = record.rows, {each.name: each.default for each in record.gate}
    fine = [row for row in rows if row.status == "ok"]
    lowered = 0  # builds with a figure that the default thresholds would not let pass
    for row in fine:
        drop = None if row.score is None or row.score_float is None else 100 * (row.score_float - row.score)
        lowered += (
            (row.sqnr_db is not None and row.sqnr_db < defaults.get("min_sqnr", -math.inf))
            or (drop is not None and drop > defaults.get("max_drop", math.inf))
            or (row.on_npu is not None and 100 * row.on_npu < defaults.get("require_npu", 0.0))
        )
    front = sum(row.on_front for row in rows)
    sentence = f"{len(fine)} of {len(rows)} builds ok, {front} on the Pareto front"
    sentence += f"; {lowered} of them by a lowered gate only" if lowered else ""
    return sentence, "good" if len(fine) == len(rows) and rows and not lowered else "warn" if fine else "bad"


def eval_verdict(record: EvalRecord) -> tuple[str, str]:
    """Returns the score with its interval, and the comparison where there is one."""
    sentence = f"{record.metric or 'score'} {short(record.score)}"
    sentence += f" ({interval(record.low, record.high)})" if record.low is not None else ""
    sentence += f", {record.samples} samples" if record.samples is not None else ""
    against, unread = record.against, record.data.failed if record.data else ()
    sentence += f"; {against.verdict} than {against.path}" if against and against.verdict in ("better", "worse") else ""
    sentence += f"; {len(unread)} samples could not be read" if unread else ""
    if unread or (against and against.verdict == "worse"):
        return sentence, "bad"
    return sentence, "none" if record.score is None else "good"


@singledispatch
def tables(record: object) -> list[Table]:
    """Returns the tables of a record of a measurement: what Markdown lists and the page shows with its charts."""
    raise TypeError(f"{type(record).__name__} has no tables")


@tables.register
def _(record: BenchRecord) -> list[Table]:
    unit = latency_unit(record)
    leave = (*LEAVE, "latency", "counts", "stages", "ticks", "spikes", "together", "verdict")
    return [
        Table("What the samples support", percentile_rows(latency_summary(record), unit), (unit, "95 % interval")),
        Table("Stages", stage_rows(record), ("min", "median", "max")),
        Table("Outliers", spike_rows(record), ("sample", "at s", unit)),
        Table("Several models at once", together_rows(record), ("median alone", "median together", "slowdown")),
        Table("Conditions", condition_rows(record, leave)),
    ]


@tables.register
def _(record: CompareRecord) -> list[Table]:
    leave = (*LEAVE, "a", "b", "latency", "counts", "accuracy", "outputs", "ratio")
    timed = condition_rows(record.measured, ("launches", "summary", "medians")) if record.measured else []
    return [
        Table("A and B", side_rows(record), (f"median {compare_unit(record)}",)),
        Table(quantity(compare_unit(record)).capitalize(), timed),
        Table("Accuracy", accuracy_rows(record), ("samples", "A", "B")),
        Table("Outputs", fidelity_rows(record.outputs)),
        Table("Conditions", condition_rows(record, leave)),
    ]


@tables.register
def _(record: SweepRecord) -> list[Table]:
    numeric = ("float", "score", "SQNR dB", "est. ms", "SRAM KiB", "flash KiB")
    return [
        Table("Builds", sweep_rows(record), numeric),
        Table("Conditions", condition_rows(record, (*LEAVE, "rows"))),
    ]


@tables.register
def _(record: EvalRecord) -> list[Table]:
    figures = condition_rows(record, (*LEAVE, "data", "metric", "score", "low", "high"))
    return [Table("Figures", figures), Table("Data", condition_rows(record.data, ()) if record.data else [])]

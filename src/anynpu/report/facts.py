"""Records of measurements as rows for people: what the Markdown and the HTML report both say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from anynpu.measure.stats import quantity, summarize
from anynpu.measure.threshold import Threshold, sentences
from anynpu.report.figures import decibel, kib, percent
from anynpu.schema import from_dict

Record = Mapping[str, Any]
Row = dict[str, str]
LONG = 8
"""A list longer than this is counted, not shown; the record has it."""


def short(value: Any) -> str:
    """Returns a number with five digits, a truth value as a word, "-" for nothing."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def interval(low: Any, high: Any) -> str:
    """Returns "1.2 to 3.4", with what is known of it."""
    if low is None and high is None:
        return "-"
    return f"{short(low)} to {short(high)}" if high is not None else f"{short(low)} or more"


def flat(record: Record, leave: Iterable[str] = (), prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields every plain figure of a record by its dotted name; long lists are counted."""
    left = set(leave)
    for name, value in record.items():
        full = f"{prefix}{name}"
        if name in left or value is None or value == "":
            continue
        if isinstance(value, Mapping):
            yield from flat(value, (), f"{full}.")
        elif isinstance(value, list):
            if value:
                plain = len(value) <= LONG and not any(isinstance(item, list | Mapping) for item in value)
                yield full, ", ".join(map(short, value)) if plain else f"{len(value)} values"
        else:
            yield full, short(value)


def condition_rows(record: Record, leave: Iterable[str]) -> list[Row]:
    """Returns the conditions of a measurement, one a row."""
    return [{"what": name.replace("_", " "), "value": value} for name, value in flat(record, leave)]


def measured(record: Record) -> Record:
    """Returns the part of a bench or a comparison that holds its samples: latencies, or counts that are no time."""
    found: Record = record.get("latency") or record.get("counts") or {}
    return found


def axis_title(unit: str) -> str:
    """Returns the title of an axis of samples: "latency in ms", or "instructions"."""
    return f"latency in {unit}" if quantity(unit) == "latency" else unit


def latency_unit(record: Record) -> str:
    """Returns the unit of a bench's samples."""
    return str(measured(record).get("unit") or record.get("unit") or "ms")


def latency_samples(record: Record) -> tuple[list[float], list[float] | None]:
    """Returns the samples of a bench and when each started; where there are only stages, those of the longest."""
    latency = measured(record)
    if latency.get("samples"):
        return latency["samples"], latency.get("started_s")
    stages = [stage.get("samples") or [] for stage in (record.get("stages") or {}).values()]
    return max(stages, key=lambda samples: sum(samples), default=[]), None


def latency_summary(record: Record) -> Record:
    """Returns what the record says of its samples, or what they support where it says nothing."""
    said = measured(record).get("summary")
    samples, _ = latency_samples(record)
    if said or not samples:
        return said or {}
    return summarize(samples).to_json()


def percentile_rows(summary: Record, unit: str) -> list[Row]:
    """Returns least, mean, percentiles with intervals, and most."""
    rows = [
        {"": name, unit: short(at.get("value")), "95 % interval": interval(at.get("low"), at.get("high"))}
        for name, at in (summary.get("percentiles") or {}).items()
    ]
    if not rows and summary.get("median") is not None:
        low, high = (*(summary.get("median_interval") or ()), None, None)[:2]
        rows = [{"": "median", unit: short(summary["median"]), "95 % interval": interval(low, high)}]
    for name in ("mean", "min", "max"):
        if summary.get(name) is not None:
            rows.append({"": name, unit: short(summary[name]), "95 % interval": "-"})
    return rows


def stage_rows(record: Record) -> list[Row]:
    """Returns the stages of a run with their least, median and most."""
    return [
        {
            "stage": name,
            "unit": str(record.get("unit") or "ms"),
            **{k: short(stage.get(k)) for k in ("min", "median", "max")},
        }
        for name, stage in (record.get("stages") or {}).items()
        if isinstance(stage, Mapping)
    ]


def bench_verdict(record: Record) -> tuple[str, str]:
    """Returns what a bench came to in one sentence, and whether that is good, warn or bad."""
    summary, unit = latency_summary(record), latency_unit(record)
    broken = record.get("complete") is False or bool(record.get("error"))
    if summary.get("median") is None:
        return (f"nothing was measured{_because(record)}" if broken else "no samples", "bad" if broken else "none")
    low, high = (*(summary.get("median_interval") or ()), None, None)[:2]
    said = f"median {short(summary['median'])} {unit}"
    said += f" ({interval(low, high)})" if low is not None else ""
    said += f", {summary.get('count')} samples" if summary.get("count") else ""
    if broken:
        return f"broke off{_because(record)}: {said}", "bad"
    bound = record.get("verdict") or {}
    if bound.get("met") is not None:
        kept = "kept" if bound["met"] else "not kept"
        why = f" ({bound['why']})" if bound.get("why") else ""
        return f"latency bound {kept}{why}: {said}", "good" if bound["met"] else "bad"
    return said, "warn" if record.get("warnings") else "good"


def _because(record: Record) -> str:
    error = record.get("error")
    told = error.get("message") if isinstance(error, Mapping) else error
    return f" ({told})" if told else ""


def spike_rows(record: Record) -> list[Row]:
    """Returns the largest outliers of a bench, when they were and what may have caused them."""
    unit = latency_unit(record)
    return [
        {
            "sample": short(spike.get("index")),
            "at s": short(spike.get("at_s")),
            unit: short(spike.get("value")),
            "may come from": ", ".join(spike.get("causes") or ()) or "not known",
        }
        for spike in record.get("spikes") or ()
    ]


def together_rows(record: Record) -> list[Row]:
    """Returns each of several models alone and beside the others."""
    rows = []
    for model in (record.get("together") or {}).get("models") or ():
        alone, shared = ((model.get(name) or {}).get("summary") or {} for name in ("alone", "together"))
        slow = model.get("slowdown") or {}
        rows.append(
            {
                "model": short(model.get("name")),
                "executed": short(model.get("executed")),
                "median alone": short(alone.get("median")),
                "median together": short(shared.get("median")),
                "slowdown": f"{short(slow.get('ratio'))} ({interval(slow.get('low'), slow.get('high'))})",
            }
        )
    return rows


def gate_lines(record: Record) -> list[str]:
    """Returns a sentence for every threshold of a record that is not the default."""
    return sentences(from_dict(Threshold, dict(each), "gate") for each in record.get("gate") or ())


def fidelity_rows(outputs: Record) -> list[Row]:
    """Returns each output against the float model."""
    return [
        {
            "output": name,
            "SQNR dB": decibel(f.get("sqnr_db")),
            "SQNR dB (variance)": decibel(f.get("sqnr_var_db")),
            "SQNR dB (over samples)": decibel(f.get("sqnr_centred_db")),
            "cosine": "-" if f.get("cosine") is None else f"{f['cosine']:.6f}",
            "max error": "-" if f.get("max_abs_error") is None else f"{f['max_abs_error']:.4g}",
            "argmax agrees": percent(f.get("argmax_agreement")),
        }
        for name, f in outputs.items()
    ]


def compare_ratio(record: Record) -> Record:
    """Returns the ratio of medians, B over A, wherever the record holds it."""
    ratio: Record = measured(record).get("ratio") or record.get("ratio") or {}
    return ratio


def compare_verdict(record: Record) -> tuple[str, str]:
    """Returns what a comparison came to, and whether that is good, warn or bad."""
    verdict = str(record.get("verdict") or "no verdict")
    moods = {"better": "good", "no difference": "good", "same": "good", "worse": "bad", "different": "bad"}
    failed = bool(record.get("partial") or record.get("failure"))
    ratio = compare_ratio(record)
    said = f"B is {verdict} than A" if verdict in ("better", "worse") else verdict
    if ratio.get("median") is not None:
        ends = interval(ratio.get("low"), ratio.get("high"))
        said += f": {quantity(latency_unit(record))} B / A {short(ratio['median'])} ({ends})"
    return (f"broke off: {said}", "bad") if failed else (said, moods.get(verdict, "warn"))


def side_rows(record: Record) -> list[Row]:
    """Returns who A and B are, and the medians of both."""
    rows = []
    timed = measured(record)
    summary, medians = timed.get("summary") or {}, timed.get("medians") or {}
    for side in ("a", "b"):
        info = record.get(side)
        info = info if isinstance(info, Mapping) else {"name": info}
        # The medians that the ratio is of; that of all samples is another figure.
        median = medians.get(side) or (summary.get(side) or info.get("summary") or {}).get("median")
        names = ("name", "chip", "executed", "artifact", "fingerprint")
        rows.append(
            {
                "side": side.upper(),
                **{n: short(info.get(n)) for n in names},
                f"median {latency_unit(record)}": short(median),
            }
        )
    return rows


def accuracy_rows(record: Record) -> list[Row]:
    """Returns the accuracy of both sides and the test between them."""
    accuracy = record.get("accuracy")
    if not isinstance(accuracy, Mapping):
        return []
    mean, low, high = (*(accuracy.get("difference") or ()), None, None, None)[:3]
    return [
        {
            "metric": short(accuracy.get("metric")),
            "samples": short(accuracy.get("samples")),
            "A": short(accuracy.get("a")),
            "B": short(accuracy.get("b")),
            "B − A": f"{short(mean)} ({interval(low, high)})",
            "p (adjusted)": short(accuracy.get("p_adjusted", accuracy.get("p_value"))),
            "test": short(accuracy.get("test")),
            "verdict": short(accuracy.get("verdict")),
        }
    ]


def sweep_rows(record: Record) -> list[Row]:
    """Returns one row a build of a sweep."""
    return [
        {
            "front": "●" if row.get("on_front") else "",
            "model": short(row.get("model")),
            "chip": short(row.get("chip")),
            "options": " ".join(f"{k}={v}" for k, v in (row.get("options") or {}).items()),
            "status": short(row.get("status")),
            "metric": short(row.get("metric")),
            "float": percent(row.get("score_float")),
            "score": percent(row.get("score")),
            "SQNR dB": decibel(row.get("sqnr_db")),
            "est. ms": short(row.get("latency_ms")),
            "SRAM KiB": kib(row.get("sram_bytes")),
            "flash KiB": kib(row.get("flash_bytes")),
        }
        for row in record.get("rows") or ()
    ]


def sweep_verdict(record: Record) -> tuple[str, str]:
    """Returns how many builds went well and how many nothing beats."""
    rows: Sequence[Record] = record.get("rows") or ()
    good = sum(row.get("status") == "ok" for row in rows)
    front = sum(bool(row.get("on_front")) for row in rows)
    said = f"{good} of {len(rows)} builds ok, {front} on the Pareto front"
    return said, "good" if good == len(rows) and rows else "warn" if good else "bad"


def eval_verdict(record: Record) -> tuple[str, str]:
    """Returns the score with its interval."""
    low, high = record.get("low"), record.get("high")
    said = f"{record.get('metric') or 'score'} {short(record.get('score'))}"
    said += f" ({interval(low, high)})" if low is not None else ""
    said += f", {record['samples']} samples" if isinstance(record.get("samples"), int) else ""
    return said, "none" if record.get("score") is None else "good"

"""A bench, a comparison, a sweep or an evaluation as Markdown; a build has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anynpu.measure.stats import quantity
from anynpu.report import facts, markdown

Record = Mapping[str, Any]
Part = tuple[str, Sequence[Mapping[str, str]]]
LEAVE = ("schema_version", "kind", "notes", "warnings")


def render(record: Record) -> str:
    """Returns any record as Markdown."""
    if record["kind"] == "build":
        return markdown.render(dict(record))
    title, said, parts = KINDS[record["kind"]](record)
    lines = [f"# {_line(title)}", f"\n**{_line(said)}**\n"]
    lines += [f"- {_line(note)}" for name in ("warnings", "notes") for note in record.get(name) or ()]
    for name, rows in parts:
        lines += [f"\n## {_line(name)}", _table(rows)] if rows else []
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return markdown.plain(text)


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    return markdown.table(rows).rstrip("\n")


def _bench(record: Record) -> tuple[str, str, Iterable[Part]]:
    unit = facts.latency_unit(record)
    leave = (*LEAVE, "latency", "counts", "stages", "ticks", "spikes", "together", "verdict")
    title = f"bench: {record.get('executed') or record.get('board') or ''}"
    return (
        title,
        facts.bench_verdict(record)[0],
        [
            ("What the samples support", facts.percentile_rows(facts.latency_summary(record), unit)),
            ("Stages", facts.stage_rows(record)),
            ("Outliers", facts.spike_rows(record)),
            ("Several models at once", facts.together_rows(record)),
            ("Conditions", facts.condition_rows(record, leave)),
        ],
    )


def _compare(record: Record) -> tuple[str, str, Iterable[Part]]:
    sides = facts.side_rows(record)
    outputs = record.get("outputs")
    timed = [
        {"what": name, "value": value}
        for name, value in facts.flat(facts.measured(record), ("launches", "summary", "medians"))
    ]
    leave = (*LEAVE, "a", "b", "latency", "counts", "accuracy", "outputs", "ratio")
    return (
        f"compare: {sides[0]['name']} against {sides[1]['name']}",
        facts.compare_verdict(record)[0],
        [
            ("A and B", sides),
            (quantity(facts.latency_unit(record)).capitalize(), timed),
            ("Accuracy", facts.accuracy_rows(record)),
            ("Outputs", facts.fidelity_rows(outputs) if isinstance(outputs, Mapping) else []),
            ("Conditions", facts.condition_rows(record, leave)),
        ],
    )


def _sweep(record: Record) -> tuple[str, str, Iterable[Part]]:
    said = f"{facts.sweep_verdict(record)[0]}; latencies are estimates"
    return (
        "sweep",
        said,
        [("Builds", facts.sweep_rows(record)), ("Conditions", facts.condition_rows(record, (*LEAVE, "rows")))],
    )


def _eval(record: Record) -> tuple[str, str, Iterable[Part]]:
    title = f"eval: {record.get('executed') or record.get('model') or ''}"
    leave = (*LEAVE, "metric", "score", "low", "high")
    return title, facts.eval_verdict(record)[0], [("Figures and conditions", facts.condition_rows(record, leave))]


KINDS: Mapping[str, Callable[[Record], tuple[str, str, Iterable[Part]]]] = {
    "bench": _bench,
    "compare": _compare,
    "sweep": _sweep,
    "eval": _eval,
}

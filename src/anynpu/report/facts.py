"""Figures of any record as text: what every report says in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from anynpu.records.shared import Fidelity
from anynpu.report.figures import decibel, percent

if TYPE_CHECKING:
    from anynpu.records.load import Record

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


def flat(data: Mapping[str, object], leave: Iterable[str] = (), prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields every plain figure of JSON data by its dotted name; long lists are counted."""
    skipped = set(leave)
    for name, value in data.items():
        full = f"{prefix}{name}"
        if name in skipped or value is None or value == "":
            continue
        if isinstance(value, Mapping):
            yield from flat(value, (), f"{full}.")
        elif isinstance(value, list):
            if value:
                plain = len(value) <= LONG and not any(isinstance(item, list | Mapping) for item in value)
                yield full, ", ".join(map(short, value)) if plain else f"{len(value)} values"
        else:
            yield full, short(value)


def gate_lines(record: Record) -> list[str]:
    """Returns a sentence for every threshold of a record that is not the default."""
    gate = () if record.kind == "bench" else record.gate
    return [str(threshold) for threshold in gate if threshold.changed]


def fidelity_rows(outputs: Mapping[str, Fidelity] | None) -> list[Row]:
    """Returns each output against the float model."""
    return [
        {
            "output": name,
            "SQNR dB": decibel(each.sqnr_db),
            "SQNR dB (variance)": decibel(each.sqnr_var_db),
            "SQNR dB (over samples)": decibel(each.sqnr_centred_db),
            "cosine": f"{each.cosine:.6f}",
            "max error": f"{each.max_abs_error:.4g}",
            "argmax agrees": percent(each.argmax_agreement),
        }
        for name, each in (outputs or {}).items()
    ]

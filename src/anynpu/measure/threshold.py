"""A figure that results are judged by, its default, and where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from anynpu.records.shared import Threshold

UNITS = {"_db": "dB", "_points": "points"}


def setting_of(field: str) -> str:
    """Returns how a threshold is called on the command line: min_sqnr for min_sqnr_db."""
    return field.removesuffix(unit_of(field))


def unit_of(field: str) -> str:
    """Returns the ending of a field's name that is its unit, or an empty string."""
    return next((ending for ending in UNITS if field.endswith(ending)), "")


def thresholds(gate: Any, origins: Mapping[str, str]) -> tuple[Threshold, ...]:
    """Returns every field of a dataclass of thresholds; `origins` says where the settings came from."""
    listed = []
    for field in fields(gate):
        name = setting_of(field.name)
        unit = UNITS.get(unit_of(field.name), "")
        listed.append(Threshold(name, getattr(gate, field.name), field.default, unit, origins.get(name, "")))  # type: ignore[arg-type]
    return tuple(listed)


def sentences(gate: Iterable[Threshold]) -> list[str]:
    """Returns a note on each threshold that is not the default."""
    return [str(threshold) for threshold in gate if threshold.changed]

"""The error tree: exit statuses, and errors that survive the way between processes."""

from __future__ import annotations

import copy

import pytest

from anynpu import errors
from anynpu.errors import AccuracyError, AnyNpuError, DeviceError, Finding, ToolFailed, Unsupported

STATUSES = {
    "AnyNpuError": 1,
    "ConfigError": 2,
    "Unsupported": 3,
    "ToolMissing": 4,
    "ToolFailed": 5,
    "PassFailed": 5,
    "DeviceError": 6,
    "AccuracyError": 7,
    "IntegrityError": 8,
    "ModelRefused": 8,
    "Defect": 70,
}
SAMPLES = (
    errors.ConfigError("no such file", "look again"),
    Unsupported("not there", [Finding("batch", "Batch size must be 1.", "conv1")], "export again"),
    errors.ToolMissing("vela is not installed", "pip install it"),
    ToolFailed("vela failed", ["vela", "x"], 3, "log.txt", ["one", "two"], "hint"),
    errors.PassFailed("the pass folded-ahead changes output 'y'", "folded-ahead", "-O skip_passes=folded-ahead"),
    DeviceError("refused", "open", 5, "no driver", "load it"),
    AccuracyError("too bad", "sqnr_db", 3.5, 10.0, ["y: 3.5 dB"], "more data"),
    errors.IntegrityError("damaged"),
    errors.Defect(KeyError("no such layer")),
)


def test_each_kind_has_its_exit_status() -> None:
    found = {name: kind.exit_status for name, kind in vars(errors).items() if isinstance(kind, type) and
             issubclass(kind, AnyNpuError)}  # fmt: skip
    assert found == STATUSES


@pytest.mark.parametrize("error", SAMPLES, ids=lambda e: type(e).__name__)
def test_errors_are_copied_with_all_they_know(error: AnyNpuError) -> None:
    again = copy.copy(error)  # by the same way as pickling, which process pools use
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error) == error.message


def test_finding_names_its_place_when_it_has_one() -> None:
    assert str(Finding("r", "Batch size must be 1.", "conv1")) == "conv1: Batch size must be 1."
    assert str(Finding("r", "Batch size must be 1.")) == "Batch size must be 1."

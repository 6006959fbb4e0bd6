"""Small and whole: the sizes of functions and files, measured and bounded."""

from __future__ import annotations

import runpy
import statistics

import pytest
from source_tree import ROOT, SOURCE, modules

FUNCTION_MAX, FUNCTION_MEDIAN, FUNCTION_P90, FILE_P90 = 60, 10, 35, 400
CALLED_ONCE = 0.12
"""The share of functions that are private and referred to once: it may only fall."""


def p90(values: list[int]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[-1]


@pytest.fixture(scope="module")
def functions() -> dict[str, int]:
    """The lines of every function, without its decorators."""
    return {f"{m.at(f)} {f.name}": (f.end_lineno or f.lineno) - f.lineno + 1 for m in modules() for f in m.functions()}


@pytest.fixture(scope="module")
def files() -> dict[str, int]:
    return {str(m.path): m.text.count("\n") for m in modules()}


def test_figures(functions, files, capsys):
    lines, long = list(functions.values()), list(files.values())
    told = (
        f"{len(lines)} functions: median {statistics.median(lines):g}, p90 {p90(lines):g}, max {max(lines)} lines; "
        f"{len(long)} files: p90 {p90(long):g}, max {max(long)} lines"
    )
    with capsys.disabled():
        print("\n" + told)
    assert len(lines) > len(long) > 50


def test_no_function_is_long(functions):
    assert {name: n for name, n in functions.items() if n > FUNCTION_MAX} == {}


def test_most_functions_are_short(functions):
    assert statistics.median(functions.values()) <= FUNCTION_MEDIAN
    assert p90(list(functions.values())) <= FUNCTION_P90


def test_most_files_are_short(files):
    assert p90(list(files.values())) <= FILE_P90


def test_no_more_private_steps_than_there_were():
    figures = runpy.run_path(str(ROOT / "scripts" / "shape.py"))["shape"](SOURCE)
    assert figures["share called once"] <= CALLED_ONCE, figures

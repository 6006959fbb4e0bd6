"""The page of traps and the tests of traps say the same: no row without a test, no test without a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<trap>.+?) \| (?P<answer>.+?) \| (?P<status>[\d, ]+) \| `(?P<test>[^`]+)` \|$")


def rows() -> list[re.Match[str]]:
    """Returns every row of the page's tables."""
    lines = (ROOT / "docs" / "truth.md").read_text("utf-8").splitlines()
    listed = [line for line in lines if line.startswith("| ") and not line.startswith("| trap |")]
    matches = [ROW.match(line) for line in listed]
    assert all(matches), [line for line, match in zip(listed, matches, strict=True) if not match]
    return [match for match in matches if match]


def functions(path: Path) -> set[str]:
    """Returns the names of the tests in a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["test"])
def test_every_row_names_a_test_that_exists(row):
    file, _, name = row["test"].partition("::")
    function, _, case = name.partition("[")
    path = ROOT / "tests" / file
    assert path.is_file(), file
    assert function in functions(path), name
    assert not case or case.removesuffix("]") in path.read_text("utf-8"), name


def test_every_test_of_a_trap_has_a_row():
    listed = {row["test"].partition("[")[0] for row in rows()}
    for path in (ROOT / "tests" / "truth").glob("test_*.py"):
        missing = {f"truth/{path.name}::{name}" for name in functions(path)} - listed
        assert not missing, missing

"""The files that ARCHITECTURE.md names for common changes are there, and are as many as it says."""

from __future__ import annotations

import re

import pytest
from source_tree import ROOT

SECTION = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Ten changes")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (.+?) \| (\d+): (.+?) \| (.+?) \|$", SECTION, re.MULTILINE)


def test_the_table_has_every_change():
    words = "chip, range, operator, simulator, metric, verb, pass, training, number type, generation"
    assert [word for word in words.split(", ") if not any(word in row[0] for row in ROWS)] == []


def test_a_change_touches_few_files():
    assert max(int(row[1]) for row in ROWS) <= 5


@pytest.mark.parametrize(("change", "count", "files", "what"), ROWS, ids=[row[0] for row in ROWS])
def test_the_files_of_a_change_exist(change, count, files, what):
    named = re.findall(r"`([^`]+)`", files)
    assert len(named) == int(count), f"{change}: {count} files, {len(named)} are named"
    for name in [*named, *re.findall(r"`(src/[^`]+)`", what)]:
        assert list(ROOT.glob(name.replace("NAME", "*"))), f"{change}: {name} is not there"

"""docs/reference is what the dataclasses of verbs, options, chips and records say now."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {page.name: page for page in (ROOT / "docs" / "reference").glob("*.md")}


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    made: dict[str, str] = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["pages"]()
    return made


def test_no_page_is_out_of_date(pages):
    assert {*pages} == {*PAGES}
    stale = [name for name, text in pages.items() if PAGES[name].read_text("utf-8") != text]
    assert not stale, "run make reference"


def test_what_users_give_is_there(pages):
    assert "| `--require-npu` |" in pages["verbs.md"] and "## tool install" in pages["verbs.md"]
    assert "| `memory_mode` |" in pages["options.md"] and "| `rk3588` |" in pages["chips.md"]
    assert "| `chips` | array | yes |" in pages["records.md"]

"""The page on plug-ins shows the sample packages as they are, and every rule of the kit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from anynpu.testing import conformance, session_rules, target_rules

PAGE = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text("utf-8")
PACKAGES = [Path(__file__).parent / name for name in ("anynpu-toychip", "anynpu-greeting")]
BLOCKS = re.findall(r"```(?:toml|python)\n(.*?)```", PAGE, re.S)
KIT = next(block for block in BLOCKS if "def test_toychip" in block)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b is not KIT], ids=lambda b: b.splitlines()[0])
def test_code_on_the_page_is_code_of_a_package(block):
    files = [file for package in PACKAGES for kind in ("*.toml", "*.py") for file in package.rglob(kind)]
    assert any(block.strip() in path.read_text("utf-8") for path in files)


def test_the_test_on_the_page_is_a_program():
    compile(KIT, "plugins.md", "exec")
    assert {"check_platform", "check_target", "check_session"} <= set(re.findall(r"conformance\.(\w+)", KIT))


@pytest.mark.parametrize("rule", [*target_rules.RULES, *session_rules.RULES, *conformance.PLATFORM_RULES])
def test_every_rule_is_on_the_page(rule):
    assert f"- {rule.__doc__.splitlines()[0]}\n" in PAGE

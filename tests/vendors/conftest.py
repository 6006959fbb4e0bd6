"""Tests on vendors' real toolchains: `make test-cvi` and its like install the tool and run test_TOOL_real.py."""

from __future__ import annotations

import os

import pytest

from anynpu.capsules import capsule, toolchain

ASKED = [name for name in os.environ.get("ANYNPU_VENDOR_TESTS", "").split(",") if name]

# Tests have a cache of their own; the tool is in the user's.
for name in ASKED:
    os.environ.setdefault(toolchain.read_toolchain(name).variable, str(capsule.find(name).root))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name != "vendors":
            continue
        item.add_marker("vendor")
        name = item.path.stem.removeprefix("test_").partition("_")[0]
        if name not in ASKED:
            item.add_marker(pytest.mark.skip(reason=f"runs {name}'s real toolchain: make test-{name}"))

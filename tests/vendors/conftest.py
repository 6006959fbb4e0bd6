"""Tests on vendors' real toolchains: `make test-cvi` and its like install the tool and run test_TOOL_real.py."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    asked = os.environ.get("ANYNPU_VENDOR_TESTS", "").split(",")
    for item in items:
        if item.path.parent.name != "vendors":
            continue
        item.add_marker("vendor")
        name = item.path.stem.removeprefix("test_").removesuffix("_real")
        if name not in asked:
            item.add_marker(pytest.mark.skip(reason=f"runs {name}'s real toolchain: make test-{name}"))

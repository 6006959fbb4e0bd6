"""The small driver tree of the unit tests, for the command line too."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A marker of these tests alone: `make driver` runs them."""
    config.addinivalue_line("markers", "driver: needs the vendor's driver tree, and kernel headers to build it")

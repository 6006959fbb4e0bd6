"""What the tests on fetched models share."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "models: runs on models that scripts/models.sh fetches")

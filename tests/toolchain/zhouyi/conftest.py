"""The fake library and a small model, for the tests of the NOE session."""

from __future__ import annotations

import pytest
from fake_noe import small
from noe_library import built, library  # noqa: F401  # fixtures


@pytest.fixture
def model(tmp_path):
    return small(tmp_path / "model")

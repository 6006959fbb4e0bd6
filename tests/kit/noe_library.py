"""The fake libnoe as fixtures, for the tests of the NOE session and of what serves it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from anynpu.testing import noe


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return noe.build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def library(built, tmp_path):
    """A library of its own: what one test leaves in this process is not there for the next."""
    return Path(shutil.copy(built, tmp_path / "libnoe.so"))

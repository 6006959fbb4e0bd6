"""An index over pictures and texts with models small enough to check by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("PIL")
pytest.importorskip("qdrant_edge")
from small_models import Counted, picture

from anynpu.apps.search.index import Index


@pytest.fixture
def counted():
    return Counted()


@pytest.fixture
def index(tmp_path, counted):
    with Index(tmp_path / "index", counted.models()) as index:
        yield index


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    picture(folder / "a" / "red.png", "red")
    picture(folder / "a" / "b" / "green.png", "#00c000")
    picture(folder / "c" / "blue.png", "blue")
    (folder / "notes.txt").write_text("The cat sat on the mat.\n\n\nA dog in the rain.\n\nSun, sun and a blue sky.\n")
    return folder

"""A server over models that compute with numpy, for the contract of the routes."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
from desks import desk_of, site
from noe_library import built, library  # noqa: F401  # fixtures
from plain_fleet import PlainModel
from running import Client


@pytest.fixture(scope="session")
def server() -> Iterator[Client]:
    models = (
        PlainModel("text", "embed-text"),
        PlainModel("photo", "embed-image"),
        PlainModel("finder", "detect"),
        PlainModel("judge", "classify"),
        PlainModel("a/b c", "tensors"),
    )
    with site(desk_of(*models, admin=True)) as client:
        yield client


@pytest.fixture(scope="session")
def png() -> bytes:
    from PIL import Image

    packed = io.BytesIO()
    Image.fromarray(np.full((20, 30, 3), 200, np.uint8)).save(packed, "PNG")
    return packed.getvalue()

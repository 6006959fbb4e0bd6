"""A server over models that compute with numpy, for the contract of the routes."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
from plain_fleet import PlainFleet, PlainModel
from running import Client, running

from anynpu.apps.serve.desk import Desk, DeskSettings
from anynpu.apps.serve.site import build_app
from anynpu.apps.web.limits import Limits


def desk_of(*models: PlainModel, **settings: object) -> Desk:
    desk = Desk(PlainFleet(*models), DeskSettings(**settings))
    desk.started = True
    return desk


def site(desk: Desk):
    return running(build_app(desk, Limits(body_bytes=1_000_000)))


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

"""Desks and sites over models that compute with numpy."""

from __future__ import annotations

from plain_fleet import PlainFleet, PlainModel
from running import running

from anynpu.apps.serve.desk import Desk, DeskSettings
from anynpu.apps.serve.site import build_app
from anynpu.apps.web.limits import Limits


def desk_of(*models: PlainModel, **settings: object) -> Desk:
    desk = Desk(PlainFleet(*models), DeskSettings(**settings))
    desk.started = True
    return desk


def site(desk: Desk):
    return running(build_app(desk, Limits(body_bytes=1_000_000)))

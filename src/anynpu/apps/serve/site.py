"""The whole server as one application: every route over one fleet."""

from __future__ import annotations

from anynpu.apps.serve import infer, kserve, llama, openai, openapi, page, state, tei, vision
from anynpu.apps.serve.desk import Desk
from anynpu.apps.serve.statuses import refusal_of
from anynpu.apps.web.accesslog import AccessLog
from anynpu.apps.web.app import App, Policy
from anynpu.apps.web.limits import Limits


def build_app(
    desk: Desk, limits: Limits | None = None, policy: Policy | None = None, log: AccessLog | None = None
) -> App:
    """Returns the application."""
    app = App((), limits, policy, log, refusal_of, desk.metrics.http_done)
    parts = (openai, tei, vision, infer, kserve, llama)
    routes = [route for part in parts for route in part.routes(desk)]
    routes += state.routes(desk, lambda: app.in_flight())
    routes += openapi.routes(desk, app)
    routes += page.routes()
    for route in routes:
        app.add(route)
    return app

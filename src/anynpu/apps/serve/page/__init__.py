"""The page at / that tries a model in a browser: no external resource, no inline script or style."""

from __future__ import annotations

from anynpu.apps.web.app import Route
from anynpu.apps.web.files import PackageFile

FILES = {"/": "index.html", "/app.js": "app.js", "/style.css": "style.css"}


def routes() -> list[Route]:
    """Returns the page with its script and style; they hold no data, so that they need no token."""
    return [Route("GET", path, PackageFile(__name__, name), public=True) for path, name in FILES.items()]

"""Pages, styles and scripts from the package, with a policy under which nothing else can be loaded."""

from __future__ import annotations

import hashlib
from importlib import resources

from anynpu.apps.web.message import Header, HttpAnswer, HttpRequest

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    b"media-src 'self' blob:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Only this server's own files: no inline script, no other host, no frame."""
PAGE_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
KINDS = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
    "png": b"image/png",
    "json": b"application/json",
    "txt": b"text/plain; charset=utf-8",
    "ico": b"image/x-icon",
}


class PackageFile:
    """A file of a package as a route's function: read once, with an ETag, so that a browser asks only if it changed."""

    def __init__(self, package: str, name: str) -> None:
        self.package, self.name = package, name
        self.kind = KINDS[name.rpartition(".")[2]]
        self._content: bytes | None = None
        self._tag = b""

    async def __call__(self, request: HttpRequest) -> HttpAnswer:
        if self._content is None:
            self._content = resources.files(self.package).joinpath(self.name).read_bytes()
            self._tag = b'"' + hashlib.sha256(self._content).hexdigest()[:32].encode() + b'"'
        headers = [*PAGE_HEADERS, (b"etag", self._tag)]
        if request.headers.get(b"if-none-match") == self._tag:
            return HttpAnswer(b"", 304, b"", headers)
        return HttpAnswer(self._content, 200, self.kind, headers)

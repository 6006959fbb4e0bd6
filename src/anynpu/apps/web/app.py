"""Routes to functions, and what every answer has in common: token, ids, timing, headers, one line of log."""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from itertools import count
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from anynpu.apps.web.accesslog import AccessLog
from anynpu.apps.web.limits import Limits
from anynpu.apps.web.message import (
    JSON,
    ErrorForm,
    Head,
    Header,
    HttpAnswer,
    HttpRequest,
    Later,
    Refusal,
    error_body,
    too_large,
)

Function = Callable[[HttpRequest], Coroutine[Any, None, HttpAnswer] | Later]
"""Most are coroutine functions. A plain one returns what answers later, which costs less: for the routes that are asked
thousands of times a second."""
Observer = Callable[["Route | None", int, float], None]
REQUEST_ID = re.compile(rb"[A-Za-z0-9_.:@/+=-]{1,128}")
SAFE: tuple[Header, ...] = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
CORS_HEADERS = b"authorization, content-type, x-request-id, x-request-timeout, inference-header-content-length"
CORS_SHOWN = b"x-request-id, x-model, x-model-version, server-timing, retry-after, inference-header-content-length"
_logger = logging.getLogger("anynpu.web")


@dataclass(frozen=True, eq=False)
class Route:
    """One method of one path. A `{name}` in the path stands for one segment."""

    method: str
    path: str
    function: Function
    public: bool = False
    """Served without the token: health, pages."""
    errors: ErrorForm = "plain"


@dataclass(frozen=True)
class Policy:
    """Who may call. The tokens are kept as digests, so that comparing them takes the same time for any length."""

    tokens: tuple[bytes, ...] = ()
    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] | None = None
    """Names that a request may be addressed to, besides this computer's own; None for any."""

    @classmethod
    def of(cls, tokens: Iterable[str] = (), origins: Iterable[str] = (), hosts: Iterable[str] | None = None) -> Policy:
        digests = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)
        return cls(digests, frozenset(origins), None if hosts is None else frozenset(map(str.lower, hosts)))

    def addressed(self, host: bytes) -> bool:
        """Says whether a Host header names this server.

        A page of another site whose name was made to lead to 127.0.0.1 (DNS rebinding) still sends its own name here.
        """
        return self.hosts is None or _is_named(host, self.hosts)

    def lets_in(self, authorization: bytes) -> bool:
        """Says whether a header carries one of the tokens; every token is compared."""
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        digest = hashlib.sha256(token.strip()).digest()
        return sum(hmac.compare_digest(digest, known) for known in self.tokens) > 0

    def cors(self, origin: bytes) -> tuple[Header, ...]:
        """Returns the headers that let a page of an allowed origin read the answer."""
        if not self.origins:
            return ()
        if "*" in self.origins:
            return ((b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", CORS_SHOWN))
        vary: Header = (b"vary", b"origin")
        if origin.decode("latin-1") not in self.origins:
            return (vary,)
        return ((b"access-control-allow-origin", origin), (b"access-control-expose-headers", CORS_SHOWN), vary)


class App:
    """Every route of a server: exact paths by dictionary, those with parameters by their segments."""

    def __init__(
        self,
        routes: Iterable[Route],
        limits: Limits | None = None,
        policy: Policy | None = None,
        log: AccessLog | None = None,
        refusal_of: Callable[[Exception], Refusal | None] = lambda error: None,
        observe: Observer = lambda route, status, seconds: None,
    ) -> None:
        self.limits, self.policy, self.log = limits or Limits(), policy or Policy(), log
        self.refusal_of, self.observe = refusal_of, observe
        self.in_flight: Callable[[], int] = lambda: 0
        """How many requests are being answered; the server that has the connections knows."""
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: dict[tuple[str, ...], dict[str, Route]] = {}
        self._ids, self._prefix = count(1), secrets.token_hex(5)
        for route in routes:
            self.add(route)

    def add(self, route: Route) -> None:
        """Adds a route; GET answers HEAD too."""
        if "{" in route.path:
            methods = self._patterns.setdefault(tuple(route.path.split("/")), {})
        else:
            methods = self._exact.setdefault(route.path, {})
        methods[route.method] = route
        if route.method == "GET":
            methods["HEAD"] = route

    def routes(self) -> list[Route]:
        """Returns every route once, in the order they were added."""
        tables = [*self._exact.values(), *self._patterns.values()]
        return [route for table in tables for method, route in table.items() if method != "HEAD"]

    def admit(self, request: HttpRequest) -> HttpAnswer | None:
        """Looks at the head of a request: returns what to answer where it is not to be served, else None."""
        head = request.head
        request_id = head.headers.get(b"x-request-id")
        good = request_id is not None and REQUEST_ID.fullmatch(request_id)
        request.id = request_id.decode() if request_id and good else f"{self._prefix}-{next(self._ids)}"
        try:
            raw = head.raw_path.decode("ascii")
            head.path = unquote(raw) if "%" in raw else raw
            head.route = self._find(head)
            self._check(request, head.route)
            length = request.headers.get(b"content-length")
            if length is not None and (len(length) > 18 or int(length) > self.limits.body_bytes):
                raise too_large(self.limits.body_bytes)
        except UnicodeDecodeError:
            return self.refused(Refusal(400, "the path is not ASCII", "percent-encode it as UTF-8"), request)
        except Refusal as refusal:
            return self.refused(refusal, request)
        return None

    def admit_again(self, request: HttpRequest) -> bool:
        """Returns whether a request is to be served whose head, to the byte, was admitted before."""
        request.id = f"{self._prefix}-{next(self._ids)}"
        if not self.policy.tokens:
            return True
        head = request.head
        return head.route.public or self.policy.lets_in(head.headers.get(b"authorization", b""))

    def failed(self, error: BaseException, request: HttpRequest) -> HttpAnswer:
        """Returns why a function does not answer."""
        if not isinstance(error, Exception):
            return self.refused(Refusal(503, "the server is stopping", headers=_CLOSE), request)
        refusal = error if isinstance(error, Refusal) else self.refusal_of(error)
        if refusal is None:
            _logger.error("request %s: internal error", request.id, exc_info=error)
            refusal = Refusal(500, "internal error", f"the server's log has more under request {request.id}")
        return self.refused(refusal, request)

    def head(self, request: HttpRequest, answer: HttpAnswer, seconds: float, date: bytes) -> bytes:
        """Returns the first line and the headers of an answer, each with its end."""
        stages = answer.stages_s
        template = _template(answer.status, answer.kind, tuple(stages), answer.lines)
        rest = (request.id.encode(), *map(_MILLI, stages.values()), seconds * 1e3)
        head = template % ((date, len(answer.body), *rest) if answer.kind else (date, *rest))
        if not answer.headers and not self.policy.origins:
            return head
        more = [*answer.headers, *self.policy.cors(request.headers.get(b"origin", b""))]
        lines = b"".join([b"%s: %s\r\n" % header for header in more])
        if lines.count(b"\n") == lines.count(b"\r") == len(more):
            return head + lines
        instead = self.failed(ValueError("a header holds the end of a line"), request)
        answer.body, answer.status, answer.kind, answer.headers = instead.body, instead.status, JSON, []
        return self.head(request, answer, seconds, date)

    def note(self, request: HttpRequest, answer: HttpAnswer, seconds: float) -> None:
        """Counts and logs what was answered."""
        self.observe(request.head.route, answer.status, seconds)
        if self.log is not None:
            self.log.add(request, answer, seconds)

    def _find(self, head: Head) -> Route:
        path = head.path
        methods = self._exact.get(path)
        if methods is None:
            methods = self._match(head)
        if methods is None:
            raise Refusal(404, f"there is nothing at {path[:200]}", "GET /openapi.json lists what is served")
        route = methods.get(head.method)
        if route is not None:
            return route
        allowed = (b"allow", ", ".join(sorted({*methods, "OPTIONS"})).encode())
        if head.method == "OPTIONS":
            raise _Preflight(allowed)
        raise Refusal(405, f"{path[:200]} takes {', '.join(sorted(methods))}", headers=(allowed,))

    def _match(self, head: Head) -> dict[str, Route] | None:
        """Returns the methods of a path with parameters; an encoded slash is part of a segment, not the end of it."""
        raw = head.raw_path.split(b"/")
        try:
            parts = [unquote_to_bytes(part).decode() for part in raw]
        except UnicodeDecodeError:
            return None
        for pattern, methods in self._patterns.items():
            if len(pattern) != len(parts):
                continue
            pairs = list(zip(pattern, parts, strict=True))
            if all(name == part or (name[:1] == "{" and part) for name, part in pairs):
                head.parameters = {name[1:-1]: part for name, part in pairs if name[:1] == "{"}
                return methods
        return None

    def _check(self, request: HttpRequest, route: Route) -> None:
        policy = self.policy
        if policy.hosts is not None and not policy.addressed(request.headers.get(b"host", b"")):
            name = request.header(b"host")[:100]
            raise Refusal(421, f"this server is not called {name}", "allow the name with --allow-host")
        if not policy.tokens or route.public or policy.lets_in(request.headers.get(b"authorization", b"")):
            return
        missing = b"authorization" not in request.headers
        raise Refusal(
            401,
            "this server needs a token" if missing else "the token is not the right one",
            "send the header Authorization: Bearer TOKEN",
            headers=((b"www-authenticate", b"Bearer"),),
        )

    def refused(self, refusal: Refusal, request: HttpRequest) -> HttpAnswer:
        """Returns a refusal in the form that the clients of a route expect."""
        if isinstance(refusal, _Preflight):
            answer = HttpAnswer(b"", 204, b"", list(refusal.headers))
            if self.policy.origins and b"origin" in request.headers:
                methods = refusal.headers[0][1]
                answer.headers += [
                    (b"access-control-allow-methods", methods),
                    (b"access-control-allow-headers", CORS_HEADERS),
                    (b"access-control-max-age", b"600"),
                ]
            return answer
        route: Route | None = request.head.route
        form: ErrorForm = route.errors if route else "openai" if request.path.startswith("/v1/") else "plain"
        body = error_body(refusal, form, request.id)
        noted = {"error": refusal.code, "reason": refusal.message}
        return HttpAnswer(body, refusal.status, JSON, list(refusal.headers), noted=noted)


@functools.lru_cache(256)
def _is_named(header: bytes, names: frozenset[str]) -> bool:
    """Says whether a Host header is one of the names, this computer, or missing, as with most clients but browsers."""
    host = header.decode("latin-1").strip().lower()
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    if name in names or name in ("", "localhost") or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@functools.lru_cache(256)
def _template(status: int, kind: bytes, stages: tuple[str, ...], lines: bytes) -> bytes:
    """Returns what every answer begins with, to be filled in: date, length, id and times."""
    body = b"content-type: %s\r\ncontent-length: %%d\r\n" % kind.replace(b"%", b"%%") if kind else b""
    timing = "".join([f"{name};dur=%.3f, " for name in stages]).encode()
    safe = b"".join([b"%s: %s\r\n" % header for header in SAFE])
    first = b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())
    ids = b"x-request-id: %s\r\nserver-timing: " + timing + b"total;dur=%.3f\r\n"
    return first + b"%s" + body + ids + safe + lines.replace(b"%", b"%%")


class _Preflight(Refusal):
    """A browser asks what a path takes."""

    def __init__(self, allowed: Header) -> None:
        super().__init__(204, "", headers=(allowed,))


_MILLI = (1e3).__mul__
_CLOSE: tuple[Header, ...] = ((b"connection", b"close"),)

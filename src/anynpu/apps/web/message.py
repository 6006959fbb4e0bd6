"""A request whose body has a bound, an answer, and a refusal with its status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl

import orjson

from anynpu.apps.web.limits import Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]
ErrorForm = Literal["plain", "openai", "tei", "kserve"]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
BINARY = b"application/octet-stream"
MOST_DISCARDED = 64 * 1024 * 1024
"""Of a body that is too large so much is read and dropped: a client that only writes would not see the answer."""
DISCARD_S = 2.0
CLIENT_GONE = 499


class Refusal(Exception):
    """A request that is not served: its status, one sentence, and what would help."""

    def __init__(
        self,
        status: int,
        message: str,
        hint: str = "",
        code: str = "",
        parameter: str | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint
        self.code = code or CODES.get(status, "error")
        self.parameter, self.headers = parameter, headers


CODES: Mapping[int, str] = {
    400: "invalid_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "request_timeout",
    411: "length_required",
    413: "too_large",
    414: "uri_too_long",
    415: "unsupported_media_type",
    421: "misdirected_request",
    422: "unprocessable",
    429: "overloaded",
    431: "headers_too_large",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    504: "deadline_exceeded",
}
TYPES: Mapping[int, str] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""OpenAI's types of errors where they are not invalid_request_error (4xx) and server_error (5xx)."""
TEI_TYPES: Mapping[int, str] = {413: "Validation", 422: "Tokenizer", 424: "Backend", 429: "Overloaded", 503: "Backend"}


class ClientGone(Exception):
    """The client closed the connection before its request was read or answered."""


@dataclass(slots=True)
class HttpAnswer:
    """What goes back: status, body, kind of the body, and headers beyond those of every answer."""

    body: bytes = b""
    status: int = 200
    kind: bytes = JSON
    headers: list[Header] = field(default_factory=list)
    lines: bytes = b""
    """Headers that many answers share, each with its end of line."""
    stages_s: Mapping[str, float] = field(default_factory=dict)
    """For Server-Timing, in the order they happened."""
    noted: dict[str, Any] = field(default_factory=dict)
    """More for the access log: the model, its version, the batch."""


def json_answer(value: Any, status: int = 200) -> HttpAnswer:
    """Returns plain data and numpy arrays as JSON."""
    return HttpAnswer(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status)


@dataclass(slots=True)
class HttpRequest:
    """One request; its body is read on demand and never beyond the limits."""

    scope: Scope
    receive: Receive
    limits: Limits
    id: str
    headers: dict[bytes, bytes]
    parameters: dict[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    body_bytes: int = 0
    _whole: bytes | None = None

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        return str(self.scope["path"])

    @property
    def kind(self) -> bytes:
        """The media type of the body, without parameters, in lower case."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    def header(self, name: bytes) -> str:
        """Returns a header as text, or an empty string."""
        return self.headers.get(name, b"").decode("latin-1")

    def query(self) -> dict[str, str]:
        """Returns the parameters of the query; of one that is given twice, the last value."""
        raw = bytes(self.scope.get("query_string", b""))
        try:
            return dict(parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64))
        except ValueError:
            raise Refusal(400, "the query string cannot be read", "percent-encode it as UTF-8") from None

    def gone(self) -> bool:
        """Says whether the client has closed the connection."""
        cycle = getattr(self.receive, "__self__", None)
        transport = getattr(cycle, "transport", None)
        return bool(transport is not None and transport.is_closing())

    async def body(self, most: int | None = None) -> bytes:
        """Returns the whole body; one beyond `most` bytes (the server's limit by default) is refused, early if it says
        its length."""
        bound = self.limits.body_bytes if most is None else min(most, self.limits.body_bytes)
        whole = self._whole
        if whole is None:
            if b"content-encoding" in self.headers:
                self._check_coding()
            length = self.headers.get(b"content-length", b"0")
            if not length.isdigit() or len(length) > 18 or int(length) > bound:
                await self._discard()
                raise self._too_large(bound)
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            whole = message.get("body", b"")
            if message.get("more_body", False):
                whole = await self._rest(whole, bound)
            self._whole, self.body_bytes = whole, len(whole)
        if len(whole) > bound:
            raise self._too_large(bound)
        return whole

    def _check_coding(self) -> None:
        if self.headers[b"content-encoding"].strip().lower() not in (b"identity", b""):
            raise Refusal(415, "bodies are not decompressed", "send it without content-encoding")

    async def _rest(self, first: bytes, bound: int) -> bytes:
        whole = bytearray(first)
        more = True
        while more:
            if len(whole) > bound:
                whole.clear()
                await self._discard()
                raise self._too_large(bound)
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            whole += message.get("body", b"")
            more = message.get("more_body", False)
        return bytes(whole)

    async def _discard(self) -> None:
        """Reads on for a moment and keeps nothing, unless the client waits to be told to go on."""
        if b"expect" in self.headers:
            return
        dropped = 0
        try:
            async with asyncio.timeout(DISCARD_S):
                while dropped < MOST_DISCARDED:
                    message = await self.receive()
                    dropped += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return

    @staticmethod
    def _too_large(bound: int) -> Refusal:
        close = ((b"connection", b"close"),)
        return Refusal(413, f"the body is larger than {bound:,} bytes", "send less at a time", headers=close)

    async def json(self, most: int | None = None) -> Any:
        """Returns the body as JSON; NaN, infinities and text that is not UTF-8 are refused."""
        kind = JSON if self.headers.get(b"content-type") == JSON else self.kind
        if kind not in (JSON, b"") and not kind.endswith(b"+json"):
            shown = kind.decode("latin-1")[:100]
            raise Refusal(415, f"JSON was expected, not a body of type {shown}", "set content-type: application/json")
        raw = await self.body(most)
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"the body is not valid JSON: {str(error)[:200]}", code="invalid_json") from None


def error_body(refusal: Refusal, form: ErrorForm, request_id: str) -> bytes:
    """Returns a refusal in the form that the clients of a route expect."""
    message = f"{refusal.message}: {refusal.hint}" if refusal.hint and form != "plain" else refusal.message
    if form == "kserve":
        return orjson.dumps({"error": message})
    if form == "tei":
        kind = TEI_TYPES.get(refusal.status, "Validation" if refusal.status < 500 else "Backend")
        return orjson.dumps({"error": message, "error_type": kind, "code": refusal.code})
    error: dict[str, Any] = {
        "message": message,
        "type": TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error"),
        "param": refusal.parameter,
        "code": refusal.code,
    }
    if form == "plain":
        error |= {"hint": refusal.hint, "request_id": request_id}
    return orjson.dumps({"error": error})

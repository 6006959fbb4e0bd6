"""A request, an answer, and a refusal with its status."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import parse_qsl

import orjson

from anynpu.schema import Json, JsonObject

Header = tuple[bytes, bytes]
ErrorForm = Literal["plain", "openai", "tei", "kserve"]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
BINARY = b"application/octet-stream"
MOST_DISCARDED = 64 * 1024 * 1024
"""How much of a body that is too large is read and dropped: a client that only writes would not see the answer."""
DISCARD_S = 2.0
CLIENT_GONE = 499
"""Is noted, never sent: nobody is there."""


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
    noted: Mapping[str, Json] = field(default_factory=dict)
    """More for the access log: the model, its version, the batch."""


def json_answer(value: Any, status: int = 200) -> HttpAnswer:
    """Returns plain data and numpy arrays as JSON."""
    return HttpAnswer(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), status)


Reply = HttpAnswer | BaseException
"""What becomes of a request: the answer, or why there is none."""


class Later(Protocol):
    """An answer that comes by a call."""

    def begin(self, then: Callable[[Reply], None]) -> None:
        """Has `then` called once, in the event loop, perhaps before this returns."""
        ...

    def cancel(self) -> object:
        """Gives it up: if there is no reply yet, that is CancelledError."""
        ...


class Line(Protocol):
    """Where a request came from."""

    client: str
    """The address, or "unix"."""
    gone: bool

    def send_early(self, answer: HttpAnswer, conclude: Callable[[], None]) -> None:
        """Writes the answer to the request that is being answered, in any thread; the reply in the event loop is to
        follow, and must be the same. `conclude` has it follow at once; it is called there if the next request comes
        first."""
        ...


@dataclass(slots=True)
class Head:
    """What comes before the body. Requests that repeat it to the byte share it."""

    method: str
    raw_path: bytes
    query_string: bytes
    headers: dict[bytes, bytes]
    keeps: bool = True
    """The connection may be used again."""
    path: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    route: Any = None
    length: int = 0
    """Of the body behind it, where the head is kept."""


class HttpRequest:
    """One request, read whole."""

    id = ""
    refused: HttpAnswer | None = None
    """What to answer without asking a function."""

    def __init__(self, head: Head, line: Line, content: bytes = b"") -> None:
        self.head, self.line, self.content, self.keeps = head, line, content, head.keeps
        self.began = time.perf_counter()

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def query_string(self) -> bytes:
        return self.head.query_string

    @property
    def headers(self) -> dict[bytes, bytes]:
        return self.head.headers

    @property
    def parameters(self) -> dict[str, str]:
        return self.head.parameters

    @property
    def client(self) -> str:
        """The address, or "unix"."""
        return self.line.client

    @property
    def kind(self) -> bytes:
        """The media type of the body, without parameters, in lower case."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()

    def header(self, name: bytes) -> str:
        """Returns a header as text, or an empty string."""
        return self.headers.get(name, b"").decode("latin-1")

    def query(self) -> Mapping[str, str]:
        """Returns the parameters of the query; of one that is given twice, the last value."""
        return parsed_query(self.head.query_string)

    def has_body(self) -> bool:
        return b"content-length" in self.headers or b"transfer-encoding" in self.headers

    def gone(self) -> bool:
        """Says whether the client has closed the connection."""
        return self.line.gone

    def body(self, most: int | None = None) -> bytes:
        """Returns the whole body; one beyond `most` bytes is refused, as those beyond the server's limit were."""
        coded = b"content-encoding" in self.head.headers
        if coded and self.headers[b"content-encoding"].strip().lower() not in (b"identity", b""):
            raise Refusal(415, "bodies are not decompressed", "send it without content-encoding")
        if most is not None and len(self.content) > most:
            raise too_large(most)
        return self.content

    def json(self, most: int | None = None) -> Any:
        """Returns the body as JSON; NaN, infinities and text that is not UTF-8 are refused."""
        if self.head.headers.get(b"content-type") != JSON:
            kind = self.kind
            if kind not in (JSON, b"") and not kind.endswith(b"+json"):
                shown = kind.decode("latin-1")[:100]
                hint = "set content-type: application/json"
                raise Refusal(415, f"JSON was expected, not a body of type {shown}", hint)
        try:
            return orjson.loads(self.body(most))
        except orjson.JSONDecodeError as error:
            raise Refusal(400, f"the body is not valid JSON: {str(error)[:200]}", code="invalid_json") from None


@functools.lru_cache(64)
def parsed_query(query: bytes) -> Mapping[str, str]:
    """Returns the parameters of a query; clients repeat theirs."""
    try:
        text = query.decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=64))
    except ValueError:
        raise Refusal(400, "the query string cannot be read", "percent-encode it as UTF-8") from None


def too_large(bound: int) -> Refusal:
    close = ((b"connection", b"close"),)
    return Refusal(413, f"the body is larger than {bound:,} bytes", "send less at a time", headers=close)


def error_body(refusal: Refusal, form: ErrorForm, request_id: str) -> bytes:
    """Returns a refusal in the form that the clients of a route expect."""
    message = f"{refusal.message}: {refusal.hint}" if refusal.hint and form != "plain" else refusal.message
    if form == "kserve":
        return orjson.dumps({"error": message})
    if form == "tei":
        kind = TEI_TYPES.get(refusal.status, "Validation" if refusal.status < 500 else "Backend")
        return orjson.dumps({"error": message, "error_type": kind, "code": refusal.code})
    error: JsonObject = {
        "message": message,
        "type": TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error"),
        "param": refusal.parameter,
        "code": refusal.code,
    }
    if form == "plain":
        error |= {"hint": refusal.hint, "request_id": request_id}
    return orjson.dumps({"error": error})

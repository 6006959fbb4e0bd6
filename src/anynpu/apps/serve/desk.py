"""What every route of models shares: which model is meant, until when an answer is of use, and who gave it."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from anynpu.apps.serve.base import Answer, Deployment, Fleet, Item, Kind, Options, Outcome, Request
from anynpu.apps.serve.metrics import Metrics
from anynpu.apps.web.message import Header, HttpAnswer, HttpRequest, Line, Refusal, Reply
from anynpu.schema import JsonObject, near

USUAL = Options()
TIMEOUT = b"x-request-timeout"


@dataclass(frozen=True)
class DeskSettings:
    """How requests are taken. A client may ask for a shorter deadline, not for a longer one."""

    deadline_s: float = 30.0
    admin: bool = False
    """The admin routes are served: reload and canary on demand."""


@dataclass
class Desk:
    """The counter between HTTP and the models."""

    fleet: Fleet
    settings: DeskSettings = field(default_factory=DeskSettings)
    metrics: Metrics = field(default_factory=Metrics)
    started: bool = False
    draining: bool = False

    def choose(self, request: HttpRequest, named: str, *kinds: Kind) -> Deployment:
        """Returns the model that the body, ?model= or X-Model names, or the only one of these kinds."""
        name, models = named, self.fleet.models
        if not name:
            name = (self.model_of_query(request) if request.query_string else "") or request.header(b"x-model")
        if name:
            model = models.get(name)
            if model is None:
                served = ", ".join(models) or "none"
                message = f"the model {name[:100]!r} is not served here{near(name, models)}"
                raise Refusal(404, message, f"served: {served}", "model_not_found", "model")
            if kinds and model.kind not in kinds:
                message = f"the model {name!r} is of kind {model.kind}, this needs {' or '.join(kinds)}"
                raise Refusal(422, message, "GET /v1/models lists every model and its kind", parameter="model")
            return model if self.started else self.open(model)
        fitting = [model for model in models.values() if not kinds or model.kind in kinds]
        if len(fitting) == 1:
            return self.open(fitting[0])
        if not fitting:
            message = f"no model of kind {' or '.join(kinds)} is served here" if kinds else "no model is served here"
            raise Refusal(404, message, "GET /v1/models lists what is served", "model_not_found")
        names = ", ".join(model.name for model in fitting)
        raise Refusal(
            422, f"several models would do: {names}", "name one with model, ?model= or X-Model", parameter="model"
        )

    @staticmethod
    def model_of_query(request: HttpRequest) -> str:
        return request.query().get("model", "")

    def open(self, model: Deployment) -> Deployment:
        """Returns a model that may be asked now."""
        if not self.started:
            raise Refusal(503, "the models are still being loaded", code="starting", headers=((b"retry-after", b"1"),))
        return model

    def ask(
        self, request: HttpRequest, model: Deployment, items: Sequence[Item], options: Options = USUAL
    ) -> Awaitable[Answer]:
        """Returns what a model says before the request's deadline."""
        return model.answer(self._asked(request, items, options))

    def later(
        self,
        request: HttpRequest,
        model: Deployment,
        items: Sequence[Item],
        shown: Callable[[Answer], HttpAnswer],
        options: Options = USUAL,
    ) -> Asked:
        """Returns what becomes `shown` of the model's answer, without a coroutine."""
        return Asked(model, self._asked(request, items, options), shown, request.line)

    def _asked(self, request: HttpRequest, items: Sequence[Item], options: Options) -> Request:
        head, limit_s = request.head, self.settings.deadline_s
        if head.query_string or TIMEOUT in head.headers:
            limit_s = self.deadline_s(request)
        return Request(tuple(items), options, time.monotonic() + limit_s, request.gone)

    def deadline_s(self, request: HttpRequest) -> float:
        """Returns how long a request may take: X-Request-Timeout or ?timeout= in seconds, at most the server's own."""
        text = request.header(TIMEOUT)
        if not text and request.query_string:
            text = request.query().get("timeout", "")
        if not text:
            return self.settings.deadline_s
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise Refusal(
                422, f"X-Request-Timeout {text[:40]!r}: seconds above zero were expected", parameter="timeout"
            )
        return min(seconds, self.settings.deadline_s)


class Asked:
    """A question to a model on its way: what `begin` is given is called with the answer as HTTP, or with an error."""

    __slots__ = ("line", "model", "pending", "reply", "request", "shown", "then")
    reply: Reply | None
    then: Callable[[Reply], None] | None

    def __init__(self, model: Deployment, request: Request, shown: Callable[[Answer], HttpAnswer], line: Line) -> None:
        self.model, self.request, self.shown, self.line = model, request, shown, line
        self.reply = None

    def begin(self, then: Callable[[Reply], None]) -> None:
        self.then = then
        self.pending = self.model.ask(self.request, self._answered, self._early)

    def _early(self, answer: Answer) -> None:
        """Sends the answer off in the thread that computed it."""
        self.reply = reply = self._shown(answer)
        if isinstance(reply, HttpAnswer):
            self.line.send_early(reply, self._conclude)

    def _conclude(self) -> None:
        """Hands over the reply that was sent early, unless that has happened."""
        then, self.then = self.then, None
        if then is not None and self.reply is not None:
            then(self.reply)

    def _answered(self, outcome: Outcome) -> None:
        if self.reply is None:
            self.reply = self._shown(outcome)
        self._conclude()

    def _shown(self, outcome: Outcome) -> Reply:
        try:
            return self.shown(outcome) if isinstance(outcome, Answer) else outcome
        except Exception as error:
            return error

    def cancel(self) -> None:
        if self.pending is not None:
            self.pending.cancel()


def answered(
    body: bytes, answer: Answer, kind: bytes = b"application/json", headers: Sequence[Header] = ()
) -> HttpAnswer:
    """Returns a body with the version and the device that computed it in the headers."""
    more: list[Header] = []
    if answer.truncated:
        more.append((b"x-truncated", b"%d" % answer.truncated))
    if answer.fallback:
        more.append((b"x-fallback", b"cpu"))
    noted: JsonObject = {
        "model": answer.model,
        "version": answer.version[:12],
        "device": answer.device,
        "batch": answer.batch,
        "tokens": answer.tokens,
    }
    lines = _lines(answer.model, answer.version, answer.device, tuple(headers))
    return HttpAnswer(body, 200, kind, more, lines, answer.stages, noted)


@functools.lru_cache(256)
def _lines(model: str, version: str, device: str, headers: tuple[Header, ...]) -> bytes:
    named = ((b"x-model", model), (b"x-model-version", version), (b"x-device", device))
    lines = [*((name, header_text(text)) for name, text in named), *headers]
    return b"".join([b"%s: %s\r\n" % line for line in lines])


def header_text(text: str) -> bytes:
    """Returns text as a header may hold it; other characters are percent-encoded."""
    if text.isascii() and text.isprintable():
        return text.encode()
    from urllib.parse import quote

    return quote(text, safe=" /:@").encode()

"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from anynpu import __version__
from anynpu.apps.serve.base import Canary, Fleet, Refusal, State
from anynpu.apps.web.app import Route
from anynpu.apps.web.metrics import Counter, Histogram, Series, gauge

Values = dict[tuple[str, ...], float]
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
CANARY = {True: 1.0, False: 0.0, None: float("nan")}


class Metrics:
    """An observer of the models and of the HTTP side."""

    def __init__(self) -> None:
        model, route = ("model",), ("method", "route", "status")
        self.http = Histogram("anynpu_http_request_seconds", "Time from headers to answer; _count: requests.", route)
        self.stages = Histogram("anynpu_stage_seconds", "Time of a request in each stage.", ("model", "stage"))
        self.items = Counter("anynpu_items_total", "Texts, pictures and tensors answered.", model)
        self.tokens = Counter("anynpu_tokens_total", "Tokens computed.", model)
        self.refusals = Counter("anynpu_refused_total", "Requests a model did not answer, by reason.", ("model", "why"))
        self.batches = Histogram("anynpu_batch_rows", "Rows that ran together.", ("model", "device"), ROWS)
        self.runs = Histogram("anynpu_run_seconds", "Time of one run of a batch.", ("model", "device"))
        self.canaries = Counter("anynpu_canary_runs_total", "Runs of the known answers by result.", ("model", "result"))
        self.restarts = Counter("anynpu_restarts_total", "Sessions rebuilt after a failure.", model)
        self.reloads = Counter("anynpu_reloads_total", "Versions switched in.", model)
        self._http_of: dict[tuple[Route | None, int], Series] = {}
        self._stages_of: dict[str, list[Series]] = {}

    def http_done(self, route: Route | None, status: int, seconds: float) -> None:
        """Is called in the event loop only."""
        series = self._http_of.get((route, status))
        if series is None:
            method, path = (route.method, route.path) if route else ("", "none")
            series = self._http_of[route, status] = self.http.of(method, path, str(status))
        series.note(seconds)

    def answered(self, model: str, stages: Mapping[str, float], items: int, tokens: int) -> None:
        """Is called in the event loop only."""
        series = self._stages_of.get(model)
        if series is None:
            series = self._stages_of[model] = [self.stages.of(model, name) for name in stages]
        for each, seconds in zip(series, stages.values(), strict=True):
            each.note(seconds)
        self.items.add(model, by=items)
        if tokens:
            self.tokens.add(model, by=tokens)

    def refused(self, model: str, why: Refusal) -> None:
        self.refusals.add(model, why)

    def ran(self, model: str, device: str, rows: int, seconds: float) -> None:
        """Is called in the event loop only."""
        self.batches.of(model, device).note(rows)
        self.runs.of(model, device).note(seconds)

    def changed(self, model: str, state: State, reason: str) -> None:
        """The state is read when it is asked for."""

    def canary(self, model: str, result: Canary) -> None:
        self.canaries.add(model, {True: "ok", False: "drift", None: "none"}[result.ok])

    def restarted(self, model: str, reason: str) -> None:
        self.restarts.add(model)

    def reloaded(self, model: str, version: str) -> None:
        self.reloads.add(model)

    def text(self, fleet: Fleet, in_flight: int, ready: bool) -> str:
        """Returns everything in Prometheus' text form."""
        parts: list[Iterable[str]] = [
            metric.text()
            for metric in (
                *(self.http, self.stages, self.items, self.tokens, self.refusals, self.batches),
                *(self.runs, self.canaries, self.restarts, self.reloads),
            )
        ]
        health = {name: model.health() for name, model in fleet.models.items()}
        models = ("model",)
        states: Values = {
            (name, state): float(h.state == state) for name, h in health.items() for state in get_args(State)
        }
        fallback: Values = {(name,): float(h.fallback) for name, h in health.items()}
        ages = {(name,): h.canary.age_s for name, h in health.items()}
        suspects: Values = {(name,): float(h.canary.suspect_answers) for name, h in health.items()}
        canary: Values = {(name,): CANARY[h.canary.ok] for name, h in health.items()}
        parts += [
            gauge("anynpu_info", "The program that serves.", ("version",), {(__version__,): 1.0}),
            gauge("anynpu_ready", "1 once every model is loaded and until the server stops.", (), {(): float(ready)}),
            gauge("anynpu_http_in_flight", "HTTP requests being answered.", (), {(): float(in_flight)}),
            gauge("anynpu_queue_items", "Items that wait.", models, {(n,): float(h.queue) for n, h in health.items()}),
            gauge("anynpu_model_state", "1 for the state a model is in.", ("model", "state"), states),
            gauge("anynpu_fallback", "1 while answers come from the CPU twin.", models, fallback),
            gauge("anynpu_canary_ok", "1 if the known answers came out right last time, 0 if not.", models, canary),
            gauge("anynpu_canary_age_seconds", "Time since the known answers were last checked.", models,
                  {key: float(age) for key, age in ages.items() if age is not None}),
            gauge("anynpu_suspect_answers", "Answers given between a good canary and a bad one.", models, suspects),
        ]  # fmt: skip
        return "\n".join(line for part in parts for line in part) + "\n"

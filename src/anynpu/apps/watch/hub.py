"""The collector: takes batches from agents over HTTP, keeps them, and acknowledges what is safe on disk.

POST /v1/samples                      a batch; 200 once it is committed and synced, 429 or 503 with Retry-After
GET  /v1/fleet                        hosts and alerts, for the page
GET  /v1/hosts/{host}/series          time lines of a host with what is usual
POST /v1/alerts/{id}/acknowledge      {"by": "..."}
POST /v1/mutes                        {"host": "...", "metric": "*", "hours": 8, "note": "..."}; 0 hours ends it
GET  /metrics, /health, /ready, /
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from anynpu.apps.watch import timeline
from anynpu.apps.watch.alerts import Alerts, read_alert
from anynpu.apps.watch.samples import Delivery, checked_host, understood
from anynpu.apps.watch.store import Mute, SampleStore, StoreUnavailable
from anynpu.apps.watch.watcher import Watcher
from anynpu.apps.web.app import App, Policy, Route
from anynpu.apps.web.files import PackageFile
from anynpu.apps.web.limits import Limits
from anynpu.apps.web.message import HttpAnswer, HttpRequest, Refusal, json_answer
from anynpu.apps.web.metrics import KIND as METRICS_KIND
from anynpu.apps.web.metrics import Counter, Histogram, gauge
from anynpu.errors import AnyNpuError, ConfigError, first_line

BODY_BYTES = 2 << 20
MOST_PENDING = 2000
MOST_HOSTS = 10_000
AT_ONCE = 500
"""Batches that one transaction takes."""
PAGE = "anynpu.apps.watch.page"


@dataclass
class Figures:
    """What is counted for Prometheus."""

    samples: Counter = field(default_factory=lambda: Counter("anynpu_watch_samples_total", "Samples kept.", ()))
    duplicates: Counter = field(
        default_factory=lambda: Counter("anynpu_watch_duplicates_total", "Samples that were there already.", ())
    )
    rejected: Counter = field(
        default_factory=lambda: Counter("anynpu_watch_rejected_total", "Samples and batches refused.", ("why",))
    )
    commit_s: Histogram = field(
        default_factory=lambda: Histogram("anynpu_watch_commit_seconds", "Time to commit and sync a group of batches.")
    )
    alerts: Counter = field(
        default_factory=lambda: Counter("anynpu_watch_alerts_total", "Alerts announced.", ("kind", "state"))
    )


class Hub:
    """The application: collector, detector and page over one store."""

    def __init__(self, store: SampleStore, watcher: Watcher, alerts: Alerts, say: Callable[[str], None]) -> None:
        self.store, self.watcher, self.alerts, self.say = store, watcher, alerts, say
        self.figures = Figures()
        self.pending: list[tuple[Delivery, asyncio.Future[int]]] = []
        self.wanted = asyncio.Event()
        self.writer: asyncio.Task[None] | None = None
        self.ready = False
        self.refusing = ""
        """Why the last batches could not be kept: a full disk most often."""
        self.commits: deque[tuple[int, float]] = deque()
        """The last sample of every commit that the detector has not looked at yet, and when it was committed."""

    def app(self, policy: Policy, limits: Limits | None = None) -> App:
        """Returns the routes."""
        get, post = "GET", "POST"
        routes = [
            Route(post, "/v1/samples", self.take),
            Route(get, "/v1/fleet", self.fleet),
            Route(get, "/v1/hosts/{host}/series", self.series),
            Route(post, "/v1/alerts/{id}/acknowledge", self.acknowledge),
            Route(post, "/v1/mutes", self.mute),
            Route(get, "/metrics", self.metrics),
            Route(get, "/health", self.health, public=True),
            Route(get, "/ready", self.health, public=True),
            Route(get, "/", PackageFile(PAGE, "index.html"), public=True),
            Route(get, "/watch.css", PackageFile(PAGE, "watch.css"), public=True),
            Route(get, "/watch.js", PackageFile(PAGE, "watch.js"), public=True),
        ]
        return App(routes, limits or Limits(body_bytes=BODY_BYTES), policy, refusal_of=_refusal)

    async def start(self) -> None:
        """Begins to write and to watch."""
        self.writer = asyncio.create_task(self._write())
        await asyncio.to_thread(self.watcher.start)
        self.ready = True

    async def close(self) -> None:
        """Commits what was taken, and ends."""
        self.ready = False
        while self.pending:
            await asyncio.sleep(0.02)
        if self.writer is not None:
            self.writer.cancel()
        await asyncio.to_thread(self.watcher.close)

    async def take(self, request: HttpRequest) -> HttpAnswer:
        """Takes a batch and answers once it is on disk."""
        if len(self.pending) >= MOST_PENDING:
            raise Refusal(429, "more batches wait than the disk takes", headers=((b"retry-after", b"10"),))
        raw = request.json()
        try:
            delivery = understood(raw, time.time())
            if delivery.host not in self.store.known_hosts and len(self.store.known_hosts) >= MOST_HOSTS:
                raise ConfigError(f"more than {MOST_HOSTS:,} hosts", "start another collector")
            timeline.check_metrics(self.watcher.detector.registry, delivery)
        except ConfigError as error:
            self.figures.rejected.add("batch")
            raise Refusal(422, error.message, error.hint) from None
        for _ in delivery.rejected:
            self.figures.rejected.add("sample")
        fresh = 0
        if delivery.samples:
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.pending.append((delivery, future))
            self.wanted.set()
            fresh = await future
        self.figures.samples.add(by=fresh)
        self.figures.duplicates.add(by=len(delivery.samples) - fresh)
        body = {"accepted": fresh, "duplicates": len(delivery.samples) - fresh, "rejected": delivery.rejected}
        return json_answer(body)

    async def _write(self) -> None:
        """Commits what waits, all of it in one transaction: one sync for many agents."""
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            while self.pending:
                group, self.pending = self.pending[:AT_ONCE], self.pending[AT_ONCE:]
                began = time.perf_counter()
                try:
                    counts = await asyncio.to_thread(self.store.add, [delivery for delivery, _ in group])
                except Exception as error:
                    self.refusing = first_line(error).removeprefix(f"{self.store.path}: ")  # anyone may read it
                    for _, future in group:
                        if not future.done():
                            future.set_exception(error)
                    continue
                self.refusing = ""
                self.figures.commit_s.of().note(time.perf_counter() - began)
                self.commits.append((self.store.newest, time.monotonic()))
                self._behind_s()
                for (_, future), count in zip(group, counts, strict=True):
                    if not future.done():
                        future.set_result(count)
                self.watcher.wake.set()

    async def health(self, request: HttpRequest) -> HttpAnswer:
        """Says whether samples are taken and looked at."""
        well = self.ready and self.watcher.thread.is_alive() and not self.refusing
        body = {
            "status": "ok" if well else "refusing" if self.refusing else "starting",
            "reason": self.refusing,
            "hosts": len(self.store.known_hosts),
            "behind": self._behind(),
            "behind_s": round(self._behind_s(), 3),
        }
        return json_answer(body, 200 if well else 503)

    def _behind(self) -> int:
        return max(0, self.store.newest - self.watcher.number)

    def _behind_s(self) -> float:
        """Returns for how long the oldest sample that was kept has not been looked at."""
        while self.commits and self.commits[0][0] <= self.watcher.number:
            self.commits.popleft()
        return time.monotonic() - self.commits[0][1] if self.commits else 0.0

    async def fleet(self, request: HttpRequest) -> HttpAnswer:
        """Returns hosts and alerts."""
        now_s = time.time()
        alerts = []
        for body, _, acknowledged_s, by in self.store.alerts(200):
            alert = read_alert(body)
            row = {**vars(alert), "causes": [vars(cause) for cause in alert.causes], "title": alert.title}
            alerts.append({**row, "state": alert.state, "acknowledged_s": acknowledged_s, "acknowledged_by": by})
        with self.watcher.lock:
            hosts = timeline.overview(self.watcher.detector)
        mutes = [vars(mute) for mute in self.store.mutes(now_s)]
        return json_answer({"now_s": now_s, "hosts": hosts, "alerts": alerts, "mutes": mutes})

    async def series(self, request: HttpRequest) -> HttpAnswer:
        """Returns the time lines of a host."""
        host = request.parameters["host"]
        if host not in self.store.known_hosts:
            raise Refusal(404, "there is no such host")
        try:
            hours = float(request.query().get("hours", "24"))
        except ValueError:
            hours = math.nan
        if not 0 < hours <= 24 * 35:
            raise Refusal(400, "hours is a number from 0 to 840")
        now_s = time.time()
        rows = await asyncio.to_thread(self.store.between, host, now_s - hours * 3600, now_s + 60)
        with self.watcher.lock:
            lines = timeline.lines(self.watcher.detector, host, rows, now_s - hours * 3600, now_s)
        return json_answer({"host": host, "from_s": now_s - hours * 3600, "to_s": now_s, "lines": lines})

    async def acknowledge(self, request: HttpRequest) -> HttpAnswer:
        """Notes who looks after an alert."""
        raw = _object(request.json(4096))
        by = str(raw.get("by", ""))[:100]
        if not await asyncio.to_thread(self.store.acknowledge, request.parameters["id"], by, time.time()):
            raise Refusal(404, "there is no such alert")
        return json_answer({"acknowledged": True})

    async def mute(self, request: HttpRequest) -> HttpAnswer:
        """Keeps silent about a host or a metric for some hours."""
        raw = _object(request.json(4096))
        host, metric, hours = raw.get("host"), raw.get("metric", "*"), raw.get("hours", 8)
        if host != "*":
            checked_host(host)
        if not isinstance(metric, str) or len(metric) > 100:
            raise Refusal(422, "metric is a name, or *")
        if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 <= hours <= 24 * 365:
            raise Refusal(422, "hours is a number from 0 to 8760")
        until_s = time.time() + 3600 * hours
        await asyncio.to_thread(self.alerts.mute, Mute(str(host), metric, until_s, str(raw.get("note", ""))[:200]))
        return json_answer({"muted_until_s": until_s})

    async def metrics(self, request: HttpRequest) -> HttpAnswer:
        """Returns the figures in Prometheus' form."""
        figures, watcher = self.figures, self.watcher
        with watcher.lock:
            open_by_test: dict[tuple[str, ...], float] = {}
            for anomaly in watcher.detector.open.values():
                open_by_test[(anomaly.test,)] = open_by_test.get((anomaly.test,), 0.0) + 1
        lines = [
            *figures.samples.text(),
            *figures.duplicates.text(),
            *figures.rejected.text(),
            *figures.commit_s.text(),
            *figures.alerts.text(),
            *gauge(
                "anynpu_watch_hosts", "Hosts that were ever heard of.", (), {(): float(len(self.store.known_hosts))}
            ),
            *gauge(
                "anynpu_watch_pending_batches", "Batches that wait for the disk.", (), {(): float(len(self.pending))}
            ),
            *gauge(
                "anynpu_watch_behind_samples", "Samples kept and not looked at yet.", (), {(): float(self._behind())}
            ),
            *gauge(
                "anynpu_watch_behind_seconds", "Age of the oldest sample not looked at yet.", (), {(): self._behind_s()}
            ),
            *gauge("anynpu_watch_anomalies", "What is not normal now, by test.", ("test",), open_by_test),
        ]
        return HttpAnswer(("\n".join(lines) + "\n").encode(), 200, METRICS_KIND)


def _object(raw: Any) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise Refusal(422, "a JSON object was expected")
    return raw


def _refusal(error: Exception) -> Refusal | None:
    if isinstance(error, StoreUnavailable):
        return Refusal(503, error.message, "free some space", headers=((b"retry-after", b"30"),))
    if isinstance(error, AnyNpuError):
        return Refusal(422, error.message, error.hint)
    return None

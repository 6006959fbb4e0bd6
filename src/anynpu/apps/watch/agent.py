"""The agent: takes a sample every interval, keeps it on disk, and sends what is not acknowledged."""

from __future__ import annotations

import http.client
import json
import random
import secrets
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from anynpu.apps.watch.samples import MOST_SAMPLES, VERSION, Sample, checked_host
from anynpu.apps.watch.spool import Spool
from anynpu.errors import ConfigError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ROUTE = "/v1/samples"
LONGEST_WAIT_S = 300.0
CALLS_A_ROUND = 20
"""Batches sent at most between two samples, while there is a backlog."""


@dataclass(frozen=True)
class AgentSettings:
    """Where samples go, how often they are taken, and where they wait."""

    collector: str
    host: str = field(default_factory=socket.gethostname)
    token: str = ""
    interval_s: float = 30.0
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        checked_host(self.host)
        parts = urllib.parse.urlsplit(self.collector)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{self.collector}: not the address of a collector", "http://HOST:8620")
        if self.token and not self.token.isprintable():
            raise ConfigError("the token has characters that no header can carry")


class Rejected(Exception):
    """The collector understood and does not want what was sent: sending it again is of no use."""


def boot_id() -> str:
    """Returns what tells this boot of the machine from others."""
    with suppress(OSError):
        return BOOT_ID.read_text("ascii").strip()
    return f"boot-{int(time.time() - time.monotonic())}"


class Agent:
    """One machine's agent. `say` takes lines for the log."""

    def __init__(
        self, settings: AgentSettings, spool: Spool, read: Callable[[], dict[str, float]], say: Callable[[str], None]
    ) -> None:
        self.settings, self.spool, self.read, self.say = settings, spool, read, say
        self.run_id, self.number, self.boot = secrets.token_hex(6), 0, boot_id()
        self.failures, self.not_before_s = 0, 0.0
        self.sent, self.rejected = 0, 0
        self._connection: http.client.HTTPConnection | None = None
        self._trouble = ""

    def sample(self) -> None:
        """Takes a sample and keeps it."""
        metrics = {name: value for name, value in self.read().items() if value == value and abs(value) < 1e300}
        self.number += 1
        id = f"{self.run_id}-{self.number}"
        self.spool.add(Sample(id, self.boot, time.time(), time.monotonic(), metrics))

    def send(self) -> bool:
        """Sends what waits, oldest first, and returns whether all of it is acknowledged."""
        for _ in range(CALLS_A_ROUND):
            if time.monotonic() < self.not_before_s:
                return False
            path, samples = self.spool.oldest()
            if not samples:
                return True
            try:
                self._post(samples[:MOST_SAMPLES])
                self.spool.acknowledge(path, min(len(samples), MOST_SAMPLES))
                self.sent += len(samples)
                if self._trouble:
                    self.say("the collector takes samples again")
                self.failures, self.not_before_s, self._trouble = 0, 0.0, ""
            except Rejected as error:
                self.say(f"{len(samples)} samples were refused and are dropped: {error}")
                self.rejected += len(samples)
                self.spool.acknowledge(path, len(samples))
            except (OSError, http.client.HTTPException) as error:
                self._failed(str(error) or type(error).__name__)
                return False
        return False

    def _failed(self, why: str, wait_s: float = 0.0) -> None:
        """Waits longer after every failure, and not all agents equally long."""
        self.failures += 1
        backoff = min(LONGEST_WAIT_S, self.settings.interval_s * 2 ** min(self.failures - 1, 5))
        self.not_before_s = time.monotonic() + max(wait_s, backoff) * random.uniform(0.5, 1.0)
        if why != self._trouble:
            self.say(f"{why}; samples wait on disk")
        self._trouble = why
        self._close()

    def _post(self, samples: list[Sample]) -> None:
        body = {
            "version": VERSION,
            "host": self.settings.host,
            "boot": self.boot,
            "time": time.time(),
            "uptime": time.monotonic(),
            "samples": [
                {"id": s.id, "boot": s.boot, "time": s.time_s, "uptime": s.uptime_s, "metrics": dict(s.metrics)}
                for s in samples
            ],
        }
        headers = {"content-type": "application/json", "user-agent": "anynpu-watch"}
        if self.settings.token:
            headers["authorization"] = f"Bearer {self.settings.token}"
        if self._connection is None:
            parts = urllib.parse.urlsplit(self.settings.collector)
            host, port, timeout = parts.hostname or "", parts.port, self.settings.timeout_s
            if parts.scheme == "https":
                context = ssl.create_default_context()
                self._connection = http.client.HTTPSConnection(host, port or 443, timeout=timeout, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, port or 80, timeout=timeout)
        connection = self._connection
        path = urllib.parse.urlsplit(self.settings.collector).path.rstrip("/") + ROUTE
        try:
            connection.request("POST", path, json.dumps(body, allow_nan=False).encode(), headers)
            answer = connection.getresponse()
            text = answer.read(1 << 20)
        except (OSError, http.client.HTTPException):
            self._close()
            raise
        if answer.status == 200:
            with suppress(ValueError, KeyError, TypeError):
                for id, why in json.loads(text)["rejected"][:3]:
                    self.say(f"sample {id} was refused: {why}")
        else:
            why = f"{self.settings.collector}: status {answer.status}"
            with suppress(ValueError, KeyError, TypeError):
                why = f"{self.settings.collector}: {json.loads(text)['error']['message']}"
            if answer.status in (400, 413, 415, 422):
                raise Rejected(why)
            wait = answer.getheader("retry-after", "")
            self._failed(why, float(wait) if wait.isdigit() else 0.0)
            raise ConnectionError(why)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def run(self, stop: Callable[[float], bool], once: bool = False) -> None:
        """Samples and sends until `stop` (which waits for this many seconds) says so; `once` does it one time."""
        self.read()  # the first reading of a rate has nothing to compare with
        if stop(min(1.0, self.settings.interval_s) if once else random.uniform(0, self.settings.interval_s)):
            return
        due = time.monotonic()
        while True:
            self.sample()
            self.send()
            due += self.settings.interval_s
            if due < time.monotonic():  # the machine slept
                due = time.monotonic()
            if once or stop(due - time.monotonic()):
                self._close()
                return

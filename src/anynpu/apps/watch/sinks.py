"""Where alerts go: standard output, a webhook, syslog, Alertmanager."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

from anynpu.apps.watch.alerts import Alert
from anynpu.errors import ConfigError, on_one_line

FACILITY, WARNING, NOTICE = 3, 4, 5
DEV_LOG = "/dev/log"


class Refused(OSError):
    """A receiver was reached and does not want the message."""


class Sink(Protocol):
    """One way to tell people; `send` raises OSError where it did not work. Its name is that of its outbox."""

    @property
    def name(self) -> str: ...

    def send(self, alert: Alert) -> None: ...


@runtime_checkable
class Reminds(Protocol):
    """A sink that must hear of open alerts again and again."""

    again_s: float

    def again(self) -> None:
        """Sends those that are open."""
        ...


def moment(time_s: float) -> str:
    """Returns a time as RFC 3339 has it."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line(alert: Alert) -> str:
    """Returns an alert as one line of text."""
    cause = alert.causes[0]
    if alert.ended_s is None:
        return on_one_line(f"{moment(alert.began_s)} ALERT {alert.id} {alert.title}: {cause.text}")
    lasted = alert.ended_s - alert.began_s
    return on_one_line(
        f"{moment(alert.ended_s)} RECOVERED {alert.id} {alert.title}: {cause.ending} after {lasted / 60:.0f} min"
    )


@dataclass
class LineSink:
    """A line a time, as text or JSON, to a function that writes it."""

    write: Callable[[str], None]
    as_json: bool = False
    name: str = "stdout"

    def send(self, alert: Alert) -> None:
        self.write(alert.body() if self.as_json else line(alert))


def _post(url: str, body: bytes, timeout_s: float) -> None:
    request = urllib.request.Request(url, body, {"content-type": "application/json", "user-agent": "anynpu-watch"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            answer.read(1 << 16)
    except urllib.error.HTTPError as error:
        kind = Refused if 400 <= error.code < 500 and error.code not in (408, 429) else OSError
        raise kind(f"{url}: status {error.code}") from None


def checked_url(url: str, flag: str) -> str:
    """Returns an address of the web; anything else (a file, another protocol) is refused."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{flag} {url}: an address such as http://host:port/path was expected")
    return url


@dataclass
class Webhook:
    """Posts the alert as JSON."""

    url: str
    timeout_s: float = 10.0

    @property
    def name(self) -> str:
        return f"webhook {self.url}"

    def send(self, alert: Alert) -> None:
        _post(self.url, alert.body().encode(), self.timeout_s)


@dataclass
class Alertmanager:
    """Posts to Prometheus' Alertmanager (API v2), which expects what is still firing to be sent again and again."""

    url: str
    timeout_s: float = 10.0
    again_s: float = 60.0
    name: str = "alertmanager"
    firing: dict[str, Alert] = field(default_factory=dict)

    def send(self, alert: Alert) -> None:
        if alert.ended_s is None:
            self.firing[alert.id] = alert
        else:
            self.firing.pop(alert.id, None)
        self._send([alert])

    def again(self) -> None:
        """Sends what is still firing once more."""
        if self.firing:
            self._send(list(self.firing.values()))

    def _send(self, alerts: list[Alert]) -> None:
        body = [
            {
                "labels": {
                    "alertname": "AnynpuWatch",
                    "host": alert.host,
                    "metric": alert.causes[0].metric,
                    "kind": alert.causes[0].kind,
                    "alert": alert.id,
                },
                "annotations": {"summary": alert.title, "description": alert.causes[0].text},
                "startsAt": moment(alert.began_s),
                **({"endsAt": moment(alert.ended_s)} if alert.ended_s is not None else {}),
            }
            for alert in alerts
        ]
        _post(self.url.rstrip("/") + "/api/v2/alerts", json.dumps(body).encode(), self.timeout_s)


@dataclass
class Syslog:
    """RFC 5424 over a datagram socket: /dev/log, or HOST:PORT."""

    address: str = DEV_LOG
    name: str = "syslog"

    def __post_init__(self) -> None:
        if not self.address.startswith("/"):
            host, _, port = self.address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65_536:
                raise ConfigError(f"--syslog {self.address}: a path such as {DEV_LOG}, or HOST:PORT")

    def send(self, alert: Alert) -> None:
        priority = FACILITY * 8 + (WARNING if alert.ended_s is None else NOTICE)
        when = moment(alert.began_s if alert.ended_s is None else alert.ended_s)
        text = f"<{priority}>1 {when} {socket.gethostname()} anynpu-watch - {alert.id} - \ufeff{line(alert)}"
        data = text.encode()[:8000]
        if self.address.startswith("/"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.settimeout(5)
                out.connect(self.address)
                out.send(data)
            return
        host, _, port = self.address.rpartition(":")
        family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as out:
            out.sendto(data, place)

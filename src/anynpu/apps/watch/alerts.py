"""Alerts: people hear of each once when it begins and once when it is over.

Anomalies of one host that begin within the hold-off of each other are one alert; the first is reported, and the others
are listed with it. One that comes back within the hold-off of its end goes on as the same alert. When the same metric
goes wrong on a large part of the fleet, that is reported once instead of for every host.

An alert and the messages that tell of it are one transaction of the store, so that none is lost with the process. After
a restart the detector looks again at the samples since its last save: what was announced then is not announced again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from anynpu.apps.watch.detector import Anomaly, Detector
from anynpu.apps.watch.explain import NAMES, explained
from anynpu.apps.watch.store import Mute, SampleStore, StoreUnavailable

State = Literal["firing", "resolved"]
FLEET = "(fleet)"
TOGETHER_S = 600.0
FEWEST_OF_A_FLEET = 4
PART_OF_A_FLEET = 0.25
RESTORED = 10_000


@dataclass(frozen=True)
class Cause:
    """One anomaly of an alert."""

    metric: str
    kind: str
    test: str
    text: str
    began_s: float
    since_s: float
    ended_s: float | None = None
    ending: str = ""
    value: float | None = None
    usual: float | None = None


@dataclass(frozen=True)
class Alert:
    """What is wrong with a host. The first cause gives it its name."""

    id: str
    host: str
    began_s: float
    causes: tuple[Cause, ...]
    ended_s: float | None = None
    silent: str = ""
    """Why nobody was notified: muted, part of a fleet-wide alert."""

    @property
    def state(self) -> State:
        return "firing" if self.ended_s is None else "resolved"

    @property
    def title(self) -> str:
        cause = self.causes[0]
        what = f"{NAMES.get(cause.kind, cause.kind)}: {cause.metric}" if cause.metric else NAMES[cause.kind]
        more = f" and {len(self.causes) - 1} more" if len(self.causes) > 1 else ""
        return f"{self.host}: {what}{more}"

    def body(self) -> str:
        """Returns the alert as JSON."""
        return json.dumps({**asdict(self), "state": self.state, "title": self.title})


def read_alert(body: str) -> Alert:
    """Returns an alert from what `body` gave."""
    raw = json.loads(body)
    causes = tuple(Cause(**cause) for cause in raw["causes"])
    return Alert(raw["id"], raw["host"], raw["began_s"], causes, raw["ended_s"], raw["silent"])


@dataclass
class Alerts:
    """The alerts of a fleet. `tell` is called for what somebody should hear of, once its messages are kept."""

    store: SampleStore
    tell: Callable[[Alert], None]
    hold_off_s: float = 3600.0
    sinks: Sequence[str] = ()
    """The names of those who get a message of every alert that is reported."""
    open: dict[str, Alert] = field(default_factory=dict)
    """By host, the alert that is open or whose hold-off has not passed."""
    changed_s: dict[str, float] = field(default_factory=dict)
    recent: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    """By metric, which hosts it went wrong on in the last minutes."""
    fleet: dict[str, Alert] = field(default_factory=dict)
    """By metric, the fleet-wide alert that was announced and has not been over for the hold-off."""
    told: int = 0
    dropped: int = 0
    """Messages that had to go because too many waited."""
    unwritten: list[tuple[Alert, bool]] = field(default_factory=list)
    """What the store could not take, its disk being full, and whether it is to be announced."""

    def restore(self) -> None:
        """Takes up the newest alert of every host, and those that were open when the last process ended."""
        stored = [*reversed(self.store.alerts(RESTORED)), *self.store.alerts(RESTORED, open_only=True)]
        for alert in (read_alert(body) for body, *_ in stored):
            if alert.host != FLEET:
                self.open[alert.host], self.changed_s[alert.host] = alert, alert.began_s
            elif alert.ended_s is None:
                self.fleet[alert.causes[0].metric or alert.causes[0].kind] = alert

    def take(self, detector: Detector, changes: Sequence[Anomaly], now_s: float) -> None:
        """Turns what the detector found into alerts."""
        self._write()
        for name in [name for name, alert in self.fleet.items() if now_s - alert.began_s > self.hold_off_s]:
            alert = self.fleet.pop(name)
            cause = replace(alert.causes[0], ended_s=now_s, ending="hosts are reported one by one again")
            self._keep(replace(alert, causes=(cause,), ended_s=now_s), now_s, reported=True)
        for anomaly in changes:
            host = detector.registry.hosts[anomaly.host]
            metric = "" if anomaly.series is None else detector.registry.metrics[anomaly.series]
            if anomaly.ended_s is None:
                self._begin(detector, anomaly, host, metric, now_s)
            else:
                self._end(host, metric, anomaly, now_s)

    def _begin(self, detector: Detector, anomaly: Anomaly, host: str, metric: str, now_s: float) -> None:
        why = explained(detector, anomaly)
        began_s, since_s = anomaly.opened_s, anomaly.since_s
        cause = Cause(metric, why.kind, anomaly.test, why.text, began_s, since_s, value=why.value, usual=why.usual)
        before = self.open.get(host)
        # Of one anomaly the detector gives the same moment whenever it sees the samples.
        same = [each for each in before.causes if (each.metric, each.test) == (metric, anomaly.test)] if before else []
        if any(abs(each.began_s - cause.began_s) < 1.0 for each in same):
            return  # the detector has looked at these samples before its process ended
        if before is not None and (before.ended_s is None or now_s - before.ended_s < self.hold_off_s):
            again = [each for each in before.causes if (each.metric, each.test) != (metric, anomaly.test)]
            alert = replace(before, causes=(*again, cause)[:50], ended_s=None)
            self._keep(alert, now_s, reported=False)
            return
        mutes = [m for m in self.store.mutes(now_s) if m.host in (host, "*") and m.metric in (metric, "*")]
        silent = ": ".join(filter(None, ("muted", mutes[0].note))) if mutes else ""
        silent = silent or self._fleet(detector, cause, host, now_s)
        alert = Alert(secrets.token_hex(8), host, anomaly.opened_s, (cause,), None, silent)
        self._keep(alert, now_s, reported=not silent)

    def _end(self, host: str, metric: str, anomaly: Anomaly, now_s: float) -> None:
        alert = self.open.get(host)
        if alert is None:
            return
        causes = tuple(
            replace(each, ended_s=anomaly.ended_s, ending=anomaly.ending)
            if (each.metric, each.test) == (metric, anomaly.test) and each.ended_s is None
            else each
            for each in alert.causes
        )
        if causes == alert.causes:
            return
        over = all(each.ended_s is not None for each in causes)
        alert = replace(alert, causes=causes, ended_s=anomaly.ended_s if over else None)
        self._keep(alert, now_s, reported=over and not alert.silent)

    def _keep(self, alert: Alert, now_s: float, reported: bool) -> None:
        if alert.host != FLEET:
            self.open[alert.host], self.changed_s[alert.host] = alert, now_s
        self.unwritten.append((alert, reported))
        self._write()

    def _write(self) -> None:
        """Keeps what has not been kept; on a full disk it waits for the next call."""
        while self.unwritten:
            alert, reported = self.unwritten[0]
            sinks = self.sinks if reported else ()
            try:
                self.dropped += self.store.keep_alert(
                    alert.id, alert.host, alert.began_s, alert.ended_s, alert.body(), sinks
                )
            except StoreUnavailable:
                return
            self.unwritten.pop(0)
            if reported:
                self.told += 1
                self.tell(alert)

    def _fleet(self, detector: Detector, cause: Cause, host: str, now_s: float) -> str:
        """Tells once of a metric that goes wrong on many hosts, and returns why nothing is reported of this one."""
        name = cause.metric or cause.kind
        recent = [(when, who) for when, who in self.recent.get(name, []) if now_s - when < TOGETHER_S]
        recent.append((now_s, host))
        self.recent[name] = recent
        if name in self.fleet:
            return f"part of a fleet-wide alert of {name}"
        hosts = sorted({who for _, who in recent})
        if len(hosts) < max(FEWEST_OF_A_FLEET, PART_OF_A_FLEET * len(detector.registry.hosts)):
            return ""
        text = (
            f"{name} went wrong on {len(hosts)} of {len(detector.registry.hosts)} hosts within 10 minutes; {cause.text}"
        )
        self.fleet[name] = Alert(secrets.token_hex(8), FLEET, now_s, (replace(cause, text=text),))
        self._keep(self.fleet[name], now_s, reported=True)
        return f"part of a fleet-wide alert of {name}"

    def mute(self, mute: Mute) -> None:
        """Keeps silent about a host or one of its metrics."""
        self.store.mute(mute)

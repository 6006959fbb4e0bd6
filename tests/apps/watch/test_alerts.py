"""What people are told: once, and when it is over; to real receivers."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time

import pytest

from anynpu.apps.watch.alerts import FLEET, Alerts, read_alert
from anynpu.apps.watch.detector import Anomaly, Detector
from anynpu.apps.watch.postman import TRIES, Postman
from anynpu.apps.watch.registry import Registry
from anynpu.apps.watch.sinks import Alertmanager, LineSink, Syslog, Webhook, checked_url
from anynpu.apps.watch.store import MOST_WAITING, Mute, SampleStore, StoreUnavailable
from anynpu.errors import ConfigError


@pytest.fixture
def desk(tmp_path):
    registry = Registry()
    for name in ("a", "b", "c", "d", "e"):
        host = registry.host(name)
        for metric in ("cpu_percent", "load1"):
            registry.series(host, metric)
    detector = Detector(registry)
    detector.grow()
    told: list[tuple[str, str]] = []
    alerts = Alerts(SampleStore(tmp_path / "w.db"), lambda alert: told.append((alert.state, alert.title)), 3600)
    return alerts, detector, told


def begin(desk, time_s, host=0, series=0, test="sample"):
    alerts, detector, _ = desk
    anomaly = Anomaly(host, series, test, time_s, time_s, 97.0, 12.0, 2.0)
    alerts.take(detector, [anomaly], time_s)
    return anomaly


def end(desk, anomaly, time_s):
    anomaly.ended_s, anomaly.ending = time_s, "is normal again"
    desk[0].take(desk[1], [anomaly], time_s)


def test_one_alert_one_recovery(desk):
    anomaly = begin(desk, 1000.0)
    end(desk, anomaly, 2000.0)
    assert desk[2] == [("firing", "a: spike: cpu_percent"), ("resolved", "a: spike: cpu_percent")]
    stored = read_alert(desk[0].store.alerts()[0][0])
    assert stored.state == "resolved" and "usually 12 % at this hour" in stored.causes[0].text


def test_what_goes_wrong_on_one_host_within_the_hold_off_is_one_alert(desk):
    first, second = begin(desk, 1000.0), begin(desk, 1200.0, series=1)
    end(desk, first, 1500.0)
    assert [state for state, _ in desk[2]] == ["firing"]  # one of two causes is over
    end(desk, second, 1600.0)
    again = begin(desk, 2000.0)  # within the hold-off of its end: the same alert goes on
    assert [state for state, _ in desk[2]] == ["firing", "resolved"]
    assert len(desk[0].store.alerts()) == 1
    end(desk, again, 2100.0)
    begin(desk, 2100.0 + 3601)
    assert len(desk[0].store.alerts()) == 2


def test_muted_hosts_and_metrics_are_kept_and_not_told(desk):
    desk[0].mute(Mute("a", "cpu_percent", 5000.0, "works"))
    end(desk, begin(desk, 1000.0), 1100.0)
    assert desk[2] == []
    assert read_alert(desk[0].store.alerts()[0][0]).silent == "muted: works"
    begin(desk, 6000.0)
    assert len(desk[2]) == 1


def test_a_fleet_wide_fault_is_told_once(desk):
    for host in range(5):
        begin(desk, 1000.0 + host, host=host, series=2 * host)
    hosts = [title.split(":")[0] for _, title in desk[2]]
    assert hosts == ["a", "b", "c", FLEET]
    assert len(desk[0].store.alerts()) == 6


def test_open_alerts_are_taken_up_after_a_restart(desk):
    anomaly = begin(desk, 1000.0)
    told = []
    fresh = Alerts(desk[0].store, lambda alert: told.append(alert.state), 3600)
    fresh.restore()
    anomaly.ended_s, anomaly.ending = 3000.0, "is normal again"
    fresh.take(desk[1], [anomaly], 3000.0)
    assert told == ["resolved"]


def test_what_was_told_before_a_restart_is_not_told_again(desk):
    first, second = begin(desk, 1000.0), begin(desk, 1200.0, series=1)
    for anomaly in (first, second):
        end(desk, anomaly, 2000.0)
    told = []
    fresh = Alerts(desk[0].store, lambda alert: told.append(alert.state), 3600)
    fresh.restore()
    for anomaly in (first, second):  # the detector looks at the same samples again
        anomaly.ended_s = None
        fresh.take(desk[1], [anomaly], anomaly.opened_s)
        anomaly.ended_s = 2000.0
        fresh.take(desk[1], [anomaly], 2000.0)
    assert told == [] and len(desk[0].store.alerts()) == 1
    begin((fresh, desk[1], told), 9000.0)
    assert told == ["firing"]


def test_a_fleet_wide_alert_ends_and_outlives_a_restart(desk):
    for host in range(5):
        begin(desk, 1000.0 + host, host=host, series=2 * host)
    told = []
    fresh = Alerts(desk[0].store, lambda alert: told.append((alert.state, alert.host)), 3600)
    fresh.restore()
    fresh.take(desk[1], [], 4000.0)
    assert told == []
    fresh.take(desk[1], [], 4700.0)
    assert told == [("resolved", FLEET)]


def test_on_a_full_disk_an_alert_waits_and_is_told_when_there_is_room(desk, monkeypatch):
    alerts = desk[0]
    full = monkeypatch.context()
    with full as patch:
        patch.setattr(alerts.store, "_writing", _full)
        anomaly = begin(desk, 1000.0)
        assert desk[2] == [] and len(alerts.unwritten) == 1
    alerts.take(desk[1], [], 1001.0)
    end(desk, anomaly, 2000.0)
    assert [state for state, _ in desk[2]] == ["firing", "resolved"]


def _full():
    raise StoreUnavailable("w.db: cannot be written now (database or disk is full)")


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes posts; the first `failures` of them are answered with 503."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        failing = self.server.failures > 0
        self.server.failures -= failing
        if not failing:
            self.server.taken.append((self.path, json.loads(body)))
        self.send_response(self.server.status if failing else 200)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.taken, server.failures, server.status = [], 0, 503
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()


def an_alert(desk):
    kept = []
    desk[0].tell = kept.append
    end(desk, begin(desk, 1000.0), 2000.0)
    return kept


def posted(desk, sink):
    """Returns a postman who has begun and an outbox with both ends of an alert."""
    desk[0].sinks = (sink.name,)
    said = []
    postman = Postman(sink, desk[0].store, said.append, first_wait_s=0.01)
    kept = an_alert(desk)
    return postman, said, kept


def delivered(postman, receiver, count):
    limit = time.monotonic() + 120
    while len(receiver.taken) < count and time.monotonic() < limit:
        time.sleep(0.02)
    postman.close()
    return receiver.taken


def test_a_webhook_gets_both_ends_and_is_tried_again(desk, receiver):
    receiver.failures = 2
    postman, said, _ = posted(desk, Webhook(f"http://127.0.0.1:{receiver.server_port}/hook"))
    postman.start()
    taken = delivered(postman, receiver, 2)
    assert [(path, body["state"], body["host"]) for path, body in taken] == [
        ("/hook", "firing", "a"),
        ("/hook", "resolved", "a"),
    ]
    assert said and "status 503" in said[0]
    assert desk[0].store.next_message(postman.sink.name) is None


def test_what_no_receiver_has_taken_outlives_the_process(desk, receiver):
    sink = Webhook(f"http://127.0.0.1:{receiver.server_port}/hook")
    receiver.failures = 1_000_000
    postman, said, _ = posted(desk, sink)
    postman.start()
    while not said:
        time.sleep(0.01)
    postman.close()
    assert receiver.taken == [] and postman.lost == 0
    receiver.failures = 0
    desk[0].store.close()
    again = Postman(sink, SampleStore(desk[0].store.path), print, first_wait_s=0.01)
    again.start()
    assert [body["state"] for _, body in delivered(again, receiver, 2)] == ["firing", "resolved"]


def test_a_message_that_is_refused_is_given_up_and_the_next_goes_on(desk, receiver):
    receiver.failures, receiver.status = TRIES, 400
    postman, said, _ = posted(desk, Webhook(f"http://127.0.0.1:{receiver.server_port}/hook"))
    postman.start()
    assert [body["state"] for _, body in delivered(postman, receiver, 1)] == ["resolved"]
    assert postman.lost == 1 and "given up" in said[-1]


def test_the_oldest_of_too_many_messages_goes(desk):
    store = desk[0].store
    dropped = [store.keep_alert("x", "a", 1.0, None, str(n), ("s", "t")) for n in range(MOST_WAITING + 3)]
    assert sum(dropped) == 6 and store.next_message("s")[1] == "3"


def test_alertmanager_gets_its_form_and_hears_of_what_still_fires_again(desk, receiver):
    sink = Alertmanager(f"http://127.0.0.1:{receiver.server_port}", again_s=0.05)
    desk[0].sinks = (sink.name,)
    postman = Postman(sink, desk[0].store, print)
    firing, resolved = an_alert(desk)
    desk[0].store.delivered(2)  # only the firing one is sent by the postman
    postman.start()
    taken = delivered(postman, receiver, 3)
    assert {path for path, _ in taken} == {"/api/v2/alerts"}
    (entry,) = taken[0][1]
    assert entry["labels"] == {
        "alertname": "AnynpuWatch",
        "host": "a",
        "metric": "cpu_percent",
        "kind": "spike",
        "alert": firing.id,
    }
    assert entry["startsAt"] == "1970-01-01T00:16:40.000Z" and "endsAt" not in entry
    sink.send(resolved)
    assert taken[-1][1][0]["endsAt"] == "1970-01-01T00:33:20.000Z" and not sink.firing


@pytest.mark.parametrize("kind", ["udp", "unix"])
def test_syslog_gets_one_line_that_cannot_be_split(desk, tmp_path, kind):
    if kind == "udp":
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    else:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = str(tmp_path / "log")
        listener.bind(address)
    Syslog(address).send(an_alert(desk)[0])
    text = listener.recv(10_000).decode()
    listener.close()
    assert text.startswith("<28>1 1970-01-01T00:16:40.000Z ") and "\n" not in text
    assert "ALERT" in text and "cpu_percent 97 %" in text


def test_lines_and_addresses(desk):
    lines = []
    for alert in an_alert(desk):
        LineSink(lines.append).send(alert)
        LineSink(lines.append, as_json=True).send(alert)
    assert lines[0].startswith("1970-01-01T00:16:40.000Z ALERT ") and json.loads(lines[1])["state"] == "firing"
    assert "RECOVERED" in lines[2] and "is normal again after 17 min" in lines[2]
    for bad in ("file:///etc/passwd", "ftp://x", "host:80", "http://"):
        with pytest.raises(ConfigError):
            checked_url(bad, "--webhook")
    for bad in ("host", "host:0", "host:x"):
        with pytest.raises(ConfigError):
            Syslog(bad)

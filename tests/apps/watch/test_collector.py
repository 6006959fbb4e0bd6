"""The collector as agents meet it: nothing acknowledged is lost, nothing bad gets in."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from collector import TOKEN, Collector, batch

from anynpu.apps.watch.store import SampleStore


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    found = Collector(tmp_path_factory.mktemp("hub"))
    yield found
    found.stop()


def stored(hub, host):
    return [row for row in rows_of(hub.store) if row[0] == host]


def rows_of(path):
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        query = "SELECT name, samples.id, time_s, stamped_s FROM samples JOIN hosts ON hosts.id = host"
        return connection.execute(query).fetchall()


def test_what_is_acknowledged_is_in_the_store_and_a_second_delivery_changes_nothing(hub):
    sent = batch("dup", ("x-1", "x-2"))
    assert hub.call("/v1/samples", sent) == (200, {"accepted": 2, "duplicates": 0, "rejected": []})
    assert len(stored(hub, "dup")) == 2
    assert hub.call("/v1/samples", sent)[1]["duplicates"] == 2
    assert len(stored(hub, "dup")) == 2


@pytest.mark.parametrize("token", ["", "wrong-token", TOKEN + "x"])
def test_a_wrong_token_is_refused(hub, token):
    for path, body in (("/v1/samples", batch()), ("/v1/fleet", None), ("/metrics", None)):
        assert hub.call(path, body, token=token)[0] == 401
    assert hub.call("/health", token="")[0] == 200


BAD = {
    "a list": [],
    "no version": {"host": "x"},
    "another version": batch(version=99),
    "control characters": batch("a\x1b[31mb"),
    "a line of its own": batch("a\nb"),
    "turned text": batch("a\u202eb"),
    "an empty name": batch("  "),
    "a long name": batch("x" * 300),
    "no samples": batch(ids=()),
    "too many samples": batch(ids=tuple(f"i-{n}" for n in range(1001))),
    "a time that is text": batch(time="now"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_batch_is_refused_with_a_sentence(hub, bad):
    status, answer = hub.call("/v1/samples", bad)
    assert status == 422
    message = answer["error"]["message"]
    assert message and "\x1b" not in message and "\u202e" not in message


def test_garbage_and_bodies_beyond_the_limit_are_refused_and_the_collector_lives_on(hub):
    for raw in (b"\x00\xff garbage", b'{"a": NaN}', b"[" * 100_000, b""):
        assert hub.call("/v1/samples", raw=raw)[0] == 400
    assert hub.call("/v1/samples", raw=b"x" * (10 << 20))[0] == 413
    assert hub.call("/health")[0] == 200


BAD_METRICS = {
    "upper-case": {"CPU": 1.0},
    "control-character": {"cpu\u0007": 1.0},
    "text": {"cpu_percent": "high"},
    "flag": {"cpu_percent": True},
    "too-large": {"cpu_percent": 1e301},
    "too-many": {f"m{n}": 1.0 for n in range(201)},
    "none": {},
}


@pytest.mark.parametrize("name", BAD_METRICS)
def test_a_bad_sample_is_left_out_and_named_and_the_others_are_kept(hub, name):
    sent = batch(f"partly-{name}", ("good-1", "bad-1"))
    sent["samples"][1]["metrics"] = BAD_METRICS[name]
    status, answer = hub.call("/v1/samples", sent)
    assert (status, answer["accepted"]) == (200, 1)
    assert [id for id, _ in answer["rejected"]] == ["bad-1"]


def test_unknown_metrics_are_taken_and_values_that_are_missing_are_none(hub):
    sent = batch("odd")
    sent["samples"][0]["metrics"] = {"frobs_per_s": 12.0, "cpu_percent": None}
    assert hub.call("/v1/samples", sent)[1]["accepted"] == 1
    row = hub.until(lambda: [h for h in hub.call("/v1/fleet")[1]["hosts"] if h["host"] == "odd"])[0]
    assert row["metrics"] == {"frobs_per_s": pytest.approx(12.0)}


def test_a_host_cannot_make_ever_more_series(hub):
    for part in range(2):
        sent = batch("many", (f"m-{part}",))
        sent["samples"][0]["metrics"] = {f"metric_{part}_{n}": 1.0 for n in range(150)}
        status, answer = hub.call("/v1/samples", sent)
        hub.until(lambda: any(h["host"] == "many" for h in hub.call("/v1/fleet")[1]["hosts"]))
    assert status == 422 and "more than 200 metrics" in answer["error"]["message"]


def test_a_clock_years_ahead_is_placed_in_our_time_and_told_of(hub):
    right, wrong = batch("skewed", ("s-1",)), batch("skewed", ("s-2",))
    assert hub.call("/v1/samples", right)[0] == 200
    hub.until(lambda: [h for h in hub.call("/v1/fleet")[1]["hosts"] if h["host"] == "skewed"])
    for place in (wrong, wrong["samples"][0]):
        place["time"] += 5 * 365 * 86_400
    assert hub.call("/v1/samples", wrong)[1]["accepted"] == 1
    assert max(time_s for *_, time_s, _ in stored(hub, "skewed")) < time.time() + 5
    alerts = hub.until(lambda: [a for a in hub.call("/v1/fleet")[1]["alerts"] if a["host"] == "skewed"])
    assert alerts[0]["causes"][0]["kind"] == "clock"


def test_a_spooled_sample_is_placed_by_its_age_whatever_the_clock_says(hub):
    sent = batch("aged")
    sent["samples"][0] |= {"uptime": 40.0, "time": 12345.0}
    before_s = time.time()
    assert hub.call("/v1/samples", sent)[1]["accepted"] == 1
    assert before_s - 1 <= stored(hub, "aged")[0][2] + 60 <= time.time() + 1


def test_acknowledge_and_mute_are_kept_and_bad_ones_refused(hub):
    assert hub.call("/v1/alerts/none/acknowledge", {"by": "me"})[0] == 404
    assert hub.call("/v1/mutes", {"host": "web1", "hours": 1, "note": "works"})[0] == 200
    assert [m["host"] for m in hub.call("/v1/fleet")[1]["mutes"]] == ["web1"]
    assert hub.call("/v1/mutes", {"host": "web1", "hours": 0})[0] == 200
    assert hub.call("/v1/fleet")[1]["mutes"] == []
    for bad in (
        {"host": "a\nb"},
        {"host": "a", "hours": "x"},
        {"host": "a", "hours": -1},
        {"host": "a", "metric": 3},
        [],
    ):
        assert hub.call("/v1/mutes", bad)[0] == 422
    assert hub.call("/v1/hosts/nobody/series")[0] == 404
    hub.call("/v1/samples", batch("known", ("k-1",)))
    assert hub.call("/v1/hosts/known/series?hours=nan")[0] == 400


def test_metrics_are_in_prometheus_form(hub):
    status, text = hub.call("/metrics")
    assert status == 200
    for line in text.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2
    assert "anynpu_watch_samples_total" in text and "anynpu_watch_behind_samples" in text
    assert hub.call("/health")[1]["behind_s"] >= 0 and "anynpu_watch_behind_seconds" in text


def test_nothing_acknowledged_is_lost_when_the_collector_is_killed_again_and_again(tmp_path):
    hub = Collector(tmp_path)
    acknowledged: list[str] = []
    stop = threading.Event()

    def send() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                if hub.call("/v1/samples", batch("busy", (f"n-{number}",)))[0] == 200:
                    acknowledged.append(f"n-{number}")
            except OSError:
                time.sleep(0.05)

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(3):
        before = len(acknowledged)
        hub.until(lambda before=before: len(acknowledged) > before + 5)
        hub.kill()
        hub.start()
    stop.set()
    thread.join()
    assert hub.stop() == 0
    assert set(acknowledged) <= {id for _, id, *_ in rows_of(hub.store)}
    assert len(acknowledged) > 15


def test_on_a_full_disk_a_batch_is_refused_and_everything_acknowledged_is_kept(hub):
    acknowledged = []

    def send(number):
        status, answer = hub.call("/v1/samples", batch("full", (f"f-{number}",)))
        acknowledged.extend([f"f-{number}"] if status == 200 else [])
        return status, answer

    assert send(0)[0] == 200
    before = resource.prlimit(hub.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(hub.process.pid, resource.RLIMIT_FSIZE, (4096, before[1]))  # no file grows any more
    try:
        status, answer = send(1)
        assert status == 503 and "cannot be written now" in answer["error"]["message"]
        status, health = hub.call("/health")
        assert status == 503 and health["status"] == "refusing" and health["reason"].startswith("cannot be")
    finally:
        resource.prlimit(hub.process.pid, resource.RLIMIT_FSIZE, before)
    assert send(2)[0] == 200 and send(1)[0] == 200
    assert hub.call("/health")[1]["status"] == "ok"
    assert {id for _, id, *_ in stored(hub, "full")} == set(acknowledged) == {"f-0", "f-1", "f-2"}


def test_an_agent_keeps_samples_while_the_collector_is_away_and_a_killed_agent_loses_none(tmp_path):
    hub = Collector(tmp_path)
    spool = tmp_path / "spool"
    argv = [sys.executable, "-m", "anynpu", "watch", "agent", "--collector", hub.url, "--spool", str(spool)]
    argv += ["--token-file", str(hub.token_file), "--name", "board", "--interval", "0.2"]

    def lines() -> list[str]:
        return [line for path in spool.glob("*.jsonl") for line in path.read_text().splitlines()]

    with (tmp_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen(argv, stderr=log)
        hub.until(lambda: len(stored(hub, "board")) >= 3)
        hub.kill()
        hub.until(lambda: len(lines()) >= 3)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        waiting = {line.split('"id":"')[1].split('"')[0] for line in lines()}
        hub.start()
        once = subprocess.run([*argv, "--once"], stderr=log)
    assert once.returncode == 0
    assert waiting <= {id for _, id, *_ in stored(hub, "board")}
    assert list(spool.glob("*.jsonl")) == []
    assert hub.stop() == 0


def test_a_store_of_another_version_or_kind_is_refused(tmp_path):
    def start(path):
        argv = [sys.executable, "-m", "anynpu", "watch", "detect", "--port", "0", "--store", str(path)]
        return subprocess.run(argv, capture_output=True, text=True, env=dict(os.environ), timeout=120)

    garbage, foreign, newer = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "c.db"
    garbage.write_bytes(b"no database" * 1000)
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE mine (x)")
    SampleStore(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version=7")
    for path, words in ((garbage, "not a store"), (foreign, "something else"), (newer, "form 7")):
        done = start(path)
        assert done.returncode == 8 and words in done.stderr, done.stderr
    assert garbage.read_bytes().startswith(b"no database")

"""Samples on disk, at both ends."""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager

import pytest

from anynpu.apps.watch.samples import Sample, understood
from anynpu.apps.watch.spool import A_FILE, Spool
from anynpu.apps.watch.store import Mute, SampleStore, StoreUnavailable
from anynpu.errors import ConfigError


def sample(number: int) -> Sample:
    return Sample(f"r-{number}", "boot", 1000.0 + number, 10.0 + number, {"cpu_percent": float(number)})


@contextmanager
def files_no_larger_than(size: int):
    """A disk that takes no more: the kernel refuses to let files grow."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_spool_gives_back_what_it_took_in_order_after_a_restart(tmp_path):
    first = Spool(tmp_path)
    for number in range(A_FILE + 5):
        first.add(sample(number))
    again = Spool(tmp_path)
    assert len(again) == A_FILE + 5
    taken = []
    while True:
        path, samples = again.oldest()
        if not samples:
            break
        taken += samples
        again.acknowledge(path, len(samples))
    assert taken == [sample(number) for number in range(A_FILE + 5)]
    again.add(sample(999))
    assert again.oldest()[1] == [sample(999)]


def test_damaged_lines_are_left_out_and_counted(tmp_path):
    spool = Spool(tmp_path)
    for number in range(3):
        spool.add(sample(number))
    (path,) = spool.files()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"cpu", b"gpu") + lines[2][: len(lines[2]) // 2])
    again = Spool(tmp_path)
    assert again.oldest()[1] == [sample(0)]
    assert again.damaged == 2


def test_a_full_spool_drops_the_oldest_and_counts_them(tmp_path):
    spool = Spool(tmp_path, most_bytes=40_000)
    for number in range(4 * A_FILE):
        spool.add(sample(number))
    assert sum(path.stat().st_size for path in spool.files()) <= 40_000 + 20_000
    assert spool.dropped == 4 * A_FILE - len(spool) > 0


def test_on_a_full_disk_samples_wait_in_memory_and_are_written_when_there_is_room(tmp_path):
    spool = Spool(tmp_path)
    spool.add(sample(0))
    (path,) = spool.files()
    with files_no_larger_than(path.stat().st_size + 20):  # a part of the next line fits
        for number in range(1, 4):
            spool.add(sample(number))
        assert spool.disk_error
        assert len(spool.waiting) == 3
        assert spool.oldest()[1] == [sample(0)]
    spool.add(sample(4))
    assert spool.waiting == [] and not spool.disk_error
    assert Spool(tmp_path).oldest()[1] == [sample(number) for number in range(5)]


def delivery(*ids: str, host: str = "h"):
    entries = [{"id": id, "boot": "b", "time": 1.0, "uptime": 1.0, "metrics": {"load1": 0.5}} for id in ids]
    raw = {"version": 1, "host": host, "boot": "b", "time": 1.0, "uptime": 1.0, "samples": entries}
    return understood(raw, time.time())


def test_a_store_on_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path):
    store = SampleStore(tmp_path / "w.db")
    assert store.add([delivery("a")]) == [1]
    with files_no_larger_than(200_000), pytest.raises(StoreUnavailable, match=r"w\.db: cannot be written now"):
        for number in range(3000):
            store.add([delivery(*(f"b-{number}-{n}" for n in range(50)))])
    assert store.add([delivery("c")]) == [1]
    ids = {id for (id,) in store.connection.execute("SELECT id FROM samples")}
    assert {"a", "c"} <= ids
    groups = {id.split("-")[1] for id in ids if id.startswith("b-")}
    assert len(ids) == 50 * len(groups) + 2  # every delivery whole or not at all
    store.close()
    assert SampleStore(tmp_path / "w.db").count() == len(ids)


def test_samples_are_read_in_the_order_they_were_kept_and_forgotten_by_age(tmp_path):
    store = SampleStore(tmp_path / "w.db")
    store.add([delivery("a", "b"), delivery("a", host="other")])
    rows = store.after(0)
    assert [row.host for row in rows] == ["h", "h", "other"]
    assert store.after(rows[1].number)[0].host == "other"
    assert rows[0].metrics == {"load1": 0.5}
    assert store.forget(time.time() + 10) == 3
    assert store.count() == 0


def test_what_people_said_outlives_the_alert_and_the_process(tmp_path):
    store = SampleStore(tmp_path / "w.db")
    store.keep_alert("x", "h", 1.0, None, "{}")
    assert store.acknowledge("x", "me", 2.0)
    store.keep_alert("x", "h", 1.0, 3.0, "{}")
    store.mute(Mute("h", "*", 50.0, "works"))
    store.close()
    again = SampleStore(tmp_path / "w.db")
    assert again.alerts()[0][1:] == (3.0, 2.0, "me")
    assert again.mutes(49.0) == [Mute("h", "*", 50.0, "works")] and again.mutes(51.0) == []


def test_a_sample_from_the_future_of_its_own_boot_is_refused():
    raw = {"version": 1, "host": "h", "boot": "b", "time": 1.0, "uptime": 1.0}
    entry = {"id": "i", "boot": "b", "time": 1.0, "uptime": 500.0, "metrics": {"load1": 1}}
    found = understood({**raw, "samples": [entry]}, 1e9)
    assert found.samples == () and "after it was sent" in found.rejected[0][1]
    with pytest.raises(ConfigError, match="takes 1"):
        understood({**raw, "version": 2, "samples": [entry]}, 1e9)

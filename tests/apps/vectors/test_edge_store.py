"""What only the embedded store does: it lives in a process of its own, which may die, and indexes beside itself."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import kills
import numpy as np
import pytest
from tiny_space import SPEC, directions

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.vectors.base import CollectionSpec, Field, Filter, Match, Point, VectorSpace
from anynpu.vectors.edge import engine
from anynpu.vectors.edge.client import EdgeStore
from anynpu.vectors.edge.copying import copy_folder
from anynpu.vectors.edge.engine import Shard
from anynpu.vectors.edge.wire import CHUNK, Frame, decode, encode, receive, size_of


def opened(folder):
    return EdgeStore.at(str(folder))


def test_what_is_written_is_there_after_closing_and_opening(tmp_path):
    rows = directions(50)
    with opened(tmp_path / "s") as store:
        store.create(SPEC).upsert([Point(at, row, {"number": at}) for at, row in enumerate(rows)])
        process = store.process_id()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with opened(tmp_path / "s") as store:
        assert store.open("things").count() == 50
        assert store.process_id() != process


def test_a_second_client_joins_the_process_that_is_there(tmp_path):
    with opened(tmp_path / "s") as first:
        first.create(SPEC).upsert([Point(1, directions(1)[0])])
        script = (
            "import sys; from anynpu.vectors.edge.client import EdgeStore\n"
            "with EdgeStore.at(sys.argv[1]) as s: print(s.process_id(), s.open('things').count())"
        )
        said = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True)
        assert said.stdout.split() == [str(first.process_id()), "1"], said.stderr
        assert first.open("things").count() == 1


def test_a_process_that_was_killed_is_started_again(tmp_path):
    with opened(tmp_path / "s") as store:
        things = store.create(SPEC)
        things.upsert([Point(at, row) for at, row in enumerate(directions(30))])
        os.kill(store.process_id(), signal.SIGKILL)
        assert things.count() == 30
        things.upsert([Point(99, directions(1)[0])])
        assert things.count() == 31


def test_kills_lose_nothing_that_was_acknowledged(tmp_path):
    wrong, acknowledged, _ = kills.campaign(tmp_path / "s", int(os.environ.get("ANYNPU_KILLS", "4")), longest_s=0.6)
    assert wrong == []
    assert acknowledged > 0


def test_writes_go_on_while_an_index_is_built(tmp_path):
    """Points are written, written again and deleted while they are being indexed; a plain dict is the judge."""
    chance, truth, rows = random.Random(1), {}, directions(20_000, 8, seed=5)
    with opened(tmp_path / "s") as store:
        things = store.create(SPEC)

        def put(id, at):
            things.upsert([Point(id, rows[at], {"number": at})])
            truth[id] = at

        things.upsert([Point(id, rows[id], {"number": id}) for id in range(1500)])
        truth.update({id: id for id in range(1500)})
        written, saw_building = 1500, False
        while not saw_building:  # an index that was built before anything else could be written does not count
            assert written < 15_000
            indexing = threading.Thread(target=things.optimize)
            indexing.start()
            while indexing.is_alive() and written < 15_000:
                put(chance.randrange(2000), written)
                gone = chance.randrange(2000)
                things.delete([gone])
                truth.pop(gone, None)
                written += 1
                saw_building |= things.info().indexing
                assert things.count() == len(truth)
                time.sleep(0.01)
            indexing.join()
        check(things, truth, rows)
        things.optimize()
        assert things.info().indexed == things.info().points == len(truth)
        check(things, truth, rows)
    with opened(tmp_path / "s") as store:
        check(store.open("things"), truth, rows)
    folders = [entry.name for entry in (tmp_path / "s" / "things").iterdir() if entry.is_dir()]
    assert len(folders) == 2, f"a tail and a base are left, not {folders}"


def check(things, truth, rows):
    held = {row.id: row.payload["number"] for row in things.scroll(limit=10_000).rows}
    assert held == truth
    ids = list(truth)
    matrix = rows[[truth[id] for id in ids]]
    for vector in directions(5, seed=6):
        best = np.argsort(-(matrix @ vector))[:5]
        assert [hit.id for hit in things.query(vector, 5)] == [ids[at] for at in best]


def test_a_death_between_two_layers_leaves_no_point_twice(tmp_path):
    """The state that a death leaves between writing to the tail and deleting from the base, made by hand."""
    with opened(tmp_path / "s") as store:
        things = store.create(SPEC)
        things.upsert([Point(at, row, {"number": 1}) for at, row in enumerate(directions(400))])
        things.optimize()
    layout = json.loads((tmp_path / "s" / "things" / "layout.json").read_text())
    tail = Shard.load(tmp_path / "s" / "things" / layout["tail"])
    tail.upsert([7], directions(1, seed=9), [{"number": 2}])
    tail.close()
    with opened(tmp_path / "s") as store:
        things = store.open("things")
        assert things.count() == 400
        assert things.retrieve([7])[0].payload == {"number": 2}


def test_a_copied_shard_obeys_deletions(tmp_path):
    """The trap that a copy without its log falls into: its operations count from zero and are taken for old ones."""
    shard = Shard.create(tmp_path / "a", SPEC)
    for start in range(0, 300, 10):
        shard.upsert(list(range(start, start + 10)), directions(10, seed=start), [{}] * 10)
    shard.flush()
    copy_folder(tmp_path / "a", tmp_path / "b")
    copied = Shard.load(tmp_path / "b")
    copied.delete(list(range(100)))
    assert copied.count(None) == 200
    shard.close()
    copied.close()


def test_a_folder_that_is_something_else(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"not a store of vectors: it holds photo\.jpg"):
        opened(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be a folder"):
        opened(tmp_path / "file")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"kind": "anynpu-vectors", "format": 2, "engine": "0.9.0"}, "has format 2"),
        ({"kind": "anynpu-vectors", "format": 1, "engine": "99.0.0"}, r"written by Qdrant Edge 99\.0\.0"),
        ({"kind": "anynpu-vectors", "format": 1, "engine": "x"}, "not a version"),
        ({"kind": "other", "format": 1, "engine": "0.9.0"}, "of kind 'other'"),
        ([], "store.json"),
    ],
)
def test_a_store_of_another_version(tmp_path, record, why):
    (tmp_path / "store.json").write_text(json.dumps(record))
    with pytest.raises(AnyNpuError, match=why):
        opened(tmp_path)


def test_a_damaged_collection_is_named(tmp_path):
    with opened(tmp_path / "s") as store:
        store.create(SPEC).upsert([Point(1, directions(1)[0])])
    (tmp_path / "s" / "things" / "layout.json").write_text('{"tail": "s9", "next": 10}')
    with opened(tmp_path / "s") as store, pytest.raises(IntegrityError, match="s9 is not a shard"):
        store.open("things")


def test_another_process_holds_the_lock(tmp_path, monkeypatch):
    import fcntl

    from anynpu.vectors.edge import server

    monkeypatch.setattr(server, "LOCK_WAIT_S", 0.1)
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ours, _ = socket.socketpair()
        second = server.Server(tmp_path, ours)
        second.prepare()
    assert "another process has this store open" in str(second._failure)


def test_a_disk_that_takes_no_more(tmp_path):
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))\n"
        "from anynpu.vectors.edge.client import EdgeStore; from anynpu.errors import AnyNpuError\n"
        "from anynpu.vectors.base import CollectionSpec, VectorSpace\n"
        "try: EdgeStore.at(sys.argv[1]).create(CollectionSpec('a', VectorSpace('t', 'f', 8)))\n"
        "except AnyNpuError as e: print(type(e).__name__, e.message)\n"
    )
    said = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], capture_output=True, text=True)
    assert said.stdout.startswith("ConfigError"), said.stdout + said.stderr
    assert "no space left on the disk" in said.stdout


def test_a_path_longer_than_a_socket_address(tmp_path):
    folder = tmp_path / ("x" * 120) / ("y" * 120)
    with opened(folder) as store:
        assert store.names() == []


def test_what_is_not_a_frame_ends_that_connection_only(tmp_path):
    with opened(tmp_path / "s") as store:
        things = store.create(SPEC)
        stranger = socket.socket(socket.AF_UNIX)
        handle = os.open(tmp_path / "s", os.O_RDONLY)
        stranger.connect(f"/proc/self/fd/{handle}/socket")
        os.close(handle)
        stranger.sendall(b"\xff" * 64)
        assert stranger.recv(10) == b""
        stranger.close()
        assert things.count() == 0
        with pytest.raises(ConfigError, match="knows no operation 'nonsense'"):
            store.ask({"op": "nonsense"})
        with pytest.raises(IntegrityError, match="the store failed"):
            store.ask({"op": "query", "collection": "things"})
        assert things.count() == 0


@pytest.mark.parametrize("spin_s", [0.0, 0.001])
@pytest.mark.parametrize("size", [3, CHUNK])
def test_a_frame_is_received_whole_however_it_comes(spin_s, size):
    data = encode(Frame({"op": "query"}, np.arange(size, dtype=np.float32)))
    here, there = socket.socketpair()
    with here, there:
        pieces = [data[:1], data[1:9], data[9:]]

        def send() -> None:
            for piece in pieces:
                there.sendall(piece)
                time.sleep(0.002)  # longer than anyone spins
            there.close()

        sender = threading.Thread(target=send)
        sender.start()
        assert receive(here, spin_s).vectors.tolist() == list(range(size))
        sender.join()
        with pytest.raises(EOFError):
            receive(here, spin_s)


def test_what_a_shard_holds_is_read_ahead_unless_memory_is_short(tmp_path, monkeypatch):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "matrix.dat").write_bytes(b"x" * (2 * engine.READ_AHEAD + 1))
    advised = []
    monkeypatch.setattr(engine.os, "posix_fadvise", lambda handle, *what: advised.append(what))
    engine.read_ahead(tmp_path)
    assert [start for start, _, _ in advised] == [0, engine.READ_AHEAD, 2 * engine.READ_AHEAD]
    monkeypatch.setattr(engine, "_available_bytes", lambda: engine.READ_AHEAD)
    engine.read_ahead(tmp_path)
    assert len(advised) == 3


def test_frames_come_back_as_they_went():
    frame = Frame({"op": "x", "payload": {"é": [1, None]}}, directions(3))
    data = encode(frame)
    assert size_of(data[:4]) == 0
    assert size_of(data) == len(data)
    back = decode(data)
    assert back.head == frame.head
    assert np.array_equal(back.rows(8), directions(3))


def test_many_threads_at_once(tmp_path):
    rows = directions(200, seed=3)
    with opened(tmp_path / "s") as store:
        things = store.create(SPEC)
        failures = []

        def work(start):
            try:
                for at in range(start, start + 50):
                    things.upsert([Point(at, rows[at])])
                    assert things.query(rows[at], 1)[0].id == at
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(start,)) for start in range(0, 200, 50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert things.count() == 200


def test_a_closed_store_says_so(tmp_path):
    store = opened(tmp_path / "s")
    things = store.create(CollectionSpec("a", VectorSpace("t", "f", 8)))
    store.close()
    with pytest.raises(ConfigError, match="has been closed"):
        things.count()


def test_an_index_finds_what_a_filter_lets_through(edge_store):
    """Half of the points, more than are compared one by one: without care a graph finds about two thirds of them."""
    chance = np.random.default_rng(7)
    rows = chance.standard_normal((100, 256))[chance.integers(0, 100, 5000)] + 0.7 * chance.standard_normal((5000, 256))
    rows = rows.astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    spec = CollectionSpec("halves", VectorSpace("tiny", "f" * 64, 256), (Field("half", "keyword"),))
    things = edge_store.create(spec)
    things.upsert([Point(id, row, {"half": str(id % 2)}) for id, row in enumerate(rows)])
    things.optimize()
    assert things.info().indexed == len(rows)
    where, hits = Filter(must=(Match("half", "1"),)), 0
    for vector in rows[:60:2]:
        nearest = set(np.argsort(-(rows[1::2] @ vector))[:10] * 2 + 1)
        answer = things.query(vector, 10, where=where)
        hits += len(nearest & {hit.id for hit in answer})
        assert [hit.score for hit in answer] == pytest.approx(
            [float(rows[hit.id] @ vector) for hit in answer], abs=1e-5
        )
        exact = things.query(vector, 10, where=where, exact=True)
        assert {hit.id for hit in exact} == nearest
    assert hits >= 0.95 * 300

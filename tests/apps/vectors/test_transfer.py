"""Collections move between stores and files with nothing changed, and a damaged file leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from test_conformance_stores import points
from tiny_space import SPEC, directions

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError
from anynpu.vectors.base import CollectionSpec, Point, VectorSpace
from anynpu.vectors.places import open_store
from anynpu.vectors.server import ServerStore
from anynpu.vectors.transfer import copy, export, restore, rows_of


def same(a, b):
    left, right = list(rows_of(a)), list(rows_of(b))
    assert [row.id for row in left] == [row.id for row in right]
    assert [row.payload for row in left] == [row.payload for row in right]
    assert np.allclose([row.vector for row in left], [row.vector for row in right], atol=1e-6)
    assert a.spec.space == b.spec.space
    assert set(a.spec.fields) == set(b.spec.fields)


def test_embedded_to_server_and_back(edge_store, local_store):
    first = edge_store.create(SPEC)
    first.upsert(points())
    there = copy(first, local_store)
    same(first, there)
    same(first, copy(there, edge_store, "back"))
    for vector in directions(10, seed=8):
        answers = [[(hit.id, round(hit.score, 5)) for hit in each.query(vector, 10)] for each in (first, there)]
        assert answers[0] == answers[1]
    first.delete([0])
    with pytest.raises(IntegrityError, match="has 60 points after 59"):
        copy(first, local_store)


@pytest.mark.parametrize("name", ["things.jsonl", "things.jsonl.gz"])
@pytest.mark.parametrize("normalized", [True, False])
def test_through_a_file(edge_store, local_store, tmp_path, name, normalized):
    spec = CollectionSpec("kept", VectorSpace("t", "f" * 64, 8, normalized, "int8"), SPEC.fields)
    first = edge_store.create(spec)
    scale = 1 if normalized else 3
    first.upsert([Point(each.id, each.vector * scale, each.payload) for each in points()])
    seen = []
    assert export(first, tmp_path / name, seen.append) == 60
    same(first, restore(tmp_path / name, local_store))
    same(first, restore(tmp_path / name, edge_store, "again"))
    with pytest.raises(ConfigError, match="holds a collection 'again' already"):
        restore(tmp_path / name, edge_store, "again")
    assert [each.name for each in tmp_path.iterdir()] == [name]


def damage_cut(text):
    return text[: len(text) // 2]


def damage_last(text):
    return "".join(text.splitlines(keepends=True)[:-1])


def damage_swap(text):
    lines = text.splitlines(keepends=True)
    return "".join([lines[0], lines[2], lines[1], *lines[3:]])


def damage_payload(text):
    return text.replace('"number":3', '"number":4', 1)


def damage_missing(text):
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:3], *lines[4:]])


def damage_kind(text):
    return text.replace("anynpu-vectors", "anything", 1)


def damage_format(text):
    return text.replace('"format":1', '"format":2', 1)


def damage_empty(text):
    return ""


def damage_point(text):
    lines = text.splitlines(keepends=True)
    return "".join([lines[0], '{"id": 1}\n', *lines[1:]])


def damage_width(text):
    return text.replace('"width":8', '"width":9', 1)


@pytest.mark.parametrize(
    "damage",
    [value for name, value in list(globals().items()) if name.startswith("damage_")],
    ids=lambda each: each.__name__,
)
def test_a_damaged_file_leaves_no_collection(local_store, tmp_path, damage):
    first = local_store.create(SPEC)
    first.upsert(points())
    export(first, tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_text(damage((tmp_path / "x.jsonl").read_text()))
    with pytest.raises(AnyNpuError):
        restore(tmp_path / "x.jsonl", local_store, "copy")
    assert local_store.names() == ["things"]


def test_a_gzip_file_cut_short(local_store, tmp_path):
    first = local_store.create(SPEC)
    first.upsert(points())
    export(first, tmp_path / "x.jsonl.gz")
    whole = (tmp_path / "x.jsonl.gz").read_bytes()
    (tmp_path / "x.jsonl.gz").write_bytes(whole[:-40])
    with pytest.raises(IntegrityError, match="cut short"):
        restore(tmp_path / "x.jsonl.gz", local_store, "copy")
    (tmp_path / "y.jsonl.gz").write_bytes(b"no gzip at all")
    with pytest.raises(IntegrityError):
        restore(tmp_path / "y.jsonl.gz", local_store, "copy")
    assert local_store.names() == ["things"]


def test_a_file_is_readable_by_anything(local_store, tmp_path):
    first = local_store.create(SPEC)
    first.upsert(points()[:2])
    export(first, tmp_path / "x.jsonl.gz")
    lines = [json.loads(line) for line in gzip.decompress((tmp_path / "x.jsonl.gz").read_bytes()).splitlines()]
    assert lines[0]["collection"]["space"]["width"] == 8
    assert lines[1]["id"] == 0
    assert lines[-1]["points"] == 2


def test_an_export_to_nowhere(local_store, tmp_path):
    first = local_store.create(SPEC)
    with pytest.raises(ConfigError, match="no such folder"):
        export(first, tmp_path / "no" / "x.jsonl")


class Answers(BaseHTTPRequestHandler):
    """A server that answers as Qdrant does: with one recorded response."""

    status, body = 401, b"Must provide an API key or an Authorization bearer token"

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, b"Must provide an API key or an Authorization bearer token", "refuses the token"),
        (403, b"Forbidden", "refuses the token"),
        (500, b'{"status":{"error":"Service internal error"},"time":0.0}', "answers 500"),
        (200, b"<html>not qdrant</html>", "server"),
    ],
)
def test_what_a_server_may_answer(status, body, why):
    handler = type("Given", (Answers,), {"status": status, "body": body})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with pytest.raises(AnyNpuError, match=why):
            open_store(f"http://127.0.0.1:{server.server_port}", token="wrong")
    finally:
        server.shutdown()
        server.server_close()


def test_no_server_at_the_url():
    with pytest.raises(ConfigError, match="cannot be reached"):
        ServerStore.at("http://127.0.0.1:9")


def test_a_collection_that_somebody_else_made(local_store):
    from qdrant_client import models

    local_store.client.create_collection(
        "theirs", vectors_config=models.VectorParams(size=8, distance=models.Distance.COSINE)
    )
    assert local_store.names() == []
    for use in (local_store.open, local_store.drop):
        with pytest.raises(ConfigError, match="does not say which space"):
            use("theirs")
    with pytest.raises(ConfigError, match="does not say which space"):
        local_store.create(CollectionSpec("theirs", SPEC.space))

"""Input meant to harm: the right status, the server alive, and good clients served meanwhile."""

from __future__ import annotations

import base64
import io
import resource
import socket
import struct
import threading
import time
import zlib

import pytest
from desks import desk_of, site
from plain_fleet import PlainModel

from anynpu.apps.serve.base import Limits


@pytest.fixture(scope="module")
def client():
    models = (PlainModel("text", "embed-text"), PlainModel("finder", "detect", Limits(items=8, pixels=1_000_000)))
    with site(desk_of(*models)) as client:
        yield client


def alive(client) -> bool:
    return client("POST", "/embed", {"inputs": "hello"}).status == 200


def png(width: int, height: int, rows: bytes) -> bytes:
    """Returns a PNG that says its size; what it holds may be less."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (png(100_000, 100_000, bytes(10_000_000)), (413, 422)),  # says too much: refused before a pixel is read
        (png(2000, 2000, bytes(2001 * 2000)), (413, 422)),  # 4 kB that become 4 million pixels
        (png(10, 10, bytes(50_000_000)), (200, 422)),  # 48 kB that would become 50 MB of one small picture
        (png(0, 0, b""), (422,)),
        (b"\xff\xd8\xff\xe0" + bytes(1000), (422,)),
        (b"II*\x00\xff\xff\xff\xff" + bytes(100), (422,)),
    ],
)
def test_pictures_that_are_bombs(client, body, statuses):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert client("POST", "/detect", body, content_type="image/png").status in statuses
    assert client("POST", "/detect", {"image": base64.b64encode(body).decode()}).status in statuses
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    assert alive(client)


def test_compressed_bodies_are_not_unpacked(client):
    bomb = zlib.compress(bytes(100_000_000), 9)
    for coding in ("gzip", "deflate", "br", "zstd", "x-gzip", "gzip, gzip"):
        reply = client("POST", "/embed", bomb, content_type="application/json", content_encoding=coding)
        assert reply.status == 415
    assert alive(client)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000, b'{"inputs":' * 5000, b'{"inputs": "' + b"\\ud800" + b'"}', b'{"inputs": "\xff\xfe"}',
        b'{"inputs": 1' + b"0" * 5000 + b"}", b'{"inputs": NaN}', b"\x00" * 1000, b'{"inputs": "a"', b'"' * 9999,
        b'{"inputs": [' + b"1e400," * 10 + b"1]}", b"null", b"true", b"0", b'"text"', b"[]", b"{}",
    ],
)  # fmt: skip
def test_bodies_that_are_not_what_they_should_be(client, body):
    for path in (
        "/embed",
        "/v1/embeddings",
        "/rerank",
        "/detect",
        "/infer",
        "/v2/models/text/infer",
        "/",
        "/similarity",
    ):
        reply = client("POST", path, body, content_type="application/json")
        assert reply.status in (400, 422), (path, reply.body)
        assert reply.json()["error"]


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd", "/docs/../../pyproject.toml",
     "/docs.js%00.html", "/v2/models/..%2f..%2fetc/ready", "/v1/models/%00", "/v1/models/" + "a" * 3000, "//etc/passwd",
     "/v2/models/text/versions/../infer", "/docs.css/..", "/.git/config", "/v1/models/text%0d%0aset-cookie:x"],
)  # fmt: skip
def test_paths_that_lead_nowhere(client, path):
    reply = client.raw(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    status = int(reply.split(b" ", 2)[1])
    assert status in (400, 404, 405, 422) and b"root:" not in reply and b"set-cookie" not in reply.split(b"\r\n\r\n")[0]
    assert alive(client)


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: 4\r\ntransfer-encoding: chunked",
        b"transfer-encoding: xchunked",
        b"content-length: 1\r\ncontent-length: 40",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
        b"content-length: +4",
        b"content-length: 4 4",
    ],
)
def test_requests_that_smuggle_another_one(client, head):
    hidden = b"0\r\n\r\nGET /info HTTP/1.1\r\nhost: x\r\n\r\n"
    reply = client.raw(b"POST /embed HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + head + b"\r\n\r\n" + hidden, 40)
    assert reply.count(b"HTTP/1.1 ") <= 1 and b"model_sha" not in reply


def test_random_bytes(client):
    import random

    chance = random.Random(0)
    for _ in range(60):
        data = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 300)))
        reply = client.raw(data + b"\r\n\r\n")
        assert reply == b"" or reply.startswith(b"HTTP/1.1 4")
    assert alive(client)


def test_good_clients_are_served_while_others_dawdle(client):
    """Idle connections, headers and bodies that never end; bench/serve_hostile.py opens 10,000."""
    many = []
    try:
        for number in range(400):
            connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
            if number % 3 == 1:
                connection.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\nx: ")
            if number % 3 == 2:
                connection.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            many.append(connection)
        assert all(alive(client) for _ in range(20))
    finally:
        for connection in many:
            connection.close()


def test_a_client_that_never_reads_does_not_stop_others(client):
    body = b'{"inputs": ' + b'["' + b'a","' * 7 + b'a"]' + b"}"
    request = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    with socket.create_connection(("127.0.0.1", client.port), timeout=5) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sent = threading.Thread(target=_flood, args=(deaf, request % (len(body), body)))
        sent.start()
        time.sleep(0.2)
        assert all(alive(client) for _ in range(10))
        deaf.shutdown(socket.SHUT_RDWR)
        sent.join(30)
        assert not sent.is_alive()
    assert alive(client)


def _flood(connection: socket.socket, request: bytes) -> None:
    try:
        for _ in range(5000):
            connection.sendall(request)
    except OSError:
        return


def test_a_picture_larger_than_the_model_takes(client):
    from PIL import Image

    packed = io.BytesIO()
    Image.new("L", (1500, 1500)).save(packed, "PNG")
    assert client("POST", "/detect", packed.getvalue(), content_type="image/png").status == 413

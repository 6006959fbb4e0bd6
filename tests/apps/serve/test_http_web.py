"""The HTTP layer by itself: routing, bounded bodies, errors, token, CORS, ids, log, hostile connections."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from running import running, until, until_closed

from anynpu.apps.web.accesslog import AccessLog
from anynpu.apps.web.addresses import Addresses
from anynpu.apps.web.app import App, Policy, Route
from anynpu.apps.web.connections import Site
from anynpu.apps.web.limits import Limits
from anynpu.apps.web.message import HttpAnswer, HttpRequest, Refusal, json_answer
from anynpu.apps.web.notify import Notifier
from anynpu.apps.web.server import bind, bind_unix, fit_files, is_loopback, url_of
from anynpu.errors import ConfigError

SMALL = Limits(
    body_bytes=100_000, header_bytes=4096, headers=20, url_bytes=1000, header_s=120, body_s=120, connections=50
)


async def echo(request: HttpRequest) -> HttpAnswer:
    return json_answer({"got": request.json(), "parameters": request.parameters, "query": request.query()})


async def size(request: HttpRequest) -> HttpAnswer:
    return json_answer({"bytes": len(request.body())})


async def vector(request: HttpRequest) -> HttpAnswer:
    answer = json_answer({"vector": np.arange(3, dtype=np.float32) / 3})
    answer.stages_s = {"queue": 0.0005, "run": 0.00125}
    answer.noted = {"model": "m"}
    return answer


async def broken(request: HttpRequest) -> HttpAnswer:
    raise ZeroDivisionError("secret detail")


began_slowly = threading.Event()


async def slow(request: HttpRequest) -> HttpAnswer:
    request.body()
    began_slowly.set()
    await asyncio.sleep(0.3)
    return json_answer({"done": True})


ROUTES = (
    Route("POST", "/echo", echo),
    Route("POST", "/size", size),
    Route("GET", "/vector", vector),
    Route("GET", "/broken", broken),
    Route("GET", "/slow", slow),
    Route("GET", "/open", vector, public=True),
    Route("POST", "/models/{name}/echo", echo, errors="kserve"),
)


@pytest.fixture(scope="module")
def client():
    with running(App(ROUTES, SMALL)) as client:
        yield client


def test_json_in_and_out(client):
    reply = client("POST", "/echo?a=1&b=%C3%A9", {"x": [1, 2.5, "é"]})
    assert (reply.status, reply.json()["got"]) == (200, {"x": [1, 2.5, "é"]})
    assert reply.json()["query"] == {"a": "1", "b": "é"}
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "server" not in reply.headers


def test_numpy_arrays_are_written_as_they_are(client):
    reply = client("GET", "/vector")
    assert reply.json()["vector"] == pytest.approx([0, 1 / 3, 2 / 3])
    assert b"0.33333334" in reply.body
    assert reply.headers["server-timing"].startswith("queue;dur=0.500, run;dur=1.250, total;dur=")


def test_a_head_request_has_the_headers_of_get_and_no_body(client):
    reply = client("HEAD", "/vector")
    assert (reply.status, reply.body) == (200, b"")
    assert int(reply.headers["content-length"]) > 10


@pytest.mark.parametrize(
    ("path", "name"), [("/models/a/echo", "a"), ("/models/a%2Fb/echo", "a/b"), ("/models/%C3%A9/echo", "é")]
)
def test_a_parameter_is_one_segment(client, path, name):
    assert client("POST", path, {}).json()["parameters"] == {"name": name}


@pytest.mark.parametrize(
    "path", ["/", "/Echo", "/echo/", "//echo", "/models//echo", "/models/a/b/echo", "/../echo", "/%2e%2e/echo",
             "/models/%ff/echo", "/echo%00", "/models/a/echo/..", "/etc/passwd", "/echo;x"]
)  # fmt: skip
def test_other_paths_are_not_found(client, path):
    reply = client("POST", path, {})
    assert reply.status == 404
    assert reply.json()["error"]["code"] == "not_found"


def test_a_wrong_method_names_the_right_ones(client):
    for method in ("GET", "DELETE", "PATCH", "PUT", "TRACE"):
        reply = client(method, "/echo")
        assert (reply.status, reply.headers["allow"]) == (405, "OPTIONS, POST")
    assert client("OPTIONS", "/vector").headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"a": "\xc3"}', "invalid_json"),
        (b'{"a": NaN}', "invalid_json"),
        (b'{"a": Infinity}', "invalid_json"),
        (b"[" * 5000, "invalid_json"),
        (b'{"a": 1e999}', "invalid_json"),
        (b'"\\ud800"', "invalid_json"),
        (b"{} {}", "invalid_json"),
    ],
)
def test_a_body_that_is_not_json_is_refused(client, body, code):
    reply = client("POST", "/echo", body, content_type="application/json")
    assert (reply.status, reply.json()["error"]["code"]) == (400, code)


def test_other_kinds_of_bodies_are_refused(client):
    assert client("POST", "/echo", b"a=1", content_type="application/x-www-form-urlencoded").status == 415
    assert client("POST", "/echo", b"{}", content_type="application/json; charset=utf-8").status == 200
    assert client("POST", "/echo", b"{}", content_type="application/vnd.x+json").status == 200
    reply = client("POST", "/echo", b"\x1f\x8b" + bytes(1000), content_type="application/json", content_encoding="gzip")
    assert reply.status == 415
    assert "decompress" in reply.json()["error"]["message"]


def test_a_body_that_says_it_is_too_large_is_refused_and_the_answer_is_seen(client):
    reply = client("POST", "/size", bytes(3_000_000))
    assert (reply.status, reply.headers["connection"]) == (413, "close")
    assert client("POST", "/size", bytes(100_000)).json() == {"bytes": 100_000}


def test_a_body_that_does_not_say_its_length_is_refused_while_it_comes(client):
    chunk = b"%x\r\n%s\r\n" % (10_000, bytes(10_000))
    head = b"POST /size HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    assert client.raw(head + chunk * 20 + b"0\r\n\r\n").startswith(b"HTTP/1.1 413 ")


def test_a_client_that_waits_for_permission_is_refused_at_once(client):
    data = b"POST /size HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 999999999\r\n\r\n"
    assert client.raw(data).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /vector HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"GET /vector HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"GET /vector HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n", 400),
        (b"GET /vector HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"POST /size HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 414),
        (b"GET /vector HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(30)) + b"\r\n", 431),
        (b"GET /vector HTTP/1.1\r\nh: " + b"a" * 5000 + b"\r\n\r\n", 431),
        (b"GET /vector HTTP/1.1\r\nh: " + b"a" * 100_000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
def test_what_is_not_a_request_is_answered_and_closed(client, data, status):
    reply = client.raw(data)
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(body)["error"]["message"]
    assert client("GET", "/vector").status == 200


def test_headers_and_bodies_that_never_end_are_given_up():
    with running(App(ROUTES, replace(SMALL, header_s=1.0, body_s=1.0))) as client:
        dawdle(client)


def dawdle(client):
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", client.port), timeout=120) as slow_head:
        slow_head.sendall(b"GET /vector HTTP/1.1\r\nhost: x\r\n")
        with socket.create_connection(("127.0.0.1", client.port), timeout=120) as slow_body:
            slow_body.sendall(b"POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc")
            with socket.create_connection(("127.0.0.1", client.port), timeout=120) as silent:
                assert until_closed(slow_head).startswith(b"HTTP/1.1 408 ")
                assert until_closed(slow_body).startswith(b"HTTP/1.1 408 ")
                assert until_closed(silent).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began > 1.0


def test_a_connection_is_kept_and_requests_in_one_packet_are_all_answered(client):
    one = b"GET /vector HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"GET /vector HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert client.raw(one * 5 + last).count(b"HTTP/1.1 200 ") == 6


def was_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_idle_connections_make_room_for_new_ones():
    with running(App(ROUTES, Limits(connections=50, header_s=600))) as client:
        idle = [socket.create_connection(("127.0.0.1", client.port), timeout=60) for _ in range(60)]
        try:
            assert client("GET", "/vector").status == 200
            until(lambda: sum(map(was_closed, idle)) >= 10)
            assert sum(map(was_closed, idle)) < 20
        finally:
            for connection in idle:
                connection.close()


def test_of_connections_that_come_at_one_moment_the_first_makes_room():
    loop = asyncio.new_event_loop()
    site, closed = Site(App(ROUTES, Limits(connections=100)), loop), []
    try:
        for number in range(100):
            connection = site.connection()
            connection.since = 1.0
            connection.transport = SimpleNamespace(is_closing=lambda: False, abort=lambda at=number: closed.append(at))
            site.connections[connection] = None
        site.make_room()
    finally:
        loop.close()
    assert closed == [0]


def test_an_internal_error_says_nothing_of_itself(client, caplog):
    with caplog.at_level(logging.ERROR):
        reply = client("GET", "/broken")
    assert reply.status == 500
    assert b"secret" not in reply.body
    assert reply.json()["error"]["request_id"] == reply.headers["x-request-id"]
    assert "secret detail" in caplog.text


def test_a_good_request_id_is_kept_and_a_bad_one_replaced(client):
    assert client("GET", "/vector", x_request_id="abc-1").headers["x-request-id"] == "abc-1"
    for bad in ("a b", "é", "x" * 200, '"><script>'):
        made = client("GET", "/vector", x_request_id=bad).headers["x-request-id"]
        assert made != bad and made.partition("-")[2].isdigit()


def test_the_form_of_an_error_is_that_of_the_route(client):
    assert isinstance(client("POST", "/models/a/echo", b"{", content_type="application/json").json()["error"], str)


def test_a_token_is_asked_for():
    app = App(ROUTES, SMALL, Policy.of(["s3cret", "other"]))
    with running(app) as client:
        reply = client("GET", "/vector")
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        for wrong in ("Bearer nope", "Bearer ", "Basic s3cret", "s3cret", "Bearer s3cret2", "Bearer S3cret"):
            assert client("GET", "/vector", authorization=wrong).status == 401
        for right in ("Bearer s3cret", "bearer s3cret", "Bearer other"):
            assert client("GET", "/vector", authorization=right).status == 200
        assert client("GET", "/open").status == 200
        assert client("GET", "/nowhere").status == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:80", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::1]:80", 200), ("127.9.9.9", 200),
        ("proxy.example", 200), ("Proxy.Example:443", 200), ("a.localhost", 200), ("evil.example", 421),
        ("127.0.0.1.evil.example", 421), ("192.168.0.1", 421), ("localhost.evil.example:80", 421), ("[fe80::1]", 421),
    ],
)  # fmt: skip
def test_names_of_other_hosts_are_refused(host, status):
    with running(App(ROUTES, SMALL, Policy.of(hosts=["proxy.example"]))) as client:
        assert client("GET", "/vector", host=host).status == status


def test_cors_is_off_unless_an_origin_is_allowed():
    with running(App(ROUTES, SMALL)) as client:
        assert not [h for h in client("GET", "/vector", origin="http://a").headers if h.startswith("access-control")]
    with running(App(ROUTES, SMALL, Policy.of(["t"], ["http://a"]))) as client:
        preflight = client("OPTIONS", "/echo", origin="http://a", access_control_request_method="POST")
        assert preflight.status == 204
        assert preflight.headers["access-control-allow-origin"] == "http://a"
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        other = client("GET", "/vector", origin="http://b", authorization="Bearer t")
        assert "access-control-allow-origin" not in other.headers and other.headers["vary"] == "origin"


def test_the_access_log_is_json_lines_without_the_token(tmp_path):
    path = tmp_path / "log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    log = AccessLog(descriptor)
    with running(App(ROUTES, SMALL, Policy.of(["s3cret"]), log)) as client:
        client("GET", "/vector", authorization="Bearer s3cret", x_request_id="me")
        client("POST", "/%0a%1b[31m", b"x")
    log.flush()
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["id"], first["status"], first["model"], first["path"]) == ("me", 200, "m", "/vector")
    assert first["stages_ms"] == {"queue": 0.5, "run": 1.25} and first["ms"] > 0
    assert (second["status"], second["path"], second["error"]) == (404, "/\n\x1b[31m", "not_found")
    assert "s3cret" not in path.read_text()


def test_a_request_in_flight_is_answered_when_the_server_stops():
    with running(App(ROUTES, SMALL)) as client:
        connection = socket.create_connection(("127.0.0.1", client.port), timeout=120)
        connection.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        assert began_slowly.wait(120)
    assert until_closed(connection).endswith(b'{"done":true}')


def test_a_client_that_left_is_seen():
    came, left = threading.Event(), threading.Event()

    async def waits(request: HttpRequest) -> HttpAnswer:
        assert not request.gone()
        came.set()
        while not request.gone():
            await asyncio.sleep(0.02)
        left.set()
        return json_answer({})

    with running(App([Route("GET", "/", waits)])) as client:
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert came.wait(120)
            assert not left.is_set()
        assert left.wait(120)


def test_a_refusal_carries_its_headers():
    async def full(request: HttpRequest) -> HttpAnswer:
        raise Refusal(429, "the queue is full", "try later", headers=((b"retry-after", b"2"),))

    with running(App([Route("GET", "/", full, errors="openai")])) as client:
        reply = client("GET", "/")
    assert (reply.status, reply.headers["retry-after"]) == (429, "2")
    assert reply.json()["error"] == {
        "message": "the queue is full: try later",
        "type": "rate_limit_error",
        "param": None,
        "code": "overloaded",
    }


def test_sockets(tmp_path):
    with bind("127.0.0.1", 0) as listener:
        assert is_loopback(listener) and url_of(listener).startswith("http://127.0.0.1:")
        listener.listen()
        with pytest.raises(ConfigError, match="in use"):
            bind("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(ConfigError, match="no such address"):
        bind("no.such.host.invalid", 1)
    path = tmp_path / "s"
    with bind_unix(path) as listener:
        listener.listen()
        assert url_of(listener) == f"unix:{path}" and path.stat().st_mode & 0o777 == 0o660
        with pytest.raises(ConfigError, match="another server"):
            bind_unix(path)
    with bind_unix(path):  # nobody answers there any more
        pass
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="not a socket"):
        bind_unix(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_connections_fit_the_files_a_process_may_open():
    assert fit_files(Limits(connections=100)).connections == 100
    assert fit_files(Limits(connections=2**40)).connections < 2**40


def test_systemd_is_told(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as box:
        box.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "3000000")
        notifier = Notifier.from_environment()
        assert notifier.watchdog_s == 3.0
        notifier.ready("serving")
        assert box.recv(1000).splitlines()[:2] == [b"READY=1", b"STATUS=serving"]
        monkeypatch.setenv("WATCHDOG_PID", "1")
        assert Notifier.from_environment().watchdog_s is None
    Notifier("").ready("nobody listens")


def test_an_upgrade_that_is_not_spoken_here_is_ignored(client):
    upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    get = b"GET /vector HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n"
    post = b"POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n" + upgrade + b"\r\nabc"
    last = b"GET /vector HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    chunked = post.replace(b"content-length: 3", b"transfer-encoding: chunked")
    for data in (get + last, post + last, chunked.replace(b"abc", b"3\r\nabc\r\n0\r\n\r\n") + last):
        reply = client.raw(data)
        assert (b'{"bytes":3}' in reply) == data.startswith(b"POST")
        assert reply.count(b"HTTP/1.1 200 ") == 2 and not reply.startswith(b"HTTP/1.1 101")


def test_answers_keep_their_order_whatever_is_refused(client):
    one = b"GET /vector HTTP/1.1\r\nhost: x\r\n\r\n"
    none = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    last = b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    reply = client.raw(none + one + none * 500 + one + last)
    assert re.findall(rb"HTTP/1.1 (\d+) ", reply) == [b"404", b"200", *[b"404"] * 500, b"200", b"200"]


def test_an_old_client_and_one_that_asks_for_the_head_only(client):
    old = client.raw(b"GET /vector HTTP/1.0\r\n\r\n")
    assert old.startswith(b"HTTP/1.1 200 ") and b"connection: close" in old and old.endswith(b"]}")
    head = client.raw(b"HEAD /vector HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert head.endswith(b"\r\n\r\n") and b"content-length: " in head and b"\r\ndate: " in head


def test_a_client_that_waits_for_permission_gets_it(client):
    with socket.create_connection(("127.0.0.1", client.port), timeout=120) as connection:
        head = (
            b"POST /size HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\nconnection: close\r\n\r\n"
        )
        connection.sendall(head)
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abcd")
        assert until_closed(connection).endswith(b'{"bytes":4}')


def test_bodies_that_are_too_much_together_are_refused():
    with running(App(ROUTES, replace(SMALL, body_bytes=1_000_000, bodies_bytes=100_000))) as client:
        begun = b"POST /size HTTP/1.1\r\nhost: x\r\ncontent-length: 300000\r\n\r\n" + bytes(90_000)
        with socket.create_connection(("127.0.0.1", client.port), timeout=120) as other:
            other.sendall(begun)
            until(lambda: client("POST", "/size", bytes(50_000)).status == 503)
            assert client("POST", "/size", bytes(50)).status == 200
        until(lambda: client("POST", "/size", bytes(50_000)).status == 200)


def test_one_address_cannot_take_all_connections():
    with running(App(ROUTES, replace(SMALL, address_connections=3))) as client:
        held = [socket.create_connection(("127.0.0.1", client.port), timeout=120) for _ in range(3)]
        try:
            assert client.raw(b"GET /vector HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n") == b""
            other = socket.create_connection(("127.0.0.1", client.port), 120, ("127.0.0.2", 0))
            with other:
                other.sendall(b"GET /vector HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                assert until_closed(other).startswith(b"HTTP/1.1 200 ")
        finally:
            for connection in held:
                connection.close()
        ask = b"GET /vector HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        until(lambda: client.raw(ask).startswith(b"HTTP/1.1 200 "))


def test_new_connections_of_an_address_have_a_rate():
    addresses = Addresses(Limits(address_rate=2.0, address_local=False))
    addresses.tick(100.0)
    assert [addresses.take("192.0.2.1") for _ in range(25)] == [True] * 20 + [False] * 5
    assert addresses.take("192.0.2.2") and all(addresses.take("127.0.0.1") for _ in range(100))
    addresses.tick(104.0)
    assert [addresses.take("192.0.2.1") for _ in range(4)] == [True] * 3 + [False]
    addresses.tick(200.0)
    assert addresses.take("192.0.2.1")
    assert [addresses.take(f"2001:db8::{n:x}") for n in range(1, 22)][-1] is False, "a /64 is one customer"
    assert addresses.take("unix") and addresses.turned_away == 7


def test_a_server_that_stood_still_blames_no_client():
    """A stopped process, a suspended machine: what clients sent meanwhile is read before anybody is too late."""
    clock = SimpleNamespace(now=100.0)
    site = Site(App(ROUTES, SMALL), SimpleNamespace(time=lambda: clock.now))
    connection = site.connection()
    site.connections[connection] = None
    assert site.due(101.0) == [connection] and connection.since == 100.0
    assert site.due(162.0) == [] and connection.since == 160.0
    assert site.due(163.2) == [connection] and connection.since == 160.0
    assert site.due(173.2) == [] and site.due(183.2) == [connection], "a starved server still looks every other time"

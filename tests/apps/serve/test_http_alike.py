"""What most clients send is read by a shorter way, without a coroutine: the answers are the same, to the byte."""

from __future__ import annotations

import json
import random
import re
import socket

import pytest
from desks import desk_of, site
from plain_fleet import PlainModel

from anynpu.apps.serve import openai
from anynpu.apps.serve.base import Overloaded
from anynpu.apps.serve.desk import USUAL, Desk
from anynpu.errors import DeviceError

pytest.importorskip("httptools")
VARY = re.compile(rb"(date|x-request-id|server-timing): [^\r]*")
TEXTS = ("hello", "", " ", "a" * 1001, "word " * 30, "\u00e9\u4e16", "\x00", "null", "hello world")
INPUTS = (
    *TEXTS,
    *([text] for text in TEXTS),
    *(["a", "b"], [["a"]], [], [[]], [""], ["a", ""], ["a", 1], [1, 2], [[1, 2]], [[1, 2], [3]], [True], [None], [1.5]),
    *(None, True, 0, 1, 1.5, {}, {"a": 1}, [{}], ["a"] * 8, ["a"] * 9),
)
MODELS = ("m", "other", "", None, 1, ["m"], {}, "picture")


def bodies() -> list[bytes]:
    """Bodies of which the short way takes some, and of which it must leave the others alone."""
    found = [{"model": model, "input": value} for model in MODELS for value in ("hello", ["hello"], [], 1)]
    found += [{"model": "m", "input": value} for value in INPUTS]
    found += [{"model": "m", "input": ["a", "b"], "encoding_format": form} for form in ("base64", "float", "other")]
    texts = [json.dumps(body) for body in (*found, [], {}, "m", {"input": "hello"}, {"model": "m"})]
    texts += ['{"model": "m", "input": "a", "input": "b"}', '{"input":"hello","model":"m"}', '{"model": "m"', "NaN"]
    return [text.encode() for text in texts] + [b'{"model": "m", "input": "\xff"}', b'\xef\xbb\xbf{"model": "m"}']


def request(body: bytes, path: str = "/v1/embeddings", kind: str = "application/json") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answers(port: int, packets: list[bytes], count: int) -> list[bytes]:
    """The bytes of so many answers to packets, less what is another every time."""
    with socket.create_connection(("127.0.0.1", port), 120) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream, found = line.makefile("rb"), []
        for packet in packets:
            line.sendall(packet)
        while len(found) < count:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += stream.readline()
            length = int(re.search(rb"content-length: (\d+)", head)[1])
            found.append(VARY.sub(rb"\1", head) + stream.read(length))
        return found


def models() -> list[PlainModel]:
    return [PlainModel("m", "embed-text"), PlainModel("picture", "embed-image")]


async def awaited(desk, request, model, items, shown, options=USUAL):
    """What `Desk.later` returns, as a coroutine that the connection has to run."""
    return shown(await desk.ask(request, model, items, options))


def said(monkeypatch, way: str, prepare=lambda desk: None, path: str = "/v1/embeddings") -> list[list[bytes]]:
    """What each body is answered, three times: with a head that is new, and twice with one that is known."""
    taken = []
    usual = openai._usual if way in ("short", "early") else lambda desk, data: None
    monkeypatch.setattr(openai, "_usual", lambda *given: taken.append(usual(*given)) or taken[-1])
    if way == "coroutine":
        monkeypatch.setattr(Desk, "later", awaited)
    desk = desk_of(*models())
    for model in desk.fleet.models.values():
        model.sends_early = way == "early"
    prepare(desk)
    with site(desk) as client:
        found = [answers(client.port, [request(body, path)] * 3, 3) for body in bodies()]
    monkeypatch.undo()
    assert any(taken) == (way in ("short", "early") and desk.started)
    return found


def full(desk) -> None:
    desk.fleet.models["m"].error = Overloaded("the queue is full", 2.0)


def lost(desk) -> None:
    desk.fleet.models["m"].error = DeviceError("the device is gone", "run")


def starting(desk) -> None:
    desk.started = False


@pytest.mark.parametrize("prepare", [lambda desk: None, full, lost, starting], ids=["good", "full", "lost", "starting"])
def test_every_way_answers_alike(monkeypatch, prepare):
    ways = ("short", "long", "coroutine", "early")
    short, long, coroutine, early = (said(monkeypatch, way, prepare) for way in ways)
    assert short == long == coroutine == early
    assert all(first == second == third for first, second, third in short)


@pytest.mark.parametrize(
    "path", ["/v1/embeddings?model=other", "/v1/embeddings?timeout=0.5", "/v1/embeddings?timeout=x"]
)
def test_both_ways_obey_the_query_alike(monkeypatch, path):
    assert said(monkeypatch, "short", path=path) == said(monkeypatch, "long", path=path)


def test_however_the_bytes_are_cut_the_answers_are_those_of_one_request_at_a_time():
    draw = random.Random(5)
    with site(desk_of(*models())) as client:
        alone = {body: answers(client.port, [request(body)], 1)[0] for body in bodies()}
        for _ in range(20):
            chosen = draw.choices(bodies(), k=draw.randrange(1, 9))
            stream = b"".join(map(request, chosen))
            cuts = sorted(draw.sample(range(1, len(stream)), draw.randrange(min(6, len(stream) - 1))))
            packets = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
            assert answers(client.port, packets, len(chosen)) == [alone[body] for body in chosen]

"""Requests that repeat a head: however the bytes are cut into packets, the answers are those of the slow way."""

from __future__ import annotations

import asyncio
import json
import random
import sys

import pytest

from anynpu.apps.web import heads
from anynpu.apps.web.app import App, Policy, Route
from anynpu.apps.web.connections import Site
from anynpu.apps.web.limits import Limits
from anynpu.apps.web.message import Head, HttpAnswer, HttpRequest, json_answer
from anynpu.apps.web.protocol import Connection
from anynpu.apps.web.turn import Turn

LIMITS = Limits(body_bytes=1000)


async def echo(request: HttpRequest) -> HttpAnswer:
    return json_answer([request.method, request.path, request.json(), request.query(), request.parameters])


async def late(request: HttpRequest) -> HttpAnswer:
    await asyncio.sleep(0)
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, "late")
    return json_answer([await future, request.json()])


ROUTES = [Route("POST", "/echo", echo), Route("POST", "/late", late), Route("POST", "/of/{name}", echo)]


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written, self.closed, self.reading = b"", False, True

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return 1  # so that everything comes here

    def get_extra_info(self, name: str) -> object:
        return sys.__stdout__ if name == "socket" else ("127.0.0.1", 1)


def post(path: str, body: str, *headers: str) -> bytes:
    head = "".join(f"{header}\r\n" for header in ("host: a", "content-type: application/json", *headers))
    return f"POST {path} HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n{body}".encode()


KINDS = (
    post("/echo?a=1", "[1]"),
    post("/echo?a=1", "[2]"),
    post("/echo?a=1", "[333]"),
    post("/of/one", "{}"),
    post("/late", "[4]"),
    post("/late", "[5]"),
    post("/echo", "[not JSON"),
    post("/nowhere", "[]"),
    post("/echo", "[1]", "x-request-id: mine"),
    b"GET /echo HTTP/1.1\r\nhost: a\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[6]\r\n0\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n[7]",
    post("/echo", "[" + "1," * 400 + "1]"),
)


def answers(packets: list[bytes], policy: Policy | None = None) -> list[tuple[int, bytes]]:
    """What a connection says to packets: status and body of every answer."""

    async def main() -> bytes:
        site = Site(App(ROUTES, LIMITS, policy), asyncio.get_running_loop())
        connection, transport = Connection(site), Transport()
        connection.connection_made(transport)
        for packet in packets:
            while not (transport.reading or transport.closed):
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(connection.data_received, packet)
            await asyncio.sleep(0)
        while (connection.turn is not None or connection.waiting) and not transport.closed:
            await asyncio.sleep(0)
        return transport.written

    left, found = asyncio.run(main()), []
    while left:
        head, _, left = left.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
        if status != 100:
            found.append((status, left[:length].partition(b'"request_id"')[0]))
        left = left[length:]
    return found


def cut(requests: list[bytes], draw: random.Random) -> list[bytes]:
    """The bytes of requests in packets that end anywhere, most of them where a head or a body begins or just after."""
    stream, edges, start = b"".join(requests), [], 0
    for request in requests:
        edges += [start, start + request.index(b"\r\n\r\n") + 4]
        start += len(request)
    near = {edge + by for edge in draw.sample(edges, len(edges) // 2) for by in draw.sample((-1, 0, 0, 1, 2), 2)}
    anywhere = draw.sample(range(1, len(stream)), draw.randrange(4))
    places = sorted({place for place in (*near, *anywhere) if 0 < place < len(stream)})
    return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)], strict=True)]


def test_any_packets_give_the_answers_of_the_parser(monkeypatch):
    draw = random.Random(13)
    streams = [[draw.choice(KINDS) for _ in range(draw.randrange(2, 12))] for _ in range(60)]
    streams += [[kind] * 3 for kind in KINDS]
    streams += [[first, second, first] for first in KINDS[:5] for second in KINDS[:5]]
    known = list(KINDS[:6])
    quick = [answers([*known, *cut(requests, draw)])[len(known) :] for requests in streams]
    monkeypatch.setattr(heads, "MOST_BYTES", 0)
    slow = [[answer for request in requests for answer in answers([request])] for requests in streams]
    assert quick == slow


def test_a_known_head_inside_of_another_is_part_of_that_one():
    """What follows the beginning of a header in the next packet is its value, whatever it looks like."""
    known = KINDS[0]
    found = answers([known, b"POST /of/two HTTP/1.1\r\nx-odd: ", known])
    assert [json.loads(body)[1] for _, body in found] == ["/echo", "/of/two"]


def test_a_head_is_parsed_once(monkeypatch):
    known = []
    monkeypatch.setattr(heads.Heads, "keep", lambda self, data, request: known.append(request))
    answers([KINDS[0]] * 2)
    assert len(known) == 2
    monkeypatch.undo()
    keep = heads.Heads.keep
    monkeypatch.setattr(heads.Heads, "keep", lambda *given: (known.append(given), keep(*given)))
    assert answers([KINDS[0]] * 3)[0][0] == 200 and len(known) == 3


def test_there_are_never_more_heads_than_allowed():
    table = heads.Heads()
    for number in range(3 * heads.MOST_HEADS):
        path = f"/{number}"
        request = HttpRequest(Head("POST", path.encode(), b"", {}), None, b"[]")
        table.keep(post(path, "[]"), request)
        assert table.find(post(path, "[]"), None) is not None and len(table._known) <= heads.MOST_HEADS


@pytest.mark.parametrize("token", ["right", "wrong"])
def test_a_token_is_compared_every_time(token):
    request = post("/echo", "[1]", f"authorization: Bearer {token}")
    found = answers([request] * 3, Policy.of(["right"]))
    assert [status for status, _ in found] == [200 if token == "right" else 401] * 3


def test_a_thousand_requests_in_one_packet_are_answered_in_order():
    stream = b"".join(post("/echo", f"[{n}]") for n in range(1000))
    found = answers([stream])
    assert [json.loads(body)[2] for _, body in found] == [[n] for n in range(1000)]


def in_a_turn(function, then=lambda turn: None):
    """Returns what a coroutine function says in a turn, begun by the event loop as a connection does it."""
    seen = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        turn = Turn(seen.append, loop)
        loop.call_soon(turn.begin, function())
        loop.call_soon(then, turn)
        while not seen:
            await asyncio.sleep(0)
        assert turn.done()
        assert not turn.cancel()

    asyncio.run(main())
    return seen[0]


def test_a_turn_that_is_cancelled_sees_it():
    async def waits() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "cancelled"
        return "answered"

    assert in_a_turn(waits, Turn.cancel) == "cancelled"


def test_a_turn_has_the_time_limits_of_a_task():
    async def waits() -> list[str]:
        said = []
        try:
            async with asyncio.timeout(0.001):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            said.append("late")
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
            said.append("in time")
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        except TimeoutError:
            said.append("late again")
        await asyncio.wait_for(asyncio.sleep(0), 60)
        assert asyncio.current_task().cancelling() == 0
        return said

    assert in_a_turn(waits) == ["late", "in time", "late again"]


def test_a_turn_may_hold_a_group_of_tasks():
    async def number(n: int) -> int:
        await asyncio.sleep(0)
        if n > 2:
            raise ValueError(n)
        return n

    async def sums() -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(number(n)) for n in (1, 2)]
        return sum(task.result() for task in tasks)

    async def fails() -> list[str]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(number(3))
                await asyncio.get_running_loop().create_future()
        except ExceptionGroup as errors:
            return [str(error) for error in errors.exceptions]
        return []

    assert in_a_turn(sums) == 3
    assert in_a_turn(fails) == ["3"]

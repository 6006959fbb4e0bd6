"""The owner of a device sends an answer off itself while nothing else waits; the event loop does the rest."""

from __future__ import annotations

import asyncio
import os
import threading

import numpy as np
import pytest
from engine_models import occupied, running, settings_of, sync, until
from npu_model import expected, npu_model, stored
from test_http_repeats import Transport, post

from anynpu.apps.serve.base import Answer, Expired, Options, Request
from anynpu.apps.serve.desk import Asked
from anynpu.apps.serve.served import Order, Waiting
from anynpu.apps.web.app import App, Route
from anynpu.apps.web.connections import Site
from anynpu.apps.web.message import HttpAnswer, HttpRequest, json_answer
from anynpu.apps.web.protocol import Connection
from anynpu.testing import noe

STORED = Options(stored=True)


@pytest.fixture
def fake(tmp_path_factory):
    with noe.switches(noe.build_fake(tmp_path_factory.mktemp("noe")), DELAY_US=2000):
        yield


class Asking:
    """Asks one model, and notes what comes in which thread."""

    def __init__(self, model) -> None:
        self.model, self.early, self.then = model, {}, {}

    def ask(self, number: int, **given) -> Order:
        request = Request(({"x": stored(number)},), STORED, **given)
        return self.model.ask(
            request,
            lambda outcome: self.then.update({number: (threading.current_thread(), outcome)}),
            lambda answer: self.early.update({number: (threading.current_thread(), answer)}),
        )


def asking(tmp_path, do) -> Asking:
    async def main() -> Asking:
        async with running(settings_of(npu_model(tmp_path / "npu"))) as fleet:
            asked = Asking(fleet.models["m"])
            await do(asked)
            return asked

    return sync(main())


def test_a_single_answer_leaves_in_the_thread_of_the_device_and_is_counted_once(tmp_path, fake):
    async def do(asked):
        for number in range(20):
            asked.ask(number)
            await until(lambda number=number: number in asked.then)
        assert asked.model.health().answered == 20 and asked.model.health().queue == 0

    asked = asking(tmp_path, do)
    main = threading.main_thread()
    # One whose device has something else to do, such as a sweep, may be left to the loop.
    assert len(asked.early) > 10
    for number, (thread, answer) in asked.early.items():
        assert thread is not main and asked.then[number] == (main, answer)
    for number, (_, answer) in asked.then.items():
        assert np.array_equal(answer.tensors[0]["y"], expected(number))


def test_while_others_wait_the_loop_sends_the_answers(tmp_path, fake):
    async def do(asked):
        with occupied(asked.model):
            for number in range(5):
                asked.ask(number)
        await until(lambda: len(asked.then) == 5)

    asked = asking(tmp_path, do)
    assert set(asked.early) <= {4}
    assert all(isinstance(outcome, Answer) for _, outcome in asked.then.values())


def test_an_early_answer_that_fails_is_sent_by_the_loop(tmp_path, fake, caplog):
    outcomes = []

    async def do(asked):
        def fails(answer: Answer) -> None:
            raise ZeroDivisionError

        while "ZeroDivisionError" not in caplog.text:
            outcomes.clear()
            asked.model.ask(Request(({"x": stored(1)},), STORED), outcomes.append, fails)
            await until(lambda: outcomes)
        assert asked.model.health().queue == 0

    asking(tmp_path, do)
    assert np.array_equal(outcomes[0].tensors[0]["y"], expected(1))


def test_what_was_given_up_is_not_sent(tmp_path, fake):
    async def do(asked):
        with occupied(asked.model):
            asked.ask(1).cancel()
            asked.ask(2, gone=lambda: True)
        await until(lambda: len(asked.then) == 2)

    asked = asking(tmp_path, do)
    assert asked.early == {}
    assert isinstance(asked.then[1][1], asyncio.CancelledError) and isinstance(asked.then[2][1], Expired)


def test_one_of_many_threads_takes_an_order():
    orders, taken, gate = (
        [Order(None, None, [Waiting(print, None)], None, 1) for _ in range(5000)],
        [],
        threading.Barrier(4),
    )

    def take() -> None:
        gate.wait()
        taken.extend(number for number, order in enumerate(orders) if order.take())

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(5000)) and all(order.done for order in orders)


class Pipe(Transport):
    """A transport over a pipe whose other end is read."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor

    def fileno(self) -> int:
        return self.descriptor

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> object:
        return self if name == "socket" else ("127.0.0.1", 1)


class Kept:
    """An answer that comes when the test says so."""

    def begin(self, then) -> None:
        self.then = then

    def cancel(self) -> None: ...


@pytest.mark.parametrize("lost", [False, True])
def test_an_answer_is_written_once_and_never_to_a_connection_that_is_lost(lost):
    """The number of a closed descriptor is soon that of another client's connection."""
    answer, later = json_answer(["x" * 100]), Kept()
    read, write = os.pipe()
    os.set_blocking(read, False)

    async def main() -> None:
        site = Site(App([Route("POST", "/a", lambda request: later)]), asyncio.get_running_loop())
        connection, transport = Connection(site), Pipe(write)
        connection.connection_made(transport)
        connection.data_received(post("/a", "{}"))
        if lost:
            transport.closed = True
            connection.connection_lost(None)
        owner = threading.Thread(target=connection.send_early, args=(answer, lambda: None))
        owner.start()
        owner.join()
        later.then(answer)

    asyncio.run(main())
    try:
        written = os.read(read, 65536)
    except BlockingIOError:
        written = b""
    os.close(read)
    os.close(write)
    assert written.count(answer.body) == written.count(b"HTTP/1.1 200") == (0 if lost else 1)


def test_what_the_kernel_does_not_take_at_once_is_written_by_the_loop():
    answer, later = HttpAnswer(b"y" * 500_000), Kept()
    read, write = os.pipe()
    os.set_blocking(write, False)

    async def main() -> bytes:
        site = Site(App([Route("POST", "/a", lambda request: later)]), asyncio.get_running_loop())
        connection, transport = Connection(site), Pipe(write)
        connection.connection_made(transport)
        connection.data_received(post("/a", "{}"))
        connection.send_early(answer, lambda: None)
        later.then(answer)
        return transport.written

    rest = asyncio.run(main())
    written = os.read(read, 1 << 20) + bytes(rest)
    os.close(read)
    os.close(write)
    assert rest and written.partition(b"\r\n\r\n")[2] == answer.body


def test_a_client_that_asks_again_before_the_loop_has_the_news_is_served_at_once():
    first, second = json_answer(["first"]), json_answer(["second"])
    laters: list[Kept] = []
    read, write = os.pipe()

    def later(request: HttpRequest) -> Kept:
        laters.append(Kept())
        return laters[-1]

    async def main() -> None:
        site = Site(App([Route("POST", "/a", later)]), asyncio.get_running_loop())
        connection = Connection(site)
        connection.connection_made(Pipe(write))
        connection.data_received(post("/a", "{}"))
        connection.send_early(first, lambda: laters[0].then(first))
        connection.data_received(post("/a", "{}"))
        assert len(laters) == 2  # not kept waiting for a turn of the loop
        laters[1].then(second)

    asyncio.run(main())
    written = os.read(read, 65536)
    os.close(read)
    os.close(write)
    assert written.count(b"HTTP/1.1 200") == 2
    assert 0 < written.index(first.body) < written.index(second.body)


class Noted:
    """A model and a connection that only keep what they are given."""

    def ask(self, request, then, early):
        self.then, self.early = then, early

    def send_early(self, answer, conclude):
        self.sent, self.conclude = answer, conclude


def test_a_reply_that_was_sent_early_is_handed_over_once():
    noted, replies = Noted(), []
    answer = Answer("m", "0" * 64, "none", np.zeros((1, 4), np.float32))
    asked = Asked(noted, Request(("text",)), lambda answer: json_answer(["y"]), noted)
    asked.begin(replies.append)
    noted.early(answer)
    assert replies == []
    noted.conclude()
    noted.then(answer)
    assert replies == [noted.sent]

"""A server in a thread of the test, reached over a real socket."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from anynpu.apps.web.app import App
from anynpu.apps.web.notify import Notifier
from anynpu.apps.web.server import Life, Running, bind


class Reply:
    """What came back, read whole."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status, self.body = answer.status, answer.read()
        self.headers = {name.lower(): value for name, value in answer.getheaders()}

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Calls one server; every call on a connection of its own unless `kept` is given."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            named.setdefault("content-type", "application/json")
        try:
            connection.request(method, path, body, named)
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def raw(self, data: bytes, seconds: float = 120) -> bytes:
        """Sends bytes and returns all that comes until the server closes the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(data)
            return until_closed(connection)


def until(condition: Callable[[], Any], limit_s: float = 120.0) -> Any:
    """Waits for something to be true, and returns it; on a busy machine that may take a while."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, condition
        time.sleep(0.01)
    return found


def until_closed(connection: socket.socket) -> bytes:
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@contextmanager
def running(app: App, life: Life | None = None) -> Iterator[Client]:
    """Gives a client of a server that runs in a thread until the block ends."""
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    ready = threading.Event()
    box: dict[str, Any] = {}
    given = life or Life()

    def told() -> None:
        given.ready()
        ready.set()

    def serve() -> None:
        async def whole() -> None:
            box["loop"] = asyncio.get_running_loop()
            whole_life = Life(given.start, told, given.reload, given.stopping, given.close)
            box["server"] = Running(app, [listener], whole_life, Notifier(""))
            await box["server"].serve()

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(whole())
        except BaseException as error:
            box["error"] = error
        finally:
            ready.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(120)
    if "error" in box:
        raise box["error"]
    try:
        yield Client(port)
    finally:
        box["loop"].call_soon_threadsafe(box["server"].stop, signal.SIGTERM)
        thread.join(120)
    assert not thread.is_alive()
    if "error" in box:
        raise box["error"]

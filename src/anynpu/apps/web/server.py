"""Sockets, signals and the life of a server: bind, start, ready, reload, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import signal
import socket
import stat
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anynpu.apps.web.app import App
from anynpu.apps.web.limits import Limits
from anynpu.apps.web.notify import Notifier
from anynpu.errors import ConfigError

if TYPE_CHECKING:
    from anynpu.apps.web.connections import Site

BACKLOG = 2048
DRAIN_STEP_S, GIVE_UP_S = 0.01, 2.0
SPARE_FILES = 256
"""Descriptors for everything that is not a connection."""
_logger = logging.getLogger("anynpu.web")


async def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Life:
    """What the application does at the turns of the server's life; start may raise, and then nothing is served."""

    start: Callable[[], Awaitable[None]] = _nothing
    ready: Callable[[], None] = lambda: None
    reload: Callable[[], Awaitable[None]] | None = None
    """On SIGHUP."""
    stopping: Callable[[], None] = lambda: None
    """The listener is about to close: `/ready` should say so."""
    close: Callable[[], Awaitable[None]] = _nothing
    """After the last answer."""


def bind(host: str, port: int) -> socket.socket:
    """Returns a TCP socket bound to an address; it takes connections once the server runs."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"--host {host}: no such address ({reason})", "127.0.0.1 is this computer only") from None
    family, _, _, _, address = addresses[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        hint = "choose another --port; 0 takes a free one" if error.errno != 13 else "choose a --port above 1023"
        raise ConfigError(f"{host} port {port}: {error.strerror}", hint) from None
    return listener


def bind_unix(path: Path, mode: int = 0o660) -> socket.socket:
    """Returns a Unix socket at a path; a socket there that nobody answers on is replaced, anything else is not."""
    if path.exists() or path.is_symlink():
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise ConfigError(f"--socket {path}: something that is not a socket is there", "choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise ConfigError(f"--socket {path}: another server answers there", "stop it, or choose another path")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o777 & ~mode)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigError(f"--socket {path}: {error.strerror or error}", "choose a path you may write to") from None
    finally:
        os.umask(old)
    return listener


def url_of(listener: socket.socket) -> str:
    """Returns where clients reach a socket: http://127.0.0.1:8000, or unix:/path."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Says whether only programs on this computer reach a socket."""
    return listener.family == socket.AF_UNIX or ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def fit_files(limits: Limits) -> Limits:
    """Returns the limits with no more connections than this process may have files, after raising that bound."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < wanted:
        return replace(limits, connections=max(16, soft - SPARE_FILES))
    return limits


def run(app: App, listeners: list[socket.socket], life: Life, notifier: Notifier | None = None) -> int | None:
    """Serves until a signal ends it, and returns that signal; what start raises is raised here."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Running(app, listeners, life, notifier or Notifier.from_environment()).serve())


class Running:
    """One server from its start to its end."""

    def __init__(self, app: App, listeners: list[socket.socket], life: Life, notifier: Notifier) -> None:
        self.app, self.listeners, self.life, self.notifier = app, listeners, life, notifier
        self.started = self.stopping = False
        self.ended_by: int | None = None
        self.reloads: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._site: Site | None = None

    async def serve(self) -> int | None:
        from anynpu.apps.web.connections import Site, sweep

        loop = asyncio.get_running_loop()
        site = self._site = Site(self.app, loop)
        background = [loop.create_task(sweep(site))]
        with self._signals(loop):
            servers: list[asyncio.AbstractServer] = []
            for listener in self.listeners:
                create = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
                servers.append(await create(site.connection, sock=listener, backlog=BACKLOG))
            self.started = True
            ended, starting = loop.create_task(self._ended.wait()), asyncio.ensure_future(self.life.start())
            try:
                await asyncio.wait({ended, starting}, return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    await starting
                    if not self.stopping:
                        self.life.ready()
                        self.notifier.ready("serving")
                        background.append(loop.create_task(self.notifier.keep_alive()))
                await ended
            finally:
                self.stopping = True
                for server in servers:
                    server.close()
                # Waits until the last answer is out; what takes too long is answered with 503
                loop = asyncio.get_running_loop()
                site.drain()
                for limit_s, then in ((self.app.limits.grace_s, site.cancel), (GIVE_UP_S, site.abort)):
                    end = loop.time() + limit_s
                    while site.connections and loop.time() < end:
                        await asyncio.sleep(DRAIN_STEP_S)
                    then()
                await asyncio.sleep(0)
                for task in (ended, starting, *background):
                    task.cancel()
                await asyncio.gather(ended, starting, *self.reloads, return_exceptions=True)
                await self.life.close()
        return self.ended_by

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # signals reach only the main thread
            yield
            return
        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, self.stop, number)
        if self.life.reload is not None:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            yield
        finally:
            for number in (*handled, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def stop(self, number: int) -> None:
        """The first signal drains; the second ends what is still in flight."""
        if self.stopping:
            if self._site is not None:
                self._site.cancel()
            return
        self.stopping, self.ended_by = True, number
        self.notifier.stopping()
        self.life.stopping()
        self._ended.set()

    def _reload(self) -> None:
        if self.life.reload is None or self.stopping:
            return
        reload = self.life.reload

        async def reloaded() -> None:
            self.notifier.reloading()
            try:
                await reload()
            except Exception:
                _logger.exception("the reload failed")
            self.notifier.ready("serving")

        task = asyncio.get_running_loop().create_task(reloaded())
        self.reloads.add(task)
        task.add_done_callback(self.reloads.discard)

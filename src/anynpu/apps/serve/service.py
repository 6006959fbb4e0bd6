"""A server from its settings: sockets, models, application, log; and its life from start to drain."""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from anynpu.apps.serve.base import Fleet, FleetSettings, ModelSettings, Observer
from anynpu.apps.serve.desk import Desk, DeskSettings
from anynpu.apps.serve.metrics import Metrics
from anynpu.apps.serve.site import build_app
from anynpu.apps.web.accesslog import AccessLog, JsonLines
from anynpu.apps.web.app import Policy
from anynpu.apps.web.limits import Limits
from anynpu.apps.web.server import Life, bind, bind_unix, fit_files, is_loopback, run
from anynpu.errors import AnyNpuError
from anynpu.memory import give_back

STDERR = 2
OpenFleet = Callable[[tuple[ModelSettings, ...], FleetSettings, Observer], Fleet]
_logger = logging.getLogger("anynpu.serve")


@dataclass(frozen=True)
class ServiceSettings:
    """Everything that one server is started with."""

    models: tuple[ModelSettings, ...]
    fleet: FleetSettings = field(default_factory=FleetSettings)
    desk: DeskSettings = field(default_factory=DeskSettings)
    limits: Limits = field(default_factory=Limits)
    tokens: tuple[str, ...] = field(default=(), repr=False)
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """More names that clients may call this server by, where it is for this computer only and has no token."""
    host: str = "127.0.0.1"
    port: int = 8000
    socket: Path | None = None
    access_log: Path | None = None
    """A file; standard error by default."""
    log_requests: bool = True


def listen(settings: ServiceSettings) -> socket.socket:
    """Returns the socket, bound before any model is loaded: a port in use is known at once."""
    return bind_unix(settings.socket) if settings.socket is not None else bind(settings.host, settings.port)


def serve(
    settings: ServiceSettings, listener: socket.socket, open_fleet: OpenFleet, ready: Callable[[Desk], None]
) -> int | None:
    """Serves until a signal ends it, and returns that signal."""
    log = AccessLog.at(settings.access_log) if settings.access_log else AccessLog(STDERR)
    handler = JsonLines(log)
    loggers = [logging.getLogger(name) for name in ("anynpu", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    metrics = Metrics()
    desk = Desk(open_fleet(settings.models, settings.fleet, metrics), settings.desk, metrics)
    guarded = listener.family != socket.AF_UNIX and is_loopback(listener) and not settings.tokens
    policy = Policy.of(settings.tokens, settings.origins, settings.hosts if guarded else None)
    app = build_app(desk, fit_files(settings.limits), policy, log if settings.log_requests else None)
    try:
        return run(app, [listener], _life(desk, log, ready))
    finally:
        log.flush()
        for logger in loggers:
            logger.removeHandler(handler)
        if settings.socket is not None:
            settings.socket.unlink(missing_ok=True)


def _life(desk: Desk, log: AccessLog, ready: Callable[[Desk], None]) -> Life:
    async def start() -> None:
        await desk.fleet.start()
        gc.collect()
        gc.freeze()  # what is there now stays: looking through all of it again would hold up requests
        give_back()
        desk.started = True

    async def reload() -> None:
        log.reopen()
        for name in desk.fleet.models:
            try:
                info = await desk.fleet.reload(name)
                _logger.warning("reloaded %s: version %s", name, info.version)
            except AnyNpuError as error:
                _logger.error("%s was not reloaded, the old version goes on: %s", name, error.message)

    def stopping() -> None:
        desk.draining = True

    async def close() -> None:
        await desk.fleet.drain()
        desk.fleet.close()

    return Life(start, lambda: ready(desk), reload, stopping, close)

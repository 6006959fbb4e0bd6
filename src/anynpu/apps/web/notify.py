"""What systemd hears: ready, reloading, stopping, and that the event loop still turns (sd_notify's protocol)."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress


class Notifier:
    """Datagrams to the socket that NOTIFY_SOCKET names; without it nothing is sent."""

    def __init__(self, address: str, watchdog_s: float | None = None) -> None:
        self.address = address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environment(cls) -> Notifier:
        """Returns the notifier of this process; a watchdog meant for another process is not ours."""
        pid = os.environ.get("WATCHDOG_PID", "")
        usec = os.environ.get("WATCHDOG_USEC", "")
        ours = usec.isdigit() and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(os.environ.get("NOTIFY_SOCKET", ""), int(usec) / 1e6 if ours else None)

    def say(self, *lines: str) -> None:
        """Sends variables such as READY=1; nobody listening is not an error."""
        if self.address[:1] not in ("/", "@"):
            return
        name = "\0" + self.address[1:] if self.address[0] == "@" else self.address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.connect(name)
            out.sendall("\n".join(lines).encode())

    def ready(self, status: str) -> None:
        self.say("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def reloading(self) -> None:
        self.say("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading")

    def stopping(self) -> None:
        self.say("STOPPING=1", "STATUS=answering the last requests")

    async def keep_alive(self) -> None:
        """Says that the event loop turns, as often as systemd asks for it."""
        while self.watchdog_s:
            self.say("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 3)

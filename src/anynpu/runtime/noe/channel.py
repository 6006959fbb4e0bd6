"""Packets between our process and the one that holds the library."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

MOST_PACKET = 1 << 17
WINDOW_NS = 50_000
MOST_SKIPPED = 1024
clock = time.perf_counter_ns


class Channel:
    """A socket of packets. `packet` holds what was received last.

    To sleep and be woken on another core takes tens of microseconds, several times what the packet itself does. So the
    receiver asks again and again for a moment before it sleeps; where that did not pay (a long inference, or both sides
    on one core) it sleeps at once the next times, up to a thousand.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket, self.packet = end, bytearray(MOST_PACKET)
        self._limit_s = 0.0
        self._skipped, self._skip = 1, 0

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends a packet, and after it, in another one, descriptors."""
        self.socket.send(packet)
        if descriptors:
            socket.send_fds(self.socket, [b"descriptors"], descriptors)

    def limit(self, seconds: float) -> None:
        """Sets how long `receive` may take before it raises BlockingIOError; the kernel keeps the time."""
        if seconds != self._limit_s:
            whole = int(seconds)
            value = struct.pack("@ll", whole, int((seconds - whole) * 1e6))
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._limit_s = seconds

    def receive(self) -> int:
        """Waits for a packet and returns its size; 0 says that the other side has gone."""
        receive, packet = self.socket.recv_into, self.packet
        if self._skip:
            self._skip -= 1
            return receive(packet)
        until = clock() + WINDOW_NS
        while clock() < until:
            try:
                size = receive(packet, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            self._skipped = 1
            return size
        self._skipped = self._skip = min(2 * self._skipped, MOST_SKIPPED)
        return receive(packet)

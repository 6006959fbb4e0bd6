"""A server that does nothing: every request gets the same answer of SIZE bytes. It runs as a program of its own.

What the load generator measures against it is the generator's own share of a latency, with the kernel's.
"""

from __future__ import annotations

import re
import selectors
import socket
import sys

LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)


def requests_in(data: bytearray) -> int:
    """Takes the whole requests out of what a connection has sent and returns their number."""
    count = 0
    while (end := data.find(b"\r\n\r\n")) >= 0:
        length = LENGTH.search(data, 0, end + 2)
        whole = end + 4 + (int(length[1]) if length else 0)
        if len(data) < whole:
            break
        del data[:whole]
        count += 1
    return count


def serve(listener: socket.socket, size: int) -> None:
    """Answers until the standard input is closed."""
    answer = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode() + b"0" * size
    )
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(sys.stdin, selectors.EVENT_READ)
    kept: dict[socket.socket, bytearray] = {}
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is listener:
                peer = listener.accept()[0]
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                kept[peer] = bytearray()
                waiting.register(peer, selectors.EVENT_READ)
                continue
            peer = key.fileobj  # type: ignore[assignment]
            try:
                data = peer.recv(1 << 20)
                kept[peer] += data
                for _ in range(requests_in(kept[peer])):
                    peer.sendall(answer)
            except OSError:
                data = b""
            if not data:
                waiting.unregister(peer)
                del kept[peer]
                peer.close()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))

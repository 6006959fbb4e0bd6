"""The process that holds the vendor's library: a crash in there is a status, and what it prints is not ours.

    python -m anynpu.runtime.noe.worker DESCRIPTOR

It serves one other process through a socket of packets. Tensors and programs lie in memory that both map. A packet that
begins with "r" is an inference (handle, timeout) and is answered by three times; all others are JSON objects.

When that process ends, however it does, or this one is asked to (SIGTERM, SIGHUP, SIGINT), the device is given back: by
the serving thread after the inference that runs, or, if that takes too long, by another thread in its midst.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anynpu.errors import AnyNpuError
from anynpu.runtime.noe.abi import Qos
from anynpu.runtime.noe.channel import Channel
from anynpu.runtime.noe.device import Device, Graph, Memory
from anynpu.runtime.noe.library import Library
from anynpu.schema import JsonObject

RUN = struct.Struct("<cIi")
TIMES = struct.Struct("<qqq")
HOT = ord("r")
FINISH_S, LEAVE_S = 2.0, 5.0
"""How long an inference may go on once nobody waits for it, and when this process ends at the latest."""


@dataclass
class Loaded:
    """A model with the memory it reads and writes."""

    graph: Graph
    program: mmap.mmap
    tensors: mmap.mmap
    inputs: tuple[Memory, ...]
    outputs: tuple[Memory, ...]


class Server:
    """Answers one request after the other, in the thread that alone touches the library."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)
        self._device: Device | None = None
        self._loaded: dict[int, Loaded] = {}
        self._next = 0
        self._finished = threading.Event()

    def serve(self) -> None:
        """Answers until the other side goes away, then gives the device back."""
        packet, receive, send = self._channel.packet, self._channel.receive, self._channel.send
        try:
            while size := receive():
                if packet[0] != HOT:
                    send(self._answer(bytes(packet[:size])))
                    continue
                _, handle, timeout_ms = RUN.unpack_from(packet)
                loaded = self._loaded[handle]
                try:
                    answer = TIMES.pack(*loaded.graph.run(loaded.inputs, loaded.outputs, timeout_ms))
                except AnyNpuError as error:
                    answer = _told(error)
                send(answer)
        except OSError:
            pass  # the other side went away while it was being answered
        finally:
            self._finished.set()
            _fall_silent()
            for loaded in self._loaded.values():
                loaded.graph.close()
            if self._device is not None:
                self._device.close()

    def leave(self) -> None:
        """Ends `serve` from another thread. An inference that does not finish loses its context while it runs."""
        with suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RD)
        if not self._finished.wait(FINISH_S):
            _fall_silent()
            if self._device is not None:
                self._device.close()
            os.kill(os.getpid(), signal.SIGKILL)

    def _answer(self, packet: bytes) -> bytes:
        request = json.loads(packet)
        asked: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "info": lambda: asdict(self._opened().info()),
            "load": self._load,
            "unload": self._unload,
            "shapes": lambda handle: self._loaded[handle].graph.dynamic_shapes(),
        }
        try:
            return json.dumps({"result": asked[request.pop("ask")](**request)}).encode()
        except AnyNpuError as error:
            return _told(error)

    def _opened(self) -> Device:
        assert self._device is not None
        return self._device

    def _open(self, library: str) -> None:
        self._device = Device(Library(Path(library), owns_output=True))

    def _load(self, inputs: list[list[int]], outputs: list[list[int]], qos: int) -> JsonObject:
        """Loads the program in the first descriptor that follows; tensors lie in the second, each at its offset."""
        _, descriptors, _, _ = socket.recv_fds(self._channel.socket, 16, 2)
        program, tensors = (mmap.mmap(fd, os.fstat(fd).st_size) for fd in descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        graph = Graph(self._opened(), Memory(_address(program), len(program)), Qos(qos))
        base = _address(tensors)
        places = [tuple(Memory(base + offset, size) for offset, size in rows) for rows in (inputs, outputs)]
        self._next += 1
        self._loaded[self._next] = Loaded(graph, program, tensors, places[0], places[1])
        return {"handle": self._next, "inputs": graph.inputs, "outputs": graph.outputs}

    def _unload(self, handle: int) -> None:
        loaded = self._loaded.pop(handle)  # held by name: its memory must outlive the graph
        loaded.graph.close()


def _fall_silent() -> None:
    """Sends what the library still prints to nowhere: whoever read it may have gone, and a full pipe would stop us."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _told(error: AnyNpuError) -> bytes:
    """Returns an error as the other side builds it again."""
    state = {name: value for name, value in error.__dict__.items() if isinstance(value, str | int | None)}
    return json.dumps({"error": {"kind": type(error).__name__, **state}}).encode()


def _watch(server: Server, woken: int) -> None:
    """Waits until the process that is served has gone or a signal comes, and sees to it that this one ends too."""
    waiting = select.poll()
    for descriptor in (0, woken):
        waiting.register(descriptor, select.POLLIN)
    with suppress(AttributeError, OSError):  # a process that the parent forked may hold the pipe to us open
        waiting.register(os.pidfd_open(os.getppid()), select.POLLIN)
    while not any(descriptor != 0 or not os.read(0, 64) for descriptor, _ in waiting.poll()):
        pass
    last_resort = threading.Timer(LEAVE_S, os.kill, (os.getpid(), signal.SIGKILL))  # the library may hang
    last_resort.daemon = True
    last_resort.start()
    server.leave()


def main(descriptor: str) -> None:
    """Serves the process at the other end of an inherited socket."""
    server = Server(socket.socket(fileno=int(descriptor)))
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)  # written to at once, even while the library holds the main thread
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    threading.Thread(target=_watch, args=(server, woken), daemon=True).start()
    server.serve()


if __name__ == "__main__":
    main(sys.argv[1])

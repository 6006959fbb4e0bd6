"""The NPU in a process of its own: what session.py asks, sent to worker.py.

A crash of the library ends that process; here it is a DeviceError, and the next request starts another one.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import re
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from anynpu import errors, tool
from anynpu.errors import AnyNpuError, DeviceError
from anynpu.runtime.noe.channel import Channel
from anynpu.runtime.noe.device import Times
from anynpu.runtime.noe.library import sink
from anynpu.runtime.noe.shared import Shared
from anynpu.runtime.noe.status import TIMEOUT
from anynpu.runtime.noe.worker import LEAVE_S, RUN, TIMES

ASK_S = 120.0
"""Loading a large model takes seconds; nothing that is asked takes longer than this."""
GRACE_S = 2.0
"""What the library may take beyond the timeout that it was given."""
INTERRUPTED_S = 0.5
INFERENCE = "an inference"
KEPT_LINES, MOST_WORDS = 40, 200
FRAME = re.compile(r"\+0x[0-9a-f]+\)?|\(\) ?\[0x|^Stack backtrace")
"""A line of a backtrace, as the library prints about thirty of when a call fails."""


class Printed:
    """What the other process prints: its last lines are kept, all of it goes to the file that ANYNPU_NOE_LOG names."""

    def __init__(self) -> None:
        self._from, self.end = os.pipe()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader = threading.Thread(target=self._read, name="anynpu-noe-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with os.fdopen(self._from, "rb") as stream, os.fdopen(sink(), "ab") as log:
            for line in stream:
                log.write(line)
                log.flush()
                self._lines.append(line.decode("utf-8", "replace").strip())

    def last_words(self) -> str:
        """Returns the last line that is not one of a backtrace, once the other process has ended."""
        self._reader.join(0.2)
        words = [line for line in self._lines if line and not FRAME.search(line)]
        return words[-1][:MOST_WORDS] if words else ""


class Client:
    """The other process. `lock` is held from input to output of what uses the memory shared with it; the thread that
    takes it need not be the one that gives it back."""

    def __init__(self, library: Path) -> None:
        self.lock = threading.Lock()
        self.lost = self._asked = ""
        self.pid = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._printed = Printed()
        try:
            self._process = tool.attend(
                "anynpu.runtime.noe.worker",
                str(theirs.fileno()),
                descriptors=[theirs.fileno()],
                output=self._printed.end,
            )
        finally:
            theirs.close()
            os.close(self._printed.end)
        self._channel = Channel(ours)
        self._answer = self._channel.packet
        try:
            self.ask("open", library=str(library))
        except BaseException:
            self.close()
            raise

    @property
    def worker(self) -> int:
        return self._process.pid

    def ask(self, what: str, descriptors: Sequence[int] = (), **arguments: Any) -> Any:
        """Returns the answer to a request; what the library refuses raises here."""
        with self.lock:
            sent = self._send(json.dumps({"ask": what, **arguments}).encode(), what, descriptors)
            size = self._receive(sent, what, ASK_S)
            answer = json.loads(self._answer[:size])
        if "error" in answer:
            raise _error(answer["error"])
        return answer["result"]

    def begin(self, handle: int, timeout_ms: int) -> bool:
        """Has a loaded model run once, from shared memory to shared memory, and does not wait; the caller holds the
        lock until `end`, which is to be told what this returns."""
        return self._send(RUN.pack(b"r", handle, timeout_ms), INFERENCE)

    def end(self, timeout_ms: int, sent: bool) -> Times:
        """Waits for the run that was begun."""
        size = self._receive(sent, INFERENCE, timeout_ms / 1000 + GRACE_S)
        if size == TIMES.size:
            return Times._make(TIMES.unpack_from(self._answer))
        raise _error(json.loads(self._answer[:size])["error"])

    def _send(self, packet: bytes, what: str, descriptors: Sequence[int] = ()) -> bool:
        """Returns whether the other process was there to be asked; to end one that is not takes a while."""
        if self.lost:
            raise DeviceError(self.lost, what)
        if self._asked:  # interrupted before it was answered: that answer would be taken for this one's
            raise self._lose(f"{self._asked} was interrupted")
        self._asked = what
        try:
            self._channel.send(packet, descriptors)
        except OSError:
            return False
        return True

    def _receive(self, sent: bool, what: str, limit_s: float) -> int:
        """Returns the size of the answer."""
        try:
            if sent:
                self._channel.limit(limit_s)
                if size := self._channel.receive():
                    self._asked = ""
                    return size
        except BlockingIOError:
            raise self._lose(f"libnoe did not return from {what} within {limit_s:g} s", TIMEOUT) from None
        except OSError:
            pass
        except BaseException:
            self._lose(f"{what} was interrupted")
            raise
        raise self._lose(f"libnoe crashed in {what}")

    def _lose(self, why: str, code: int | None = None) -> DeviceError:
        """Ends the other process and returns the error that says why; the next one to open starts another."""
        with suppress(subprocess.TimeoutExpired):  # one that crashed has a status of its own
            self._process.wait(0.2 if code is None else 0)
        status = self._process.poll()
        if status is not None and status < 0:
            with suppress(ValueError):
                why += f" ({signal.Signals(-status).name})"
        self.lost = why
        self.close()
        last = self._printed.last_words()
        return DeviceError(
            why,
            "libnoe",
            code,
            "a defect of the vendor's library or driver; it runs in a process of its own, and nothing else is lost"
            + (f"; it last printed: {last}" if last else ""),
            "run it again; ANYNPU_NOE_LOG=FILE keeps what the library prints",
        )

    def abandon(self) -> None:
        """Ends the other process without giving anything back: its library is in a state that nobody can use."""
        if not self.lost:
            self._lose("libnoe refused a model in a way that it does not recover from")

    def close(self) -> None:
        """Lets the other process give the device back and end; one that does not is ended.

        Where we were interrupted nobody waits for it: it gives the device back and ends by itself.
        """
        self.lost = self.lost or "the NPU was closed"
        with suppress(OSError):
            self._channel.socket.close()
        if os.getpid() != self.pid:
            return
        if self._process.stdin:
            self._process.stdin.close()
        interrupted = "interrupted" in self.lost
        try:
            self._process.wait(INTERRUPTED_S if interrupted else LEAVE_S + 1)
        except subprocess.TimeoutExpired:
            if not interrupted:
                tool.end(self._process)


def _error(state: dict[str, Any]) -> AnyNpuError:
    kind = getattr(errors, state.pop("kind"))
    error: AnyNpuError = kind.__new__(kind)
    error.args = (state["message"],)
    error.__dict__.update(state)
    return error


CLIENTS = Shared(Client)
"""The processes that hold a library, one a library for all sessions."""
atexit.register(CLIENTS.close)


def shared_memory(name: str, size: int) -> tuple[int, mmap.mmap]:
    """Returns a descriptor of fresh memory that another process may map, and the memory itself."""
    descriptor = os.memfd_create(name)
    try:
        os.ftruncate(descriptor, size)
        return descriptor, mmap.mmap(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        raise DeviceError(f"no memory for {size} bytes of tensors ({error.strerror})", "mmap") from error

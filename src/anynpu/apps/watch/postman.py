"""Carries alerts from the store's outbox to one sink. A message leaves the outbox when its receiver has taken it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from anynpu.apps.watch.alerts import read_alert
from anynpu.apps.watch.sinks import Refused, Reminds, Sink
from anynpu.apps.watch.store import SampleStore, StoreUnavailable

TRIES = 8
"""How often a message is tried that its receiver refuses. One that cannot be reached is tried for good."""
LONGEST_WAIT_S = 300.0


class Postman:
    """A thread for one sink, so that a receiver that is away holds up nobody else."""

    def __init__(self, sink: Sink, store: SampleStore, say: Callable[[str], None], first_wait_s: float = 2.0) -> None:
        self.sink, self.store, self.say, self.first_wait_s = sink, store, say, first_wait_s
        self.sent, self.lost = 0, 0
        self.wake, self.stopping = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"alerts-{sink.name}", daemon=True)

    def start(self) -> None:
        """Begins to deliver, first what the last process left."""
        self.thread.start()

    def _run(self) -> None:
        reminding = self.sink if isinstance(self.sink, Reminds) else None
        again_s = reminding.again_s if reminding else 0.0
        due = time.monotonic() + again_s
        while True:
            self.wake.clear()
            message = self.store.next_message(self.sink.name)
            if message is not None:
                if not self._deliver(*message):
                    return
            elif self.stopping.is_set():
                return
            elif not self.wake.wait(max(0.0, due - time.monotonic()) if again_s else None):
                due = time.monotonic() + again_s
                with suppress(OSError):
                    if reminding:
                        reminding.again()

    def _deliver(self, number: int, body: str) -> bool:
        """Tries until the message is taken or given up; returns False where the postman is to stop before."""
        send, attempt = functools.partial(self.sink.send, read_alert(body)), 0
        while True:
            try:
                send()
                self.sent += 1
                break
            except OSError as error:
                attempt += 1
                if attempt == 1:
                    self.say(f"{self.sink.name}: {error}; the alert is kept and tried again")
                if isinstance(error, Refused) and attempt >= TRIES:
                    self.say(f"{self.sink.name}: {error}: refused {TRIES} times, one alert is given up")
                    self.lost += 1
                    break
            if self.stopping.wait(min(self.first_wait_s * 2 ** (attempt - 1), LONGEST_WAIT_S)):
                return False
        while True:
            try:
                self.store.delivered(number)
                return True
            except StoreUnavailable:  # a full disk: were it sent again, the receiver would hear twice
                if self.stopping.wait(self.first_wait_s):
                    return False

    def close(self, timeout_s: float = 5.0) -> None:
        """Sends what waits, for a moment, and ends; the rest is sent after the next start."""
        self.stopping.set()
        self.wake.set()
        if self.thread.is_alive():
            self.thread.join(timeout_s)

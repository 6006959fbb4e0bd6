"""Runs a coroutine at once, without a task: most requests end after one wait for a device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Turn:
    """One coroutine on its way. It runs until its first wait when it is begun, and on when what it waits for is done.

    A task would cost a turn of the event loop before anything happens. What the coroutine awaits are futures, and
    coroutines that await them; `asyncio.timeout` needs a task and raises here.
    """

    __slots__ = ("_coroutine", "_loop", "_then", "_waits_for")

    def __init__(
        self, coroutine: Coroutine[Any, None, Any], then: Callable[[Any], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._coroutine, self._then, self._loop = coroutine, then, loop
        self._waits_for: asyncio.Future[Any] | None = None

    def go_on(self, _: object = None) -> None:
        """Runs until the next wait; `then` is called with what the coroutine returns."""
        try:
            waits_for = self._coroutine.send(None)
        except StopIteration as end:
            self._then(end.value)
            return
        self._waits_for = waits_for
        if waits_for is None:  # a pause of no length
            self._loop.call_soon(self.go_on)
        else:
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(self.go_on)

    def cancel(self) -> None:
        """Ends the wait: the coroutine sees CancelledError."""
        if self._waits_for is not None:
            self._waits_for.cancel()

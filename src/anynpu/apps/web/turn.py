"""Runs a coroutine at once, without a task of the event loop: most requests end after one wait for a device."""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine
from typing import Any


class Turn:
    """One coroutine on its way. It runs until its first wait when it is begun, and on when what it waits for is done.

    A task would cost a turn of the event loop before anything happens. While the coroutine runs, the turn stands in for
    its task: `asyncio.timeout` and `asyncio.TaskGroup` ask for the current one and cancel it. What it awaits are
    futures, and coroutines that await them.
    """

    __slots__ = ("_cancels", "_coroutine", "_is_cancelled", "_is_done", "_loop", "_then", "_waits_for")

    def __init__(
        self, coroutine: Coroutine[Any, None, Any], then: Callable[[Any], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._coroutine, self._then, self._loop = coroutine, then, loop
        self._waits_for: asyncio.Future[Any] | None = None
        self._cancels, self._is_cancelled, self._is_done = 0, False, False

    def go_on(self, _: object = None) -> None:
        """Runs until the next wait; `then` is called with what the coroutine returns."""
        self._waits_for = None
        _enter_task(self._loop, self)  # type: ignore[arg-type]
        try:
            waits_for = self._step()
        except StopIteration as end:
            self._is_done, value = True, end.value
        finally:
            _leave_task(self._loop, self)  # type: ignore[arg-type]
        if self._is_done:
            self._then(value)
        elif waits_for is None:  # a pause of no length
            self._loop.call_soon(self.go_on)
        else:
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(self.go_on)
            self._waits_for = waits_for
            if self._is_cancelled and waits_for.cancel():
                self._is_cancelled = False

    def _step(self) -> Any:
        if not self._is_cancelled:
            return self._coroutine.send(None)
        self._is_cancelled = False
        return self._coroutine.throw(asyncio.CancelledError())

    def cancel(self, msg: object = None) -> bool:
        """Ends the wait: the coroutine sees CancelledError, at once or where it waits next."""
        if self._is_done:
            return False
        self._cancels += 1
        if self._waits_for is None or not self._waits_for.cancel():
            self._is_cancelled = True
        return True

    def cancelling(self) -> int:
        """Returns how many have asked for its end and not taken that back."""
        return self._cancels

    def uncancel(self) -> int:
        """Takes one request for its end back."""
        self._cancels = max(0, self._cancels - 1)
        return self._cancels

    def done(self) -> bool:
        return self._is_done

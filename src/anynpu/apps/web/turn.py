"""Runs coroutines at once, without tasks of the event loop: most requests end after one wait for a device, or none."""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from typing import Any

DONE = object()
"""What the steps of a turn say at the end of a coroutine."""


class Turn:
    """Coroutines of one connection, one after the other. Each runs until its first wait when it is begun, and on when
    what it waits for is done; `then` gets what it returns, or the error that it raises.

    A task would cost a turn of the event loop before anything happens, and a coroutine that is run from outside ends in
    an exception, which costs as much as the rest of a short request: one generator therefore runs them all. While
    a coroutine runs, the turn stands in for its task: `asyncio.timeout` and `asyncio.TaskGroup` ask for the current one
    and cancel it. What it awaits are futures, and coroutines that await them.
    """

    _cancels = 0
    _is_cancelled = False
    _is_done = True
    _waits_for: asyncio.Future[Any] | None = None
    _value: Any = None

    def __init__(self, then: Callable[[Any], None], loop: asyncio.AbstractEventLoop) -> None:
        self._then, self._loop = then, loop
        self._steps = self._run()
        self._steps.send(None)

    @types.coroutine
    def _run(self) -> Generator[Any, Any, None]:
        while True:
            coroutine = yield DONE
            try:
                self._value = yield from coroutine
            except (Exception, asyncio.CancelledError) as error:
                self._value = error

    def begin(self, coroutine: Coroutine[Any, None, Any]) -> None:
        """Runs a coroutine until its first wait; the one before it must have ended."""
        self._cancels, self._is_cancelled, self._is_done = 0, False, False
        self._step(coroutine)

    def _go_on(self, _: object = None) -> None:
        self._waits_for = None
        self._step(None)

    def _step(self, sent: object) -> None:
        loop = self._loop
        _enter_task(loop, self)  # type: ignore[arg-type]
        try:
            if self._is_cancelled:
                self._is_cancelled = False
                waits_for = self._steps.throw(asyncio.CancelledError())
            else:
                waits_for = self._steps.send(sent)
        finally:
            _leave_task(loop, self)  # type: ignore[arg-type]
        if waits_for is DONE:
            self._is_done = True
            value, self._value = self._value, None
            self._then(value)
        elif waits_for is None:  # a pause of no length
            loop.call_soon(self._go_on)
        else:
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(self._go_on)
            self._waits_for = waits_for
            if self._is_cancelled and waits_for.cancel():
                self._is_cancelled = False

    def close(self) -> None:
        """Gives up the generator, which refers back to the turn, if nothing runs."""
        if self._is_done:
            self._steps.close()

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

"""What the event loop awaits and others do: the owner of a device, or a thread that may be left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from anynpu.apps.serve.lane import Lane
from anynpu.errors import DeviceError

Result = TypeVar("Result")


async def on_lane(lane: Lane, do: Callable[[], Result], limit_s: float, idle: bool = False) -> Result:
    """Returns what a function returns that the owner of a device calls; one that takes longer than `limit_s` hangs."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def resolve(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # there is one where there is no error

    def call() -> None:
        generation = lane.generation
        try:
            result = do()
        except Exception as error:
            if lane.generation == generation:
                loop.call_soon_threadsafe(resolve, None, error)
            return
        if lane.generation == generation:
            loop.call_soon_threadsafe(resolve, result, None)

    def hung(after_s: float) -> None:
        error = DeviceError(f"the device did not return within {after_s:g} s", "run", cause="it hangs")
        loop.call_soon_threadsafe(resolve, None, error)

    lane.call(lambda: lane.guarded(call, limit_s, hung), idle)
    return await future


async def in_daemon(function: Callable[[], Result]) -> Result:
    """Returns what a function returns that is called in a thread which does not keep the program from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def call() -> None:
        done: Callable[[], None]
        try:
            done = partial(future.set_result, function())
        except Exception as error:
            done = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(lambda: None if future.done() else done())

    threading.Thread(target=call, name="anynpu-loosen", daemon=True).start()
    return await future

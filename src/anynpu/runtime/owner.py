"""One owning thread per device: whoever wants something of it has it done there, one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from anynpu.errors import DeviceError

Result = TypeVar("Result")


class _Task:
    """Something to do; the lock is free when it is done."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def do(self) -> None:
        try:
            self.result = self.function(*self.arguments)
        except BaseException as error:  # whoever asked gets it, whatever it is
            self.error = error
        finally:
            self.done.release()


class Owner:
    """A thread that alone touches a device."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._pid = os.getpid()
        self.stuck = ""
        # A daemon: a call that never returns must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.do()
            del task  # arrays of the last task are not kept until the next

    def call(self, function: Callable[..., Result], *arguments: Any, timeout_s: float = -1) -> Result:
        """Returns what the function returns, called in the owning thread; a call that takes too long raises."""
        if os.getpid() != self._pid:
            raise DeviceError("the device belongs to the process that opened it", hint="open it again after a fork")
        if self.stuck:
            raise DeviceError(f"the device is lost: {self.stuck} did not return", self.stuck)
        task = _Task(function, arguments)
        self._tasks.put(task)
        if not task.done.acquire(timeout=timeout_s):
            self.stuck = function.__name__
            raise DeviceError(
                f"the device's library did not return within {timeout_s:g} s", self.stuck, cause="it hangs"
            )
        if task.error is not None:
            raise task.error
        result: Result = task.result
        return result

    def close(self) -> None:
        """Ends the thread after what was asked for before."""
        self._tasks.put(None)
        if not self.stuck and os.getpid() == self._pid and threading.current_thread() is not self._thread:
            self._thread.join()

"""The NPU in this process: the library, a thread that alone calls it, and giving the device back however we end.

A program that ends without giving the context back dies in the library's destructors, with a status that is not ours.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType

from anynpu.errors import DeviceError
from anynpu.runtime.noe.device import Device
from anynpu.runtime.noe.library import Library
from anynpu.runtime.noe.shared import Shared
from anynpu.runtime.owner import Owner

OPEN_S, CLOSE_S = 30.0, 5.0
HINT = "start the program again; without ANYNPU_NOE_ISOLATE=0 a library that hangs is ended and replaced"
SIGNALS = (signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGTERM,)


class Local:
    """A device of this process with its owning thread."""

    def __init__(self, library: Path) -> None:
        if library in _HANGING:
            raise DeviceError(
                f"{library} hangs in this process and cannot be used again", "noe_init_context", hint=HINT
            )
        self.pid, self._closed, self._library = os.getpid(), False, library
        self.owner = Owner("anynpu-noe")
        try:
            self.device: Device = self.owner.call(lambda: Device(Library(library)), timeout_s=OPEN_S)
        except BaseException:
            self.owner.close()
            raise
        # The default of these signals ends the program at once; a program's own handlers end it through Python.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, _end)

    @property
    def lost(self) -> str:
        if self._closed:
            return "the NPU was closed"
        return f"libnoe did not return from {self.owner.stuck}" if self.owner.stuck else ""

    def close(self) -> None:
        """Gives the device back in its own thread; a library that hangs is left behind."""
        if self._closed or self.pid != os.getpid():
            return
        self._closed = True
        with suppress(DeviceError):
            self.owner.call(self.device.close, timeout_s=CLOSE_S)
        if self.owner.stuck:
            _HANGING.add(self._library)
        self.owner.close()


_HANGING: set[Path] = set()
LOCALS = Shared(Local)
atexit.register(LOCALS.close)


def _end(number: int, frame: FrameType | None) -> None:
    LOCALS.close()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)

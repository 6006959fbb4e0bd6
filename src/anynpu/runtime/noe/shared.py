"""One holder of the library for all sessions of a program: made by the first, closed with the last."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar


class Holder(Protocol):
    """Something that holds the library; `lost` says why it no longer can."""

    pid: int

    @property
    def lost(self) -> str: ...

    def close(self) -> None: ...


Held = TypeVar("Held", bound=Holder)


class Shared(Generic[Held]):
    """Holders by the file of their library, with the number of their users."""

    def __init__(self, make: Callable[[Path], Held]) -> None:
        self._make = make
        self._held: dict[Path, tuple[Held, int]] = {}
        self._lock = threading.Lock()

    def acquire(self, library: Path) -> Held:
        """Returns the holder of a library; `release` gives it back."""
        with self._lock:
            holder, users = self._held.get(library, (None, 0))
            if holder is None or holder.lost or holder.pid != os.getpid():
                holder, users = self._make(library), 0
            self._held[library] = (holder, users + 1)
            return holder

    def release(self, library: Path, holder: Held) -> None:
        """Gives the holder back; the last user closes it."""
        with self._lock:
            held, users = self._held.get(library, (None, 0))
            if held is not holder:
                return  # it was lost, and others have another one
            if users > 1:
                self._held[library] = (holder, users - 1)
                return
            del self._held[library]
            holder.close()

    def close(self) -> None:
        """Closes every holder, whoever uses it."""
        for holder, _ in list(self._held.values()):
            holder.close()

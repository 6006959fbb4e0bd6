"""What would be done to a machine, as steps that are shown before any of them runs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anynpu import tool
from anynpu.errors import ConfigError
from anynpu.files import write_whole, writing


@dataclass(frozen=True)
class Step:
    """One command or one file to write, and why; with neither, something that only the user can do."""

    why: str
    argv: tuple[str, ...] = ()
    write: Path | None = None
    content: str = ""
    mode: int = 0o644
    needs_root: bool = False

    @property
    def by_hand(self) -> bool:
        """Whether this is left to the user: a password, a reboot, a choice."""
        return not self.argv and self.write is None

    def command(self) -> str:
        """Returns the step as a line that a shell understands, or what is written where."""
        if self.write is not None:
            return (
                f"write {shlex.quote(str(self.write))} (mode {self.mode:04o}, {len(self.content.splitlines())} lines)"
            )
        return shlex.join(self.argv)

    def record(self) -> dict[str, object]:
        """Returns the step as plain data."""
        return {
            "why": self.why,
            "argv": list(self.argv),
            "write": str(self.write) if self.write else "",
            "content": self.content,
            "needs_root": self.needs_root,
            "by_hand": self.by_hand,
        }


Tell = Callable[[int, Step], None]


def run(steps: Sequence[Step], *, log: Path, tell: Tell, again: str, timeout_s: float = 1800) -> None:
    """Runs the steps one after the other; each is printed before it runs, and the first failure ends the run."""
    if missing := need_root(steps):
        raise ConfigError(f"{missing} of {len(steps)} steps need root, and this process is not root", again)
    for number, step in enumerate(steps, 1):
        tell(number, step)
        if step.write is not None:
            write_file(step.write, step.content.encode("utf-8"), step.mode)
        elif step.argv:
            tool.run(step.argv, cwd=Path.cwd(), log=log, timeout_s=timeout_s)


def need_root(steps: Sequence[Step]) -> int:
    """Returns how many steps need root that this process is not."""
    am_root = not hasattr(os, "geteuid") or os.geteuid() == 0
    return 0 if am_root else sum(step.needs_root for step in steps)


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Writes a file in one move; it keeps the mode that it had unless one is given."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content, mode if mode is not None or path.exists() else 0o644)

"""What an audit of a run came to."""

from __future__ import annotations

from dataclasses import dataclass

from anynpu.artifact import Manifest

ARENA, FAST = "the arena", "the fast memory"
SHOWN = 5


@dataclass(frozen=True)
class Violation:
    """Something that a stream must not do: which operation of which stream, with which of its registers."""

    rule: str
    """unwritten-read, unwritten-output, stale-read, live-write, unaligned, overlap, unloaded-table or arena."""
    stream: int
    operation: int
    word: int
    kind: str
    registers: str
    tensor: str
    """The tensor or layer that suffers; empty where none is known."""
    message: str

    def __str__(self) -> str:
        return f"{self.message} [{self.rule}]"


@dataclass(frozen=True)
class Used:
    """How much of a memory a run used, and what the manifest says it needs."""

    memory: str
    bytes: int
    """Bytes that were written at least once."""
    end: int
    """The first byte behind them."""
    figure: int | None
    """The manifest's figure; None where it has none."""

    @property
    def text(self) -> str:
        stated = f" of {self.figure:,} in the manifest" if self.figure is not None else ""
        return f"{self.end:,} bytes of {self.memory}{stated}"


@dataclass(frozen=True)
class Audited:
    """What came of an audit."""

    violations: tuple[Violation, ...] = ()
    used: tuple[Used, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """Returns the sentences for people: the first violations, then the memories."""
        more = len(self.violations) - SHOWN
        notes = [str(violation) for violation in self.violations[:SHOWN]]
        notes += [f"and {more} more such findings"] if more > 0 else []
        used = ", ".join(u.text for u in self.used if u.end)
        return (*notes, f"one run touches {used}") if used else tuple(notes)


def memory_figures(manifest: Manifest) -> tuple[int | None, int | None]:
    """Returns how many bytes of SRAM and of DRAM the manifest says that the model needs."""
    sram = manifest.estimates.sram_bytes if manifest.estimates is not None else None
    dram = manifest.details.get("dram_bytes")
    return sram, dram if isinstance(dram, int) else None

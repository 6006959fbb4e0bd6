"""What a compiled model takes of flash and RAM, part by part, as its compiler's manifest says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anynpu.records.build import DetailsForm
from anynpu.records.faults import faults
from anynpu.schema import from_json, json_schema

Row = dict[str, str]
LEFT_OUT = "Not counted: TFLite-Micro, its bookkeeping in the arena, the NPU's driver, the application and the stack."


@dataclass(frozen=True)
class Section:
    """A part of generated C and what it takes."""

    name: str = ""
    flash_bytes: int = 0
    ram_bytes: int = 0


@dataclass(frozen=True)
class Memory:
    """What generated C takes: the sections of its objects, or what was counted without a compiler."""

    sections: tuple[Section, ...] = ()
    flash_bytes: int = 0
    ram_bytes: int = 0
    not_counted: tuple[str, ...] = ()


def _compiled(details: DetailsForm) -> Memory | None:
    """Returns the memory that the details of generated C hold; other compilers may mean something else by the name."""
    stated = details.rest.get("memory")
    if not isinstance(stated, Mapping) or "sections" not in stated or any(faults(stated, json_schema(Memory))):
        return None
    return from_json(Memory, stated)


def sections(details: DetailsForm) -> tuple[Section, ...]:
    """Returns the sections of generated C, or none."""
    memory = _compiled(details)
    return memory.sections if memory else ()


def memory_of(details: DetailsForm) -> tuple[list[str], list[Row]]:
    """Returns sentences about the memory that the details of a manifest tell of, and the table that goes with them."""
    if memory := _compiled(details):
        rows = [_row("section", each.name, each.flash_bytes, each.ram_bytes) for each in memory.sections]
        rows.append(_row("section", "total", memory.flash_bytes, memory.ram_bytes))
        compiler, flags, arena = (details.rest.get(name) for name in ("compiler", "flags", "arena"))
        shown = " ".join(map(str, flags)) if isinstance(flags, list) else ""
        how = f"objects of {compiler}, {shown}" if compiler else "counted"
        live = arena.get("live_bytes") if isinstance(arena, Mapping) else None
        alive = f"; tensors alive at once take {live:,}" if live else ""
        missing = ", ".join(memory.not_counted)
        sentence = f"Memory by section in bytes ({how}{alive})." + (f" Not counted: {missing}." if missing else "")
        return [sentence], rows
    return _of_areas(details) if details.candidates else ([], [])


def _of_areas(details: DetailsForm) -> tuple[list[str], list[Row]]:
    """A file of Vela: what it says of each memory of the NPU's system, and the file itself."""
    figures = (details.candidates or {}).get(details.chosen or "")
    size = details.rest.get("file_bytes")
    if figures is None or not isinstance(size, int):
        return [], []
    rows = [
        _row("memory area", "flash: the whole file, with TFLite's own tables", size, 0),
        _row("memory area", "flash: of it, weights of the NPU", figures.flash_bytes, 0),
        _row("memory area", "SRAM: what the NPU works in", 0, figures.sram_bytes),
        _row("memory area", "DRAM: weights and arena", 0, figures.dram_bytes),
    ]
    if not figures.flash_bytes:  # the mode keeps the weights in DRAM, where the file is copied to or lies
        rows[0]["memory area"] = "the whole file, with TFLite's own tables; wherever it is kept"
    used = [row for row in rows if row["flash"] != "0" or row["RAM"] != "0"]
    mode = f"Memory by area in bytes (Vela's estimate, memory mode {details.rest.get('memory_mode', '-')})."
    return [f"{mode} {LEFT_OUT}"], used


def _row(title: str, name: str, flash: float | None, ram: float | None) -> Row:
    return {title: name, "flash": f"{flash or 0:,}", "RAM": f"{ram or 0:,}"}

"""What a compiled model takes of flash and RAM, part by part, as its compiler's manifest says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = dict[str, str]


def memory(details: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Returns sentences about the memory that the details of a manifest tell of, and the table that goes with them."""
    found = details.get("memory")
    if isinstance(found, Mapping) and "sections" in found:
        return _compiled(details, found)
    return _areas(details) if details.get("candidates") else ([], [])


def _compiled(details: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """Generated C: the sections of its objects, or what was counted without a compiler."""
    rows = [_row("section", s["name"], s["flash_bytes"], s["ram_bytes"]) for s in found["sections"]]
    rows.append(_row("section", "total", found["flash_bytes"], found["ram_bytes"]))
    compiled = details.get("compiler")
    how = f"objects of {compiled}, {' '.join(details.get('flags', ()))}" if compiled else "counted"
    live = details.get("arena", {}).get("live_bytes")
    alive = f"; tensors alive at once take {live:,}" if live else ""
    left = ", ".join(found.get("not_counted", ()))
    return [f"Memory by section in bytes ({how}{alive})." + (f" Not counted: {left}." if left else "")], rows


def _areas(details: Mapping[str, Any]) -> tuple[list[str], list[Row]]:
    """A file of Vela: what it says of each memory of the NPU's system, and the file itself."""
    figures = details["candidates"][details["chosen"]]
    rows = [
        _row("memory area", "flash: the whole file, with TFLite's own tables", details["file_bytes"], 0),
        _row("memory area", "flash: of it, weights of the NPU", figures["flash_bytes"], 0),
        _row("memory area", "SRAM: what the NPU works in", 0, figures["sram_bytes"]),
        _row("memory area", "DRAM: weights and arena", 0, figures["dram_bytes"]),
    ]
    if not figures["flash_bytes"]:  # the mode keeps the weights in DRAM, where the file is copied to or lies
        rows[0]["memory area"] = "the whole file, with TFLite's own tables; wherever it is kept"
    used = [row for row in rows if row["flash"] != "0" or row["RAM"] != "0"]
    mode = f"Memory by area in bytes (Vela's estimate, memory mode {details['memory_mode']})."
    left = "Not counted: TFLite-Micro, its bookkeeping in the arena, the NPU's driver, the application and the stack."
    return [f"{mode} {left}"], used


def _row(title: str, name: str, flash: int, ram: int) -> Row:
    return {title: name, "flash": f"{flash:,}", "RAM": f"{ram:,}"}

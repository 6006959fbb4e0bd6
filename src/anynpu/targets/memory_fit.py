"""Memory: what a model takes against what the chip has."""

from __future__ import annotations

from collections.abc import Sequence

from anynpu.errors import Finding, Unsupported
from anynpu.platform import Platform


def shortage(needed: int | None, limit_kib: int | None) -> int:
    """Returns how many bytes more are needed than the chip has; 0 where either is unknown."""
    return 0 if needed is None or limit_kib is None else max(0, needed - limit_kib * 1024)


def beyond(
    platform: Platform, sram: int | None, sram_words: str, flash: int | None, flash_words: str
) -> tuple[Finding, ...]:
    """Returns what is larger than the chip's memory; the size takes the place of {} in the words."""
    areas = (
        ("fits-sram", sram, sram_words, platform.memory.sram_kib),
        ("fits-flash", flash, flash_words, platform.memory.flash_kib),
    )
    return tuple(
        Finding(rule, f"{words.format(f'{(needed or 0) / 1024:.1f} KiB')}, {platform.name} has {limit} KiB")
        for rule, needed, words, limit in areas
        if shortage(needed, limit)
    )


def require_fit(platform: Platform, findings: Sequence[Finding], hint: str) -> None:
    """Raises Unsupported for a model that takes more memory than the chip has."""
    if findings:
        raise Unsupported(f"the model does not fit {platform.name}", findings, hint)

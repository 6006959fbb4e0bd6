"""Memory: what a model needs at least before it is compiled, and what it takes after, against what the chip has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu.errors import Finding
from anynpu.platform import Platform
from anynpu.targets.flatbuffer import TfliteOperator, TfliteTensor
from anynpu.targets.memory_fit import beyond
from anynpu.targets.vela.command import Figures, VelaFacts, VelaOptions, config_path


def before(
    model: Sequence[TfliteOperator], platform: Platform, facts: VelaFacts, options: VelaOptions
) -> tuple[Finding, ...]:
    """Returns why the model cannot fit, whatever Vela does."""
    areas = memory_areas(facts, options)
    needed = 0 if areas.arena_elsewhere else arena_bound(model)
    weights = weights_bound(model)
    sram = "inputs or outputs alone take {} of SRAM"
    if areas.weights_in_sram:
        needed += weights
        sram = "inputs or outputs and the weights take at least {} of SRAM"
    flash = "weights take at least {} of flash however well they are compressed"
    return beyond(platform, needed, sram, weights, flash)


def after(figures: Figures, file: Path, platform: Platform, weights_in_sram: bool = False) -> tuple[Finding, ...]:
    """Returns what of the compiled model is larger than the chip's memory.

    Vela counts weights as flash even where the memory mode keeps them in the SRAM.
    """
    stored = file.stat().st_size
    needed = figures.sram_bytes + stored if weights_in_sram else figures.sram_bytes
    sram = "Vela needs {} of SRAM" + (", the weights among it" if weights_in_sram else "")
    return beyond(platform, needed, sram, stored, "the compiled model takes {} of flash")


def arena_bound(model: Sequence[TfliteOperator]) -> int:
    """Returns the bytes that must be in the arena at once: all inputs before the first operator, all outputs at last.

    Vela cuts feature maps in between into stripes, so nothing larger is certain.
    """
    computed = {t.name for op in model for t in op.outputs}
    used = {t.name for op in model for t in op.inputs if t}
    tensors = [t for t in _unique(model) if not t.constant]
    inputs = sum(t.bytes for t in tensors if t.name not in computed)
    outputs = sum(t.bytes for t in tensors if t.name not in used)
    return max(inputs, outputs)


def weights_bound(model: Sequence[TfliteOperator]) -> int:
    """Returns the bytes of information in the 8-bit constants: Vela compresses weights, by up to three times seen."""
    total = 0.0
    for tensor in _unique(model):
        if tensor.data is not None and tensor.dtype in ("int8", "uint8"):
            counts = np.unique(tensor.data, return_counts=True)[1]
            total -= float((counts * np.log2(counts / counts.sum())).sum()) / 8
    return int(total)


def _unique(model: Sequence[TfliteOperator]) -> list[TfliteTensor]:
    return list({id(t): t for op in model for t in op.tensors}.values())


@dataclass(frozen=True)
class MemoryAreas:
    """What a memory mode keeps where: the arena outside the SRAM, which then is a mere cache; the weights in it."""

    arena_elsewhere: bool
    weights_in_sram: bool


def memory_areas(facts: VelaFacts, options: VelaOptions) -> MemoryAreas:
    """Returns what the memory mode says, or the modes that it inherits from."""
    import configparser

    parser = configparser.ConfigParser()
    parser.read_string(config_path(facts.config, options.config).read_text("utf-8"))
    section = f"Memory_Mode.{options.memory_mode or facts.memory_mode}"
    areas: dict[str, str] = {}
    seen: set[str] = set()
    while parser.has_section(section) and section not in seen:
        seen.add(section)
        areas = {**parser[section], **areas}
        section = parser[section].get("inherit", "")
    sram = areas.get("cache_mem_area", "Axi0")
    return MemoryAreas(areas.get("arena_mem_area", sram) != sram, areas.get("const_mem_area") == sram)

"""The C generator as a compiler: a quantised TFLite file becomes self-contained C99 for any microcontroller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anynpu.artifact import Artifact, Estimates, Manifest
from anynpu.errors import ConfigError, Finding, Unsupported
from anynpu.firmware.generator import Generated, Settings, findings, generate
from anynpu.platform import Memory, Platform
from anynpu.targets.base import Work, option
from anynpu.tool import version_of

MAIN = "anynpu_model.c"
SOURCE = "arena and constants counted by the C generator; machine code is not counted"
SECTION = re.compile(r"[A-Za-z0-9_.$]*")


@dataclass(frozen=True)
class McuFacts:
    """How C is compiled for the core: the compiler, its flags, and the QEMU machine that has such a core."""

    compiler: str = "cc"
    flags: tuple[str, ...] = ()
    package: str = ""
    machine: str = ""


@dataclass(frozen=True)
class McuOptions:
    """What the generated code is called and where it is linked."""

    name: str = option("model", "the model's name in the generated code")
    arena_section: str = option("", "linker section of the arena; the compiler's own choice unless given")
    weights_section: str = option("", "linker section of weights and tables; the compiler's own choice unless given")
    ram_kib: int | None = option(None, "RAM of your chip, to check the arena against")
    flash_kib: int | None = option(None, "flash of your chip, to check the constants against")


class McuC:
    """Generates C from TFLite files."""

    name = "mcu_c"
    accepts = "tflite"
    produces = "c"
    exact = True
    Options = McuOptions
    Facts = McuFacts

    def tools(self) -> Mapping[str, str]:
        """Returns the package whose schema reads the model; no compiler is needed to generate."""
        return {"ai-edge-litert": version_of("ai-edge-litert")}

    def needs_data(self, options: McuOptions) -> bool:
        """The generator needs no data: the model is quantised already."""
        return False

    def check(self, model: Artifact, platform: Platform, options: McuOptions) -> tuple[Finding, ...]:
        """Returns the operators without a kernel, or what of the generated code the chip has no memory for."""
        platform.facts_as(McuFacts)
        if refused := findings(model.main):
            return refused
        return beyond(generate(model.main, _settings(options, model)), _bounded(platform, options))

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: McuOptions, out: Path, work: Work
    ) -> Manifest:
        """Writes the C files and returns what they are."""
        facts = platform.facts_as(McuFacts)
        made = generate(model.main, _settings(options, model))
        if too_large := beyond(made, _bounded(platform, options)):
            hint = "use a smaller input or fewer channels"
            raise Unsupported(f"the model does not fit {platform.name}", too_large, hint)
        made.write(out)
        work.progress(1, 1)
        source = model.manifest
        return Manifest(
            format=self.produces,
            main=MAIN,
            inputs=source.inputs,
            outputs=source.outputs,
            fingerprint=source.fingerprint,
            estimates=_estimates(made, source),
            details=_details(made, facts),
        )


def _bounded(platform: Platform, options: McuOptions) -> Platform:
    """Returns the platform with the memories that the user states for it."""
    sram = platform.memory.sram_kib if options.ram_kib is None else options.ram_kib
    flash = platform.memory.flash_kib if options.flash_kib is None else options.flash_kib
    return replace(platform, memory=Memory(sram, flash))


def _settings(options: McuOptions, model: Artifact) -> Settings:
    for key in ("arena_section", "weights_section"):
        if not SECTION.fullmatch(getattr(options, key)):
            raise ConfigError(f"option {key}: {getattr(options, key)!r} is not the name of a linker section")
    return Settings(options.name, model.manifest.fingerprint, options.arena_section, options.weights_section)


def _estimates(made: Generated, source: Manifest) -> Estimates:
    return Estimates(
        source=SOURCE,
        macs=made.macs,
        parameters=source.estimates.parameters if source.estimates else None,
        sram_bytes=made.arena_bytes,
        flash_bytes=made.constant_bytes,
    )


def _details(made: Generated, facts: McuFacts) -> dict[str, Any]:
    return {
        "sections": {"arena": made.arena_bytes, **made.sections},
        "arena": {"bytes": made.arena_bytes, "live_bytes": made.arena_bound, "in_place": made.in_place},
        "largest": {"layer": made.largest_layer, "constants": [list(item) for item in made.largest_constants]},
        "kernels": list(made.kernels),
        "compiler": facts.compiler,
        "flags": list(facts.flags),
        "machine": facts.machine,
    }


def beyond(made: Generated, platform: Platform) -> tuple[Finding, ...]:
    """Returns what is larger than the chip's memory, by how much, and what of it is largest."""
    found = []
    if over := _over(made.arena_bytes, platform.memory.sram_kib):
        text = f"the arena takes {made.arena_bytes:,} bytes of RAM, {over:,} more than {platform.name} has"
        found.append(Finding("fits-sram", f"{text}; most tensors live at once here", made.largest_layer))
    if over := _over(made.constant_bytes, platform.memory.flash_kib):
        text = f"the constants take {made.constant_bytes:,} bytes of flash, {over:,} more than {platform.name} has"
        about, size = made.largest_constants[0] if made.largest_constants else ("", 0)
        found.append(Finding("fits-flash", f"{text}; the largest, {size:,} bytes, are here", about))
    return tuple(found)


def _over(needed: int, kib: int | None) -> int:
    return max(0, needed - kib * 1024) if kib is not None else 0

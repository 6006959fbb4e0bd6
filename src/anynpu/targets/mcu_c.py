"""The C generator as a compiler: a quantised TFLite file becomes self-contained C99 for any microcontroller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from anynpu.artifact import Artifact, Estimates, Manifest
from anynpu.errors import ConfigError, Finding, Unsupported
from anynpu.firmware.compiler import Compiler, version
from anynpu.firmware.generator import Generated, Settings, findings, generate
from anynpu.firmware.generator.source import layouts_of
from anynpu.firmware.generator.variants import EXTENSIONS, Core
from anynpu.platform import Memory, Platform
from anynpu.runtime.device.elf import Footprint, Section
from anynpu.schema import to_dict
from anynpu.targets.base import Work, option
from anynpu.targets.memory_fit import require_fit, shortage
from anynpu.tool import version_of

MAIN = "anynpu_model.c"
COUNTED = "arena and constants counted by the C generator; machine code is not counted"
LEFT_OUT = ("the C library", "the application", "the stack")
"""What of a firmware is not part of the model."""
STANDARD = (".text", ".rodata", ".data", ".bss", ".ARM.exidx", ".ARM.extab")
PLAIN = {".text": "code", ".rodata": "parameters", ".data": "parameters", ".bss": "variables"}
SECTION = re.compile(r"[A-Za-z0-9_.$]*")
OPTIMISE = re.compile(r"-O(|[0-3sgz]|fast)")
SMALLER = "use a smaller input or fewer channels"


@dataclass(frozen=True)
class McuFacts:
    """How C is compiled for the core: the compiler, its flags, and the QEMU machine that has such a core."""

    compiler: str = "cc"
    flags: tuple[str, ...] = ()
    package: str = ""
    machine: str = ""
    extensions: tuple[str, ...] = ()
    """What the core has beyond plain C: "dsp", "mve"; the more able one last."""


@dataclass(frozen=True)
class McuOptions:
    """What the generated code is called and where it is linked."""

    name: str = option("model", "the model's name in the generated code")
    arena_section: str = option("", "linker section of the arena; the compiler's own choice unless given")
    weights_section: str = option("", "linker section of weights and tables; the compiler's own choice unless given")
    ram_kib: int | None = option(None, "RAM of your chip, to check the arena against")
    flash_kib: int | None = option(None, "flash of your chip, to check the constants against")
    kernels: Literal["auto", "plain", "dsp", "mve"] = option(
        "auto",
        "kernels: auto takes for each layer what is expected to need the fewest instructions on the chip; plain is C "
        "without intrinsics; dsp (SMLAD) and mve (Helium) are used wherever there is one",
    )
    optimise: Literal["speed", "size"] = option(
        "speed",
        "what the kernels are chosen and compiled for: the fewest instructions, or the smallest flash with -Os",
    )


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

    def platform_tools(self, platform: Platform) -> Mapping[str, str]:
        """Returns the chip's C compiler with its version, or why the machine code cannot be counted here."""
        compiler = _compiler(platform)
        missing = compiler.missing()
        return {compiler.program: f"not used: {missing}" if missing else version(compiler.program)}

    def needs_data(self, options: McuOptions) -> bool:
        """The generator needs no data: the model is quantised already."""
        return False

    def check(self, model: Artifact, platform: Platform, options: McuOptions) -> tuple[Finding, ...]:
        """Returns the operators without a kernel, or what of arena and constants the chip has no memory for.

        Nothing is compiled: machine code, a few KiB, is counted when the model is built.
        """
        settings = _settings(options, model, platform)
        if refused := findings(model.main):
            return refused
        generated = generate(model.main, settings)
        return beyond(generated, counted(generated, settings), _bounded(platform, options))

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: McuOptions, out: Path, work: Work
    ) -> Manifest:
        """Writes the C files and returns what they are; the chip's compiler, where it is here, says their size."""
        settings, compiler = _settings(options, model, platform), _compiler(platform, options)
        generated = generate(model.main, settings)
        bounded = _bounded(platform, options)
        require_fit(bounded, beyond(generated, counted(generated, settings), bounded), SMALLER)
        generated.write(out)
        missing = compiler.missing()
        if missing:
            memory, source = counted(generated, settings), COUNTED
        else:
            sources = [out / name for name in generated.files if name.endswith(".c")]
            memory = compiler.footprint(sources, out.parent, work.log, lambda s: named(s, generated, settings))
            source = f"objects of {version(compiler.program)}; without {', '.join(LEFT_OUT)}"
            require_fit(bounded, beyond(generated, memory, bounded), SMALLER)
        work.progress(1, 1)
        facts, lacks = platform.facts_as(McuFacts), " nor ".join(EXTENSIONS.values())
        plain = options.kernels == "auto" and not facts.extensions
        code = [f"machine code: {missing}"] if missing else []
        return Manifest(
            format=self.produces,
            main=MAIN,
            inputs=model.manifest.inputs,
            outputs=model.manifest.outputs,
            fingerprint=model.manifest.fingerprint,
            estimates=Estimates(
                source=source,
                macs=generated.macs,
                parameters=model.manifest.estimates.parameters if model.manifest.estimates else None,
                sram_bytes=memory.ram_bytes,
                flash_bytes=memory.flash_bytes,
            ),
            details={
                "arena": {
                    "bytes": generated.arena_bytes,
                    "live_bytes": generated.arena_bound,
                    "in_place": generated.in_place,
                },
                "largest": {
                    "layer": generated.largest_layer,
                    "constants": [list(item) for item in generated.largest_constants],
                },
                "kernels": list(generated.kernels),
                "layers": [to_dict(layer) for layer in generated.layers],
                "machine": facts.machine,
                "memory": memory.to_json() | {"not_counted": [*code, *LEFT_OUT]},
                "compiler": "" if missing else version(compiler.program),
                "flags": list(compiler.all_flags),
            },
            notes=(f"plain C kernels: {platform.name} has neither {lacks}",) if plain else (),
        )


def _compiler(platform: Platform, options: McuOptions | None = None) -> Compiler:
    facts = platform.facts_as(McuFacts)
    small = options is not None and options.optimise == "size"
    flags = tuple("-Os" if small and OPTIMISE.fullmatch(flag) else flag for flag in facts.flags)
    return Compiler(facts.compiler, flags, facts.package)


def core_of(platform: Platform, options: McuOptions) -> Core:
    """Returns what the kernels may use; kernels that the chip cannot execute raise Unsupported."""
    has = platform.facts_as(McuFacts).extensions
    if unknown := [name for name in has if name not in EXTENSIONS]:
        raise ConfigError(
            f"platform {platform.name}: no such extension: {unknown[0]}", "known: " + ", ".join(EXTENSIONS)
        )
    if options.kernels == "auto":
        return Core(has, small=options.optimise == "size")
    if options.kernels == "plain":
        return Core()
    if options.kernels not in has:
        usable = ", ".join(("auto", "plain", *has))
        raise Unsupported(
            f"option kernels={options.kernels}: {platform.name} does not have {EXTENSIONS[options.kernels]}",
            hint=f"-O kernels= takes {usable} for this chip",
        )
    return Core((options.kernels,), forced=True)


def _bounded(platform: Platform, options: McuOptions) -> Platform:
    """Returns the platform with the memories that the user states for it."""
    sram = platform.memory.sram_kib if options.ram_kib is None else options.ram_kib
    flash = platform.memory.flash_kib if options.flash_kib is None else options.flash_kib
    return replace(platform, memory=Memory(sram, flash))


def _settings(options: McuOptions, model: Artifact, platform: Platform) -> Settings:
    for key in ("arena_section", "weights_section"):
        if not SECTION.fullmatch(getattr(options, key)):
            raise ConfigError(f"option {key}: {getattr(options, key)!r} is not the name of a linker section")
    core = core_of(platform, options)
    manifest, sections = model.manifest, (options.arena_section, options.weights_section)
    return Settings(options.name, manifest.fingerprint, *sections, core, layouts_of(manifest.inputs, manifest.outputs))


def counted(generated: Generated, settings: Settings) -> Footprint:
    """Returns arena and constants as the generator counts them, in the sections that every compiler puts them into."""
    arena = Section(f"{settings.arena_section or '.bss'} arena", 0, generated.arena_bytes)
    place = settings.weights_section or ".rodata"
    return Footprint((arena, *(Section(f"{place} {kind}", size, 0) for kind, size in generated.sizes.items()))).merged()


def named(section: Section, generated: Generated, settings: Settings) -> Section:
    """Returns a section of an object under the name of the chip's section and of what is in it."""
    name = section.name
    if name in (".bss.arena", settings.arena_section):
        # Nobody initialises the arena: zeros that a compiler keeps for a section of the user's own need no flash.
        return Section(f"{settings.arena_section or '.bss'} arena", 0, section.ram_bytes)
    if name == settings.weights_section:
        return replace(section, name=f"{name} constants")
    place = next((each for each in STANDARD if name == each or name.startswith(each + ".")), name)
    about = generated.kinds.get(name.removeprefix(place + "."), PLAIN.get(place, ""))
    return replace(section, name=f"{place} {about}".rstrip())


def beyond(generated: Generated, memory: Footprint, platform: Platform) -> tuple[Finding, ...]:
    """Returns what is larger than the chip's memory, by how much, and what of it is largest."""
    findings = []
    ram, flash = memory.ram_bytes, memory.flash_bytes
    if over := shortage(ram, platform.memory.sram_kib):
        text = f"the arena and variables take {ram:,} bytes of RAM, {over:,} more than {platform.name} has"
        findings.append(Finding("fits-sram", f"{text}; most tensors live at once here", generated.largest_layer))
    if over := shortage(flash, platform.memory.flash_kib):
        code = sum(section.flash_bytes for section in memory.sections if section.name.startswith(".text"))
        what = f"the constants and {code:,} bytes of code take" if code else "the constants take"
        text = f"{what} {flash:,} bytes of flash, {over:,} more than {platform.name} has"
        about, size = generated.largest_constants[0] if generated.largest_constants else ("", 0)
        findings.append(Finding("fits-flash", f"{text}; the largest, {size:,} bytes, are here", about))
    return tuple(findings)

"""The Vela target: a quantised TFLite file becomes one whose operators run on an Ethos-U."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from anynpu.artifact import Artifact, Estimates, Manifest
from anynpu.errors import Finding
from anynpu.platform import Platform
from anynpu.schema import JsonObject
from anynpu.targets.base import Work
from anynpu.targets.flatbuffer import TfliteOperator, operators
from anynpu.targets.memory_fit import require_fit
from anynpu.targets.vela import fit
from anynpu.targets.vela.command import Compiled, VelaFacts, VelaOptions, run
from anynpu.targets.vela.origin import write_origins
from anynpu.targets.vela.receipt import placement, require_npu
from anynpu.tool import version_of

MODEL = "model_vela.tflite"
GOALS = {
    "best-latency": ("performance", "size"),
    "best-size": ("performance", "size"),
    "performance": ("performance",),
    "size": ("size",),
}


class Vela:
    """Compiles TFLite files for Arm Ethos-U."""

    name = "vela"
    accepts = "tflite"
    produces = "tflite-vela"
    repeats = True
    Options = VelaOptions
    Facts = VelaFacts

    def tools(self) -> Mapping[str, str]:
        """Returns Vela with its version."""
        return {"ethos-u-vela": version_of("ethos-u-vela")}

    def needs_data(self, options: VelaOptions) -> bool:
        """Vela needs no data: the model is quantised already."""
        return False

    def check(self, model: Artifact, platform: Platform, options: VelaOptions) -> tuple[Finding, ...]:
        """Returns the operators that Vela's constraint table refuses, and memory that cannot be enough."""
        from anynpu.targets.vela.constraints import refused

        facts = platform.facts_as(VelaFacts)
        model_operators = operators(model.main)
        return (*refused(model_operators, facts.accelerator), *fit.before(model_operators, platform, facts, options))

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: VelaOptions, out: Path, work: Work
    ) -> Manifest:
        """Writes the compiled model, its logs and the figures per layer, and returns what it is."""
        facts = platform.facts_as(VelaFacts)
        version = self.tools()["ethos-u-vela"]
        before = operators(model.main)
        goals = GOALS[options.optimise]
        candidates = []
        for done, goal in enumerate(goals):
            work.progress(done, len(goals))
            candidates.append(run(model.main, facts, options, goal, out, work.log))
        weights_in_sram = fit.memory_areas(facts, options).weights_in_sram
        best = choose(candidates, platform, options.optimise, weights_in_sram)
        ignored = (options.ignore_ops or "").split(",")
        receipt = placement(platform.npu or facts.accelerator, before, operators(best.model), best.output, ignored)
        require_npu(receipt, before)
        too_large = fit.after(best.figures, best.model, platform, weights_in_sram)
        require_fit(platform, too_large, "try -O optimise=best-size, or a smaller input")
        details = _details(candidates, best, facts, options)
        write_origins(best.database, before, out)
        best.model.replace(out / MODEL)
        best.per_layer.replace(out / "per_layer.csv")
        for candidate in candidates:
            shutil.rmtree(candidate.model.parent)
        work.progress(len(goals), len(goals))
        return Manifest(
            format=self.produces,
            main=MODEL,
            inputs=model.manifest.inputs,
            outputs=model.manifest.outputs,
            fingerprint=model.manifest.fingerprint,
            placement=receipt,
            estimates=Estimates(
                source=f"Vela {version} estimate",
                macs=sum(op.macs for op in before),
                sram_bytes=best.figures.sram_bytes,
                # A system without flash counts none; that is not the same as needing none.
                flash_bytes=best.figures.flash_bytes or None,
                cycles=best.figures.cycles,
                latency_ms=best.figures.latency_ms,
            ),
            notes=(
                *_notes(len(receipt.elsewhere()), options, weights_in_sram),
                *_resized_otherwise(before, facts.accelerator),
            ),
            details=details,
        )


def choose(candidates: Sequence[Compiled], platform: Platform, goal: str, weights_in_sram: bool = False) -> Compiled:
    """Returns the candidate that is better for the goal, among those that fit the chip if any does."""
    fitting = [c for c in candidates if not fit.after(c.figures, c.model, platform, weights_in_sram)]

    def rank(candidate: Compiled) -> tuple[float, ...]:
        f = candidate.figures
        memory = (f.sram_bytes, f.flash_bytes + f.dram_bytes)
        return (*memory, f.latency_ms) if goal == "best-size" else (f.latency_ms, *memory)

    return min(fitting or candidates, key=rank)


def _details(candidates: Sequence[Compiled], best: Compiled, facts: VelaFacts, options: VelaOptions) -> JsonObject:
    return {
        "accelerator": facts.accelerator,
        "config": options.config.name if options.config else facts.config,
        "system_config": options.system_config or facts.system_config,
        "memory_mode": options.memory_mode or facts.memory_mode,
        "chosen": best.goal,
        "candidates": {c.goal: asdict(c.figures) | {"file_bytes": c.model.stat().st_size} for c in candidates},
        "dram_bytes": best.figures.dram_bytes,
        "file_bytes": best.model.stat().st_size,
    }


def _notes(on_cpu: int, options: VelaOptions, weights_in_sram: bool) -> tuple[str, ...]:
    notes = []
    if weights_in_sram:
        notes.append("the memory mode keeps the weights in SRAM, on top of the SRAM that Vela counts")
    if on_cpu:
        notes.append(f"the estimate counts the NPU alone; operators left to the CPU come on top of it: {on_cpu}")
    if options.force_symmetric_int_weights:
        notes.append("Vela was told to set the weights' zero points to 0: results may differ from the verified model")
    return tuple(notes)


def _resized_otherwise(model: Sequence[TfliteOperator], accelerator: str) -> tuple[str, ...]:
    """Returns the note on resizes that are compiled to something else."""
    from anynpu.targets.vela.constraints import miscompiled

    names = ", ".join(op.name for op in miscompiled(model, accelerator))
    words = "on a U85 Vela takes other pixels than TFLite for a nearest resize without half pixel centres"
    return (f"{words}: {names}; resize by whole factors, or with them",) if names else ()

"""The rknn target: an ONNX model and calibration samples become a .rknn file, by Rockchip's RKNN-Toolkit2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import schema
from anynpu.artifact import Artifact, Estimates, Manifest, PassEffect
from anynpu.capsules import capsule
from anynpu.errors import ConfigError, Finding, ToolFailed, Unsupported
from anynpu.graph import passes
from anynpu.measure.samples import INPUT, read_samples
from anynpu.platform import Platform
from anynpu.records.calibration import FILE as CALIBRATION
from anynpu.records.quantisation import FILE as QUANTISATION
from anynpu.runtime.rknn import ANSWERS, MODEL, REBUILD, RECIPE, RESULT, SAMPLES, TOOL, Recipe, Simulator
from anynpu.targets.base import Work, other_version
from anynpu.targets.data import require_data
from anynpu.targets.rknn.options import MOVES, RknnFacts, RknnOptions, check_numbers
from anynpu.targets.rknn.quantise import quantised
from anynpu.targets.rknn.receipt import Receipt, placement, read_receipt

KNOWN_VERSION = "2.5.0"
MAGIC = b"RKNN"
SAME_SIMULATOR = "the simulator computes the same for every chip: it is not evidence for this one"


class Rknn:
    """Compiles ONNX models for Rockchip NPUs."""

    name = "rknn"
    accepts = "onnx"
    produces = "rknn"
    Options = RknnOptions
    Facts = RknnFacts
    moves = MOVES

    def tools(self) -> Mapping[str, str]:
        """Returns the toolkit with its version."""
        return {"rknn-toolkit2": capsule.find(TOOL).version}

    def needs_data(self, options: RknnOptions) -> bool:
        """The toolkit learns ranges from samples; in fp16 it needs none."""
        return options.quantises

    def check(self, model: Artifact, platform: Platform, options: RknnOptions) -> tuple[Finding, ...]:
        """Returns what the toolkit is known to refuse."""
        check_numbers(options, platform.facts_as(RknnFacts), platform.name)
        return _read(model)[2]

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: RknnOptions, out: Path, work: Work
    ) -> Manifest:
        """Writes the .rknn file and what a simulator rebuilds it from, and returns what it is."""
        from anynpu.graph.quantised import has_pairs

        check_numbers(options, platform.facts_as(RknnFacts), platform.name)
        graph, _, findings = _read(model)
        if findings:
            raise Unsupported(f"RKNN-Toolkit2 does not compile this model for {platform.name}", findings)
        own = options.own_ranges and not has_pairs(graph)
        if options.quantisation is not None and not own:
            raise ConfigError(
                "quantisation: the model brings scales of its own", "give the float model, or leave it out"
            )
        try:
            return _compiled(model, data, platform, options, out, work, own)
        except ToolFailed as failure:
            if not own or options.algorithm == "anynpu" or options.quantisation is not None:
                raise
            words = f"RKNN-Toolkit2 failed on the model with anynpu's quantisation ({failure.message})"
        for path in (out / QUANTISATION, out / CALIBRATION):
            path.unlink(missing_ok=True)
        shutil.rmtree(out / REBUILD, ignore_errors=True)
        manifest = _compiled(model, data, platform, options, out, work, own=False)
        return replace(manifest, notes=(f"{words}: it quantised the model itself, by normal", *manifest.notes))


def _compiled(
    model: Artifact, data: Artifact | None, platform: Platform, options: RknnOptions, out: Path, work: Work, own: bool
) -> Manifest:
    """Writes the .rknn file of a model that the toolkit quantises, or that is quantised in our `own` way."""
    graph, notes, _ = _read(model)
    facts = platform.facts_as(RknnFacts)
    tool = capsule.find(TOOL)
    recipe = Recipe(tool.version, options.config(facts), options.build(), options.time_limit_s)
    notes += other_version("RKNN-Toolkit2", KNOWN_VERSION, tool.version)
    source = out / REBUILD
    source.mkdir()
    effects: tuple[PassEffect, ...] = ()
    if own:
        effects = quantised(source / MODEL, model, require_data(data, Rknn.name), options, work)
        for name in (CALIBRATION, QUANTISATION):
            (source / name).rename(out / name)
        notes += passes.notes(effects)
    else:
        (source / MODEL).write_bytes(graph.SerializeToString(deterministic=True))
    (source / RECIPE).write_text(json.dumps(schema.to_dict(recipe, whole=True), indent=1, sort_keys=True) + "\n")
    if options.quantises and not own:
        samples = read_samples(require_data(data, Rknn.name).path).first(options.samples)
        arrays = {INPUT + spec.name: samples.inputs[spec.name] for spec in model.manifest.inputs}
        np.savez_compressed(source / SAMPLES, **arrays)  # type: ignore[arg-type]  # names are not keywords
        if len(samples):
            notes += (f"calibrated with {len(samples)} samples, which rebuild/{SAMPLES} keeps",)
    receipt = read_receipt(_build(tool, out, model, recipe, platform, work))
    notes += tuple(
        f"the chip gives {spec.name} as {list(shape)}: the same values as {list(spec.shape)}"
        for spec, shape in zip(model.manifest.outputs, receipt.outputs(), strict=False)
        if shape and shape != spec.shape
    )
    return replace(_manifest(model, out, platform, receipt, (*notes, SAME_SIMULATOR), recipe), passes=effects)


def _read(model: Artifact) -> tuple[Any, tuple[str, ...], tuple[Finding, ...]]:
    """Returns the graph as the toolkit gets it, what was done to it, and what is in the way."""
    from anynpu.source.onnx_file import read
    from anynpu.targets.rknn.prepare import findings, prepared

    graph = read(model.main)
    refused = findings(graph)
    if refused:
        return graph, (), refused
    graph, notes = prepared(graph)
    return graph, notes, ()


def _build(tool: capsule.Capsule, out: Path, model: Artifact, recipe: Recipe, platform: Platform, work: Work) -> str:
    """Runs the toolkit and returns what it printed; what it refuses is Unsupported, with its reasons."""
    start = work.log.stat().st_size if work.log.exists() else 0
    simulator = Simulator(tool, work.log)
    try:
        specs = model.manifest.inputs, model.manifest.outputs
        result = simulator.build(out / REBUILD, recipe, specs, work.progress)
        chain, by = tool.installed.toolchain, f"{tool.name}: export_rknn"
        content = chain.require_file(result, by, work.log, filled=True).read_bytes()
        # 64 bytes that name the size of what follows; that; eight bytes that name the size of a description in JSON.
        body = 64 + int.from_bytes(content[16:24], "little")
        if content[:4] != MAGIC or len(content) != body + 8 + int.from_bytes(content[body : body + 8], "little"):
            raise chain.failed(f"{by} ended well but wrote no whole {result.name}", work.log)
        answers = simulator.answers()
        shutil.copyfile(result, out / RESULT)
    except ToolFailed as failure:
        from anynpu.targets.rknn.prepare import last_error, refusals

        text = _text(work.log, start)
        if reasons := refusals(text):
            raise Unsupported(f"RKNN-Toolkit2 does not compile this model for {platform.name}", reasons) from None
        words = last_error(text)
        if words and words not in failure.message:  # the toolkit's own
            failure.message = f"{failure.message} ({words})"
            failure.args = (failure.message,)
        raise failure from None
    finally:
        simulator.close()
    np.savez_compressed(out / REBUILD / ANSWERS, **answers)  # type: ignore[arg-type]  # see above
    return _text(work.log, start)


def _text(log: Path, start: int) -> str:
    return log.read_bytes()[start:].decode("utf-8", "replace")


def _manifest(
    model: Artifact, out: Path, platform: Platform, receipt: Receipt, notes: tuple[str, ...], recipe: Recipe
) -> Manifest:
    source, size = model.manifest, (out / RESULT).stat().st_size
    return Manifest(
        format=Rknn.produces,
        main=RESULT,
        inputs=source.inputs,
        outputs=source.outputs,
        fingerprint=source.fingerprint,
        placement=placement(receipt, platform.npu, recipe.version),
        estimates=replace(
            source.estimates or Estimates(""),
            source="MACs and parameters counted from the graph; cycles and memory of activations as the compiler "
            "states them; flash is the file's size",
            flash_bytes=size,
            sram_bytes=receipt.internal_bytes,
            cycles=receipt.cycles,
        ),
        notes=notes,
        details={"config": dict(recipe.config), "toolkit": recipe.version, "weight_bytes": receipt.weight_bytes},
    )

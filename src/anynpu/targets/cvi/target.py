"""The cvi target: an ONNX model and calibration samples become a .cvimodel or .bmodel, by TPU-MLIR."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anynpu import schema, tool
from anynpu.artifact import Artifact, Manifest
from anynpu.capsules import capsule
from anynpu.errors import ConfigError, Finding, IntegrityError, Unsupported
from anynpu.measure.samples import read_samples
from anynpu.platform import Platform
from anynpu.quantize.fixed import keep_quantisation, read_stated
from anynpu.records.calibration import FILE as CALIBRATION
from anynpu.runtime.cvi import CompiledTensors, Simulator
from anynpu.targets.base import Work, other_version, scratch
from anynpu.targets.cvi import commands, made, quantise
from anynpu.targets.cvi.commands import Room
from anynpu.targets.cvi.mlir import operations, results
from anynpu.targets.cvi.model_file import settle
from anynpu.targets.cvi.options import MOVES, CviFacts, CviOptions, check_chip, read_quantize_table
from anynpu.targets.cvi.quantise import ForTable
from anynpu.targets.data import require_data

TOOL, PACKAGE, WRITTEN_FOR = "cvi", "tpu-mlir", "1.30.2"
STAGES = 4


class Cvi:
    """Compiles ONNX models for CVITEK's and SOPHGO's TPUs."""

    name = "cvi"
    accepts = "onnx"
    produces = "tpu-model"
    Options = CviOptions
    Facts = CviFacts
    moves = MOVES

    def tools(self) -> Mapping[str, str]:
        """Returns TPU-MLIR with its version."""
        return {PACKAGE: capsule.find(TOOL).version}

    def needs_data(self, options: CviOptions) -> bool:
        """INT8 learns its ranges from samples, unless the user brings a table of them."""
        return options.quantize == "int8" and options.calibration_table is None

    def check(self, model: Artifact, platform: Platform, options: CviOptions) -> tuple[Finding, ...]:
        """Returns which operators TPU-MLIR refuses for that chip, and which its TPU leaves to the CPU."""
        from anynpu.source.onnx_file import read
        from anynpu.targets.cvi.rules import findings

        return findings(read(model.main), check_chip(options, platform))

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: CviOptions, out: Path, work: Work
    ) -> Manifest:
        """Writes the compiled model and the tables that it was made with, and returns what it is."""
        from anynpu.source.onnx_file import read
        from anynpu.targets.cvi.rules import refusals, with_kernel_shapes

        facts = check_chip(options, platform)
        if self.needs_data(options):
            require_data(data, self.name)
        graph = read(model.main)
        if refused := refusals(graph, facts):
            raise Unsupported(f"TPU-MLIR does not compile this model for {platform.name}", refused)
        tool = capsule.find(TOOL)
        with scratch(out / "work") as folder:
            room = Room(folder, tool, work.log, options, facts)
            table = None
            if options.own_ranges:
                table, graph = _quantised(room, model, require_data(data, self.name), work)
            (folder / commands.ONNX).write_bytes(with_kernel_shapes(graph).SerializeToString())
            tensors, receipt, notes = _build(room, model, data, table, work)
            manifest = _manifest(room, model, platform, graph, tensors, receipt)
            if table is not None:
                _keep_quantisation(room, table, out)
                manifest = replace(manifest, passes=table.passes, notes=(*manifest.notes, *notes))
            # Comments with the time of day are left behind
            (room.path / room.facts.main).replace(out / room.facts.main)
            for name in (commands.RANGES, commands.FORMATS):
                path = room.path / name
                if path.is_file() and room.options.quantize == "int8":
                    lines = path.read_text("utf-8", "replace").splitlines()
                    (out / name).write_text("".join(f"{line}\n" for line in lines if not line.startswith("#")), "utf-8")
        return manifest


def _quantised(room: Room, model: Artifact, data: Artifact, work: Work) -> tuple[ForTable, Any]:
    """Returns the ranges of a model, and the model with its repairs."""
    from anynpu.source.onnx_file import read

    repaired = room.path / commands.REPAIRED
    repaired.parent.mkdir()
    arguments = {"model": str(model.path), "data": str(data.path), "options": room.options, "out": str(repaired)}
    function = "anynpu.targets.cvi.quantise:write"
    answer = tool.call(function, arguments, scratch=room.path, log=work.log, progress=work.progress)
    return schema.from_dict(ForTable, answer, function), read(repaired)


def _keep_quantisation(room: Room, table: ForTable, out: Path) -> None:
    """Writes how TPU-MLIR stores every tensor, read from its own file, and what the samples say of the ranges; what is
    stated must be so."""
    compiled = sorted(room.path.glob("model_*_tpu.mlir"))
    if not compiled:
        raise room.failed("model_deploy.py ended well but wrote no _tpu.mlir file")
    quantisation = quantise.stored(results(compiled[0].read_text("utf-8", "replace")), table, room.options)
    stated = read_stated(room.options.quantisation, quantise.EMITTER)
    if stated is not None:
        stated.check(quantisation)
    keep_quantisation(quantisation, out / room.facts.main)
    shutil.copyfile((room.path / commands.REPAIRED).with_name(CALIBRATION), out / CALIBRATION)


def _build(
    room: Room, model: Artifact, data: Artifact | None, table: ForTable | None, work: Work
) -> tuple[CompiledTensors, str, tuple[str, ...]]:
    """Runs the programs in turn; returns the tensors of the result as its runtime has them, its final .mlir, and what
    is to be said of its ranges."""
    options, old = room.options, room.facts.old
    count = commands.write_samples(room.path, read_samples(data.path)) if data is not None else 0
    commands.transform(room, model.manifest.inputs, count > 0)
    work.progress(1, STAGES)
    notes = _tables(room, count, table) if options.quantize == "int8" else ()
    work.progress(2, STAGES)
    borders = {
        "--quant_input": options.integers(options.quant_input, old),
        "--quant_output": options.integer_outputs(old),
    }
    tensors = _deploy_once(room, borders, count > 0)
    odd = {
        "--quant_input": any(t.dtype == "bf16" for t in tensors.inputs),
        "--quant_output": any(t.dtype == "bf16" for t in tensors.outputs),
    }
    # A mixed model that would take or give bfloat16, which nobody else stores, is compiled once more with floats.
    if any(odd[flag] and borders[flag] for flag in borders):
        borders = {flag: wanted and not odd[flag] for flag, wanted in borders.items()}
        tensors = _deploy_once(room, borders, count > 0)
    work.progress(3, STAGES)
    final = sorted(room.path.glob("model_*_final.mlir"))
    if not final:
        raise room.failed("model_deploy.py ended well but wrote no final .mlir file")
    return tensors, final[0].read_text("utf-8", "replace"), notes


def _tables(room: Room, count: int, table: ForTable | None) -> tuple[str, ...]:
    """Puts the table of ranges and the one of formats in place, the user's own or made here; returns what is to be said
    of them."""
    options = room.options
    formats: dict[str, str] = {}
    if options.quantize_table is not None:
        formats = read_quantize_table(options.quantize_table, room.facts)
        if not formats:
            hint = "a line is `layer BF16`, with a layer of calibration_table"
            raise ConfigError(f"{options.quantize_table}: names no layer", hint)
        (room.path / commands.FORMATS).write_text("".join(f"{k} {v}\n" for k, v in formats.items()), "utf-8")
    notes: tuple[str, ...] = ()
    if options.calibration_table is not None:
        shutil.copyfile(options.calibration_table, room.path / commands.RANGES)
    elif table is None:
        commands.calibrate(room, count)
    else:
        names = [each.name for each in results((room.path / commands.MLIR).read_text("utf-8", "replace"))]
        ours = {name: plain for name in names if (plain := quantise.plain_name(name, table.ranges)) is not None}
        rows = {name: quantise.row(name, table.ranges[plain], options) for name, plain in ours.items()}
        if foreign := [name for name in names if name not in ours]:
            kept = commands.calibrate(room, count).read_text("utf-8", "replace").splitlines()
            rows |= {words[0]: line for line in kept if (words := line.split()) and words[0] in foreign}
            notes = (f"TPU-MLIR put tensors in whose ranges are run_calibration.py's: {', '.join(foreign)}",)
        lines = [rows[name] for name in dict.fromkeys(names) if name in rows]
        (room.path / commands.RANGES).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    lines = (room.path / commands.RANGES).read_text("utf-8", "replace").splitlines()
    layers = {line.split()[0] for line in lines if line.strip()}
    # TPU-MLIR ignores a format of a layer that the model does not have.
    if missing := [layer for layer in formats if layer not in layers]:
        hint = "the names are those of calibration_table, which a build without a table of formats leaves in its folder"
        raise ConfigError(f"{options.quantize_table}: the model has no layer {missing[0]}", hint)
    return notes


def _deploy_once(room: Room, borders: Mapping[str, bool], test: bool) -> CompiledTensors:
    result = commands.deploy(room, borders, test)
    try:
        settle(result, room.facts.processor)
    except IntegrityError as error:
        raise room.failed(f"model_deploy.py ended well but {result.name} cannot be read: {error.message}") from None
    with Simulator(room.capsule, result, room.facts.simulator, log=room.log) as simulator:
        return simulator.tensors


def _manifest(
    room: Room, model: Artifact, platform: Platform, graph: Any, tensors: CompiledTensors, receipt: str
) -> Manifest:
    source, facts, formats = model.manifest, room.facts, room.path / commands.FORMATS
    try:
        inputs = made.pair(tensors.inputs, source.inputs)
        outputs = made.pair(tensors.outputs, source.outputs)
        specs_in = tuple(made.input_spec(spec, inputs[spec.name]) for spec in source.inputs)
        specs_out = tuple(made.output_spec(spec, outputs[spec.name]) for spec in source.outputs)
        placed = made.placement(graph, operations(receipt), platform.npu)
    except IntegrityError as error:
        raise room.failed(f"model_deploy.py made something else than was asked for: {error.message}") from None
    names = {"inputs": {k: t.name for k, t in inputs.items()}, "outputs": {k: t.name for k, t in outputs.items()}}
    return Manifest(
        format=Cvi.produces,
        main=facts.main,
        inputs=specs_in,
        outputs=specs_out,
        fingerprint=source.fingerprint,
        placement=placed,
        estimates=made.estimates(
            source.estimates, room.path / facts.main, sorted(room.path.glob("compiler_profile_*.txt"))
        ),
        notes=other_version("TPU-MLIR", WRITTEN_FOR, room.capsule.version),
        details={
            "processor": facts.processor,
            "simulator": facts.simulator,
            "quantize": room.options.quantize,
            "names": names,
            "mixed": read_quantize_table(formats, facts) if formats.is_file() else {},
        },
    )

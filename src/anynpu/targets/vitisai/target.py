"""The Ryzen AI target: an ONNX model and calibration samples become the ONNX that the VitisAI provider compiles."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anynpu.artifact import Artifact, Manifest
from anynpu.capsules import capsule, worker
from anynpu.drivers.ryzen_facts import VitisFacts
from anynpu.errors import ConfigError, Finding, IntegrityError, Unsupported
from anynpu.graph import passes
from anynpu.measure.samples import FILE
from anynpu.platform import Platform
from anynpu.quantize.fixed import NOTHING
from anynpu.records.calibration import FILE as CALIBRATION
from anynpu.targets.base import Work, other_version, scratch
from anynpu.targets.data import require_data
from anynpu.targets.quantising import bare
from anynpu.targets.vitisai.options import MOVES, VitisOptions, check_precision
from anynpu.targets.vitisai.quantise import ForQuark, for_quark, keep, plan_of, settled
from anynpu.training.record import read_integers, read_record

TOOL = "quark"
WRITTEN_FOR = "0.13"
FLOAT, MODEL = "float.onnx", "model.onnx"


class VitisAi:
    """Quantises ONNX models for the NPU of Ryzen AI computers."""

    name = "vitisai"
    accepts = "onnx"
    produces = "onnx-vitisai"
    Options = VitisOptions
    Facts = VitisFacts
    moves = MOVES

    def tools(self) -> Mapping[str, str]:
        """Returns Quark with its version."""
        return {TOOL: capsule.find(TOOL).version}

    def needs_data(self, options: VitisOptions) -> bool:
        """Quark runs the model on samples, whatever the precision."""
        return True

    def check(self, model: Artifact, platform: Platform, options: VitisOptions) -> tuple[Finding, ...]:
        """Returns what keeps the model from being quantised, and what AMD's list leaves to the CPU."""
        from anynpu.source.onnx_file import read
        from anynpu.targets.vitisai import rules

        check_precision(options, platform)
        graph = read(model.main)
        hindrances = (*rules.broken(graph), *rules.other_opset(graph, options.opset))
        return (*hindrances, *rules.unlisted(graph, options.precision))

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: VitisOptions, out: Path, work: Work
    ) -> Manifest:
        """Writes the quantised model and returns what it is."""
        from anynpu.graph.opset import opset_of
        from anynpu.source.onnx_file import read
        from anynpu.targets.vitisai import prepare, rules
        from anynpu.targets.vitisai.placement import placement

        check_precision(options, platform)
        samples = require_data(data, self.name).path / FILE
        graph = read(model.main)
        if findings := rules.broken(graph):
            first = f"{findings[0].where}: {findings[0].message}"
            raise Unsupported(first, findings, f"`anynpu check -t {platform.name}` lists all")
        quark = capsule.find(TOOL)
        trained = read_record(model.path)
        if trained is not None and options.quantisation is not None:
            raise ConfigError("quantisation: training has decided all ranges and scales of this model", "leave it out")
        own = options.own_ranges and trained is None
        with scratch(out / TOOL) as room:
            if own:
                table = settled(room / FLOAT, model, require_data(data, self.name), options, work)
            else:
                converted, reason = prepare.in_opset(graph, options.opset)
                (room / FLOAT).write_bytes(converted.SerializeToString())
                fixed = NOTHING if trained is None else trained.scheme.fixed(weights_of_file=False)
                table = ForQuark(fixed.ranges, fixed.origins, (), reason)
            arguments = {
                "model": str(room / FLOAT),
                "samples": str(samples),
                "out": str(room / MODEL),
                "precision": options.precision,
                "method": options.quark_method,
                "cle": options.cle,
                "adaround": options.adaround_iterations if options.adaround else 0,
                "ranges": for_quark(table.ranges, plan_of(options)) if own else {},
            }
            with worker.Worker(quark, "quark_worker", scratch=room, log=work.log) as running:
                running.ask("quantise", arguments, timeout_s=options.time_limit_s, progress=work.progress)
            quantised = _read_quantised(room / MODEL, model, options, quark, work)
            if own:
                shutil.copyfile(room / CALIBRATION, out / CALIBRATION)
        if options.precision != "bf16":
            keep(quantised, table, options, out / MODEL)
        (out / MODEL).write_bytes(quantised.SerializeToString(deterministic=True))
        notes = (f"kept in opset {opset_of(graph)}, AMD advises 17: {reason}",) if (reason := table.other_opset) else ()
        return replace(
            bare(model.manifest, out / MODEL),
            format=self.produces,
            placement=placement(quantised, platform.npu, options.precision),
            passes=table.passes,
            notes=(*notes, *passes.notes(table.passes), *other_version(TOOL, WRITTEN_FOR, quark.version)),
            details={
                "precision": options.precision,
                "adaround": options.adaround,
                "quark": quark.version,
                "opset": opset_of(quantised),
            },
        )


def _read_quantised(path: Path, model: Artifact, options: VitisOptions, quark: capsule.Capsule, work: Work) -> Any:
    """Returns what Quark wrote, once it has shown to be what was asked for, with the integers of a trained model."""
    from anynpu.source.onnx_file import read
    from anynpu.targets.vitisai.form import check_made
    from anynpu.targets.vitisai.prepare import cleaned, put_in_order
    from anynpu.targets.vitisai.trained import hold

    inputs, outputs = model.manifest.inputs, model.manifest.outputs
    quark.installed.toolchain.require_file(path, TOOL, work.log)
    try:
        put_in_order(path)
        quantised = read(path)
        check_made(quantised, options.precision, inputs, outputs)
    except IntegrityError as error:
        words = error.message.replace(str(path), "its file")
        raise quark.installed.toolchain.failed(f"{TOOL} ended well but {words}", work.log) from None
    quantised = cleaned(quantised)
    if record := read_record(model.path):
        hold(quantised, record.scheme, read_integers(model.path))
        check_made(quantised, options.precision, inputs, outputs)
    return quantised

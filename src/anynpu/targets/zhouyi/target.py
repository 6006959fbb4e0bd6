"""The Zhouyi target: an ONNX model and calibration samples become a .cix file, by CIX's compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anynpu import schema, tool
from anynpu.artifact import Artifact, Estimates, Manifest, OperatorPlacement, PassEffect, Placement
from anynpu.capsules import toolchain
from anynpu.errors import Finding, ToolMissing, Unsupported
from anynpu.measure.samples import SampleSet, read_samples
from anynpu.platform import Platform
from anynpu.runtime.base import choose
from anynpu.targets.base import Work, scratch
from anynpu.targets.data import require_data
from anynpu.targets.zhouyi import cfg
from anynpu.targets.zhouyi.made import pair, read_made, specs_of
from anynpu.targets.zhouyi.options import MOVES, ZhouyiFacts, ZhouyiOptions, check_nodes, check_target

TOOL = "cixbuild"
STAGES = ("[Parser]", "[OPT]", "[Optimizer]", "[GB]", "[GBuilder]")


class Zhouyi:
    """Compiles ONNX models for the Zhouyi NPU of the CIX CD8180."""

    name = "zhouyi"
    accepts = "onnx"
    produces = "cix"
    Options = ZhouyiOptions
    Facts = ZhouyiFacts
    moves = MOVES

    def tools(self) -> Mapping[str, str]:
        """Returns cixbuild with its version."""
        return {TOOL: toolchain.find(TOOL).version}

    def platform_tools(self, platform: Platform) -> Mapping[str, str]:
        """Returns what here runs .cix files: where something does, a build is not done before it has run."""
        runtime = _runtime()
        return {"runs cix": runtime} if runtime else {}

    def needs_data(self, options: ZhouyiOptions) -> bool:
        """cixbuild quantises, and learns the ranges from samples."""
        return True

    def check(self, model: Artifact, platform: Platform, options: ZhouyiOptions) -> tuple[Finding, ...]:
        """Returns what is in the way once the graph is rewritten."""
        check_target(options.target, platform.facts_as(ZhouyiFacts).targets)
        return _prepared(model, options, ())[2]

    def compile(
        self,
        model: Artifact,
        data: Artifact | None,
        platform: Platform,
        options: ZhouyiOptions,
        out: Path,
        work: Work,
    ) -> Manifest:
        """Writes the .cix file and the .cfg that it was made with, and returns what it is."""
        check_target(options.target, platform.facts_as(ZhouyiFacts).targets)
        samples = read_samples(require_data(data, self.name).path)
        graph, notes, findings, effects = _prepared(model, options, tuple(samples))
        if findings and not options.trust_compiler:
            raise Unsupported(
                f"cixbuild does not compile this model for {platform.name}",
                findings,
                "a newer CixBuilder may take more: -O trust_compiler=true hands the model over all the same",
            )
        with scratch(out / "cixbuild") as room:
            result = _build(room, graph, model, samples, options, work)
            result.replace(out / cfg.RESULT)
            (room / cfg.CFG).replace(out / cfg.CFG)
        manifest = _manifest(model, out, graph, platform, options, notes)
        said = (*manifest.notes, *_executed(manifest, model, data, out, work))
        return replace(manifest, passes=effects, notes=said)


def _prepared(
    model: Artifact, options: ZhouyiOptions, feeds: tuple[Mapping[str, Any], ...]
) -> tuple[Any, tuple[str, ...], tuple[Finding, ...], tuple[PassEffect, ...]]:
    """Returns the graph as cixbuild gets it, what was done to it, what is still in the way, and the passes that ran."""
    from anynpu.source.onnx_file import read
    from anynpu.targets.zhouyi.rewrite import rewritten
    from anynpu.targets.zhouyi.rules import findings

    graph, notes, effects = rewritten(read(model.main), options, feeds)
    check_nodes(options, [node.name for node in graph.graph.node])
    return graph, notes, findings(graph), effects


def _build(room: Path, graph: Any, model: Artifact, samples: SampleSet, options: ZhouyiOptions, work: Work) -> Path:
    """Runs cixbuild in the folder `room` and returns the .cix file that it wrote."""
    installed = toolchain.find(TOOL)
    inputs = model.manifest.inputs
    (room / cfg.MODEL).write_bytes(graph.SerializeToString())
    calibration = cfg.write_calibration(room, samples, inputs)
    (room / cfg.CFG).write_text(cfg.text(graph.graph.name, inputs, calibration, options), "utf-8")
    argv = [str(installed.program), cfg.CFG]
    seen: set[str] = set()

    def on_line(line: str) -> None:  # parser, optimizer, code generator
        for stage in STAGES:
            if stage in line and stage not in seen:
                seen.add(stage)
                work.progress(min(len(seen), 3), 3)

    installed.run(argv, cwd=room, log=work.log, timeout_s=options.time_limit_s, called=TOOL, on_line=on_line)
    return installed.toolchain.require_file(room / cfg.RESULT, TOOL, work.log, argv)


def _manifest(
    model: Artifact, out: Path, graph: Any, platform: Platform, options: ZhouyiOptions, notes: tuple[str, ...]
) -> Manifest:
    from anynpu.graph.cost import cost

    result, source = out / cfg.RESULT, model.manifest
    cix = read_made(result, options)
    inputs = specs_of("input", cix.inputs, source.inputs, options)
    outputs = specs_of("output", cix.outputs, source.outputs, options)
    names = {
        "inputs": {s.name: t.name for s, t in zip(inputs, pair("input", cix.inputs, source.inputs), strict=True)},
        "outputs": {s.name: t.name for s, t in zip(outputs, pair("output", cix.outputs, source.outputs), strict=True)},
    }
    # A .cix with a second program, for the CPU, is refused when it is read: all is on the NPU.
    placed = tuple(OperatorPlacement(n.name, n.op_type, "npu", macs=n.macs) for n in cost(graph).nodes)
    return Manifest(
        format=Zhouyi.produces,
        main=cfg.RESULT,
        inputs=inputs,
        outputs=outputs,
        fingerprint=source.fingerprint,
        placement=Placement(platform.npu, placed),
        estimates=replace(
            source.estimates or Estimates(""),
            source="MACs and parameters counted from the graph; flash is the file's size",
            flash_bytes=result.stat().st_size,
            sram_bytes=None,
        ),
        notes=tuple(f"rewritten: {note}" for note in notes),
        details={
            "target": options.target,
            "build_version": cix.build_version,
            "names": names,
            "file_bytes": result.stat().st_size,
        },
    )


def _runtime() -> str:
    """Returns the name of the session that runs .cix files here, or an empty string."""
    try:
        return str(choose(Zhouyi.produces).name)
    except ToolMissing:
        return ""


def _executed(manifest: Manifest, model: Artifact, data: Artifact | None, out: Path, work: Work) -> tuple[str, ...]:
    """Runs the result where something here can, raises AccuracyError for garbage, and says what could not be judged."""
    if not _runtime():
        return ("not executed: nothing on this machine runs .cix files",)
    arguments = {
        "candidate": str(out),
        "manifest": schema.to_dict(manifest),
        "reference": str(model.path),
        "data": str(require_data(data, Zhouyi.name).path),
    }
    notes: list[str] = tool.call("anynpu.targets.zhouyi.collapse:distinct", arguments, scratch=out.parent, log=work.log)
    return tuple(notes)

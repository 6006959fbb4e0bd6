"""The qnn target: an ONNX model becomes a QDQ model and a context binary for one version of the Hexagon NPU.

model_ctx.onnx, model_ctx_qnn.bin   what a device loads: the compiled graph and an ONNX file around it
model.onnx                          the quantised model it was compiled from, for any other provider
quantisation.json                   how every tensor of it is stored
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from anynpu import schema, tool
from anynpu.artifact import Artifact, Estimates, Manifest, OperatorPlacement, Placement
from anynpu.capsules import capsule
from anynpu.capsules.toolchain import read_toolchain
from anynpu.capsules.worker import Worker
from anynpu.errors import Finding, Unsupported
from anynpu.graph import passes
from anynpu.platform import Platform
from anynpu.runtime.qnn import CONTEXT, TOOL
from anynpu.targets.base import Work, other_version, scratch
from anynpu.targets.data import require_data
from anynpu.targets.qnn.agreement import Agreement, agreement
from anynpu.targets.qnn.options import MOVES, ForProvider, QnnFacts, QnnOptions

KNOWN_VERSION = "2.7.0"
MODEL, TWIN = "model.onnx", "twin.onnx"


class Qnn:
    """Compiles ONNX models for the Hexagon NPU of Snapdragon chips."""

    name = "qnn"
    accepts = "onnx"
    produces = "onnx-qnn"
    Options = QnnOptions
    Facts = QnnFacts
    moves = MOVES

    def tools(self) -> Mapping[str, str]:
        """Returns the provider with its version, and the quantiser."""
        own = {name: tool.version_of(name) for name in ("onnxruntime", "onnx")}
        return {"onnxruntime-qnn": capsule.find(TOOL).version, **own}

    def needs_data(self, options: QnnOptions) -> bool:
        """A model that is quantised already needs samples as well: the NPU is compared with the CPU on some."""
        return True

    def check(self, model: Artifact, platform: Platform, options: QnnOptions) -> tuple[Finding, ...]:
        """Returns what the NPU is known to refuse."""
        from anynpu.source.onnx_file import read
        from anynpu.targets.qnn.prepare import prepared
        from anynpu.targets.qnn.rules import findings

        platform.facts_as(QnnFacts)
        graph = read(model.main)
        return findings(graph if options.quantize == "none" else prepared(graph))

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: QnnOptions, out: Path, work: Work
    ) -> Manifest:
        """Writes the quantised model and its context, compares NPU and CPU, and returns what was made."""
        samples = require_data(data, self.name)
        if not options.allow_cpu and (findings := self.check(model, platform, options)):
            raise _unsupported(platform, findings)
        arch, qnn = platform.facts_as(QnnFacts).htp_arch, capsule.find(TOOL)
        arguments = {"model": str(model.path), "data": str(samples.path), "options": options, "out": str(out / MODEL)}
        function = "anynpu.targets.qnn.quantise:write"
        answer = tool.call(function, arguments, scratch=out.parent, log=work.log, progress=work.progress)
        prepared = schema.from_dict(ForProvider, answer, function)
        with scratch(out / "worker") as room, Worker(qnn, "qnn_worker", scratch=room, log=work.log) as worker:
            asked = {
                "model": str(out / MODEL),
                "context": str(out / CONTEXT),
                "arch": arch,
                "open_cpu": options.allow_cpu,
            }
            reply, _ = worker.ask("compile", asked, timeout_s=options.time_limit_s, progress=work.progress)
            outside = {str(name): str(kind) for name, kind in reply["left"]}
            if not reply["written"]:
                words = "{}: the HTP does not take it"
                raise _unsupported(
                    platform, tuple(Finding("operator", words.format(kind), name) for name, kind in outside.items())
                )
            largest = max(out.glob("*.bin"), key=lambda p: p.stat().st_size, default=out / "context.bin")
            for path in (out / CONTEXT, largest):
                read_toolchain(TOOL).require_file(path, f"{TOOL}: compile", work.log, filled=True)
            truth = out / TWIN if prepared.as_given else model.main
            agreed = agreement(worker, out, truth if truth.is_file() else None, arch, model, samples, options)
        (out / TWIN).unlink(missing_ok=True)
        # The context model holds the compiled graphs, and the operators that are not in them.
        placed = [
            replace(op, device="cpu", reason="the HTP does not take it") if outside.pop(op.name, None) else op
            for op in prepared.operators
        ]
        placed += [OperatorPlacement(name, kind, "cpu", "onnxruntime put it in", 0) for name, kind in outside.items()]
        manifest = _manifest(model, out, arch, options, prepared, agreed)
        notes = (*manifest.notes, *other_version("onnxruntime-qnn", KNOWN_VERSION, qnn.version))
        return replace(manifest, placement=Placement(platform.npu, tuple(placed)), notes=notes)


def _unsupported(platform: Platform, findings: tuple[Finding, ...]) -> Unsupported:
    return Unsupported(
        f"the {platform.npu} does not take the whole model",
        findings,
        "-O allow_cpu=true leaves these operators to the CPU; --require-npu then says how much may be there",
    )


def _manifest(
    model: Artifact, out: Path, arch: int, options: QnnOptions, prepared: ForProvider, agreed: Agreement
) -> Manifest:
    source, size = model.manifest, sum(path.stat().st_size for path in out.glob("model_ctx*"))
    quantised = {} if prepared.as_given else {"quantisation": options.to_json()}
    notes = [f"on {agreed.samples} samples the HTP simulator is {agreed.sqnr_db:.1f} dB from ONNX Runtime's CPU"]
    if prepared.as_given:
        notes.append("compiled as it was given, not quantised here")
    return Manifest(
        format=Qnn.produces,
        main=CONTEXT,
        inputs=source.inputs,
        outputs=source.outputs,
        fingerprint=source.fingerprint,
        estimates=replace(
            source.estimates or Estimates(""),
            source="MACs and parameters counted from the graph; flash is the size of the context",
            flash_bytes=size,
            sram_bytes=None,
        ),
        notes=(*notes, *passes.notes(prepared.passes)),
        passes=prepared.passes,
        details={
            **quantised,
            "htp_arch": arch,
            "open_cpu": options.allow_cpu,
            "quantised": MODEL,
            "as_given": prepared.as_given,
            "agreement": schema.to_dict(agreed),
        },
    )

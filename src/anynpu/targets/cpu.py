"""The CPU through ONNX Runtime: the model as it is, or quantised with QuantizeLinear and DequantizeLinear pairs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anynpu import schema, tool
from anynpu.artifact import Artifact, Estimates, Manifest
from anynpu.errors import Finding
from anynpu.platform import Platform
from anynpu.quantize.plan import QuantPlan
from anynpu.source.onnx_file import read
from anynpu.targets.base import NoFacts, Work
from anynpu.targets.data import require_data


class Cpu:
    """Quantises an ONNX model for ONNX Runtime."""

    name = "cpu"
    accepts = "onnx"
    produces = "onnx-ort"
    Options = QuantPlan
    Facts = NoFacts

    def tools(self) -> Mapping[str, str]:
        return {"onnxruntime": tool.version_of("onnxruntime"), "onnx": tool.version_of("onnx")}

    def needs_data(self, options: QuantPlan) -> bool:
        return options.activations != "float32"

    def check(self, model: Artifact, platform: Platform, options: QuantPlan) -> tuple[Finding, ...]:
        return ()

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: QuantPlan, out: Path, work: Work
    ) -> Manifest:
        result = out / "model.onnx"
        if not self.needs_data(options):
            read(model.main)  # a damaged file is not handed on
            shutil.copyfile(model.main, result)
            return replace(_bare(model.manifest), format=self.produces, main="model.onnx")
        arguments = {
            "model": str(model.main),
            "data": str(require_data(data, self.name).path),
            "plan": schema.to_dict(options),
            "out": str(result),
        }
        figures = tool.call(
            "anynpu.targets.cpu:emit", arguments, scratch=out.parent, log=work.log, progress=work.progress
        )
        return replace(
            _bare(model.manifest),
            format=self.produces,
            main="model.onnx",
            estimates=_estimates(model.manifest, result),
            details={"quantisation": figures},
        )


def _bare(manifest: Manifest) -> Manifest:
    return replace(manifest, files=(), step=None, made=None, details={}, notes=())


def _estimates(manifest: Manifest, result: Path) -> Estimates:
    source = manifest.estimates or Estimates("")
    counted = "MACs and parameters counted from the graph; flash is the file's size"
    return replace(source, source=counted, flash_bytes=result.stat().st_size, sram_bytes=None)


def emit(model: str, data: str, plan: dict[str, Any], out: str) -> dict[str, Any]:
    """Writes the QDQ model (runs in a child process)."""
    import onnx

    from anynpu.quantize.qdq import write_qdq
    from anynpu.targets.data import dataset

    options = schema.from_dict(QuantPlan, plan, "plan")
    quantised = write_qdq(onnx.load(model), dataset(Path(data)), options, progress=tool.report_progress)
    onnx.save(quantised, out)
    return options.to_json()

"""The CPU through ONNX Runtime: the model as it is, or quantised with QuantizeLinear and DequantizeLinear pairs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from anynpu import schema, tool
from anynpu.artifact import Artifact, Manifest, PassEffect
from anynpu.errors import Finding
from anynpu.platform import Platform
from anynpu.quantize.plan import QuantPlan
from anynpu.targets.base import NoFacts, Work
from anynpu.targets.quantising import MOVES, bare, emit, keep_calibration, needs_samples, with_passes


class Cpu:
    """Quantises an ONNX model for ONNX Runtime."""

    name = "cpu"
    accepts = "onnx"
    produces = "onnx-ort"
    Options = QuantPlan
    Facts = NoFacts
    moves = MOVES

    def tools(self) -> Mapping[str, str]:
        return {"onnxruntime": tool.version_of("onnxruntime"), "onnx": tool.version_of("onnx")}

    def needs_data(self, options: QuantPlan) -> bool:
        return needs_samples(options)

    def check(self, model: Artifact, platform: Platform, options: QuantPlan) -> tuple[Finding, ...]:
        return ()

    def compile(
        self, model: Artifact, data: Artifact | None, platform: Platform, options: QuantPlan, out: Path, work: Work
    ) -> Manifest:
        result = out / "model.onnx"
        if not self.needs_data(options):
            from anynpu.source.onnx_file import read

            read(model.main)  # a damaged file is not handed on
            shutil.copyfile(model.main, result)
            return replace(bare(model.manifest, result), format=self.produces)
        answer = emit("anynpu.targets.cpu:write", model, data, options, result, work)
        manifest = with_passes(bare(model.manifest, result), answer["passes"])
        return replace(manifest, format=self.produces, details={"quantisation": answer["plan"]})


def write(model: str, data: str, plan: dict[str, Any], out: str) -> dict[str, Any]:
    """Writes the QDQ model (runs in a child process)."""
    import onnx

    from anynpu.graph.quantised import has_pairs, refuse_integers
    from anynpu.quantize.fixed import NOTHING, keep_quantisation
    from anynpu.quantize.qdq import write_qdq
    from anynpu.quantize.qdq_record import float_operators
    from anynpu.targets.data import dataset
    from anynpu.training.record import read_record

    options = schema.from_dict(QuantPlan, plan, "plan")
    imported = Artifact.open(Path(model))
    source = onnx.load(imported.main)
    refuse_integers(source)
    if has_pairs(source):  # with scales of its own
        onnx.save(source, out)
        return {"plan": options.to_json(), "passes": []}
    record = read_record(imported.path)
    fixed = NOTHING if record is None else record.scheme.fixed(weights_of_file=False)
    report = partial(keep_calibration, result=Path(out))
    effects: list[PassEffect] = []
    keep = partial(keep_quantisation, result=Path(out))
    quantised = write_qdq(source, dataset(Path(data)), options, tool.report_progress, report, fixed, effects, keep)
    onnx.save(quantised, out)
    figures = {**options.to_json(), "float_operators": float_operators(quantised)}
    return {"plan": figures, "passes": schema.to_dict(effects)}

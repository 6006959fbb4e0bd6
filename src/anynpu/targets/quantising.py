"""What quantising compilers share: when samples are needed, the call of the emitter, and a manifest to start from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from anynpu import schema, tool
from anynpu.artifact import Artifact, Estimates, Manifest, PassEffect
from anynpu.graph import passes
from anynpu.quantize.plan import QuantPlan
from anynpu.records.calibration import FILE as CALIBRATION
from anynpu.records.calibration import Calibration
from anynpu.targets.base import Move, Work
from anynpu.targets.data import require_data

MOVES = (
    Move({"rounding": "fitted"}),
    Move({"method": "mse"}, without=("percentile",)),
    *(Move({"method": "percentile", "percentile": share}) for share in ("99.99", "99.999", "99.9")),
    Move({"equalize": "false"}),
    Move({"bias_correction": "false"}),
    Move({"method": "entropy"}, without=("percentile",)),
    Move({"method": "minmax"}, without=("percentile",)),
    Move(worst="wide_tensors"),
    Move(worst="float_tensors"),
    Move({"activations": "int16"}, without=("wide_tensors",), costly=True),
    Move({"weight_bits": "4"}, costly=True),
)
"""What a search tries with a plan of ours."""


def needs_samples(plan: QuantPlan) -> bool:
    """Whether the plan quantises what only samples can tell the ranges of."""
    return plan.activations != "float32"


def emit(function: str, model: Artifact, data: Artifact | None, plan: QuantPlan, result: Path, work: Work) -> Any:
    """Returns what our function "module:name" says of the quantised file that it writes, in a child process."""
    arguments = {
        "model": str(model.path),
        "data": str(require_data(data, function.partition(":")[0].rpartition(".")[2]).path),
        "plan": plan,
        "out": str(result),
    }
    return tool.call(function, arguments, scratch=result.parent.parent, log=work.log, progress=work.progress)


def keep_calibration(calibration: Calibration, result: Path) -> None:
    """Writes what the samples say of their ranges next to the file that was quantised with them."""
    result.with_name(CALIBRATION).write_text(schema.canonical_json(schema.to_dict(calibration)) + "\n", "utf-8")


def bare(manifest: Manifest, result: Path) -> Manifest:
    """Returns the manifest of another file of the same model, without what was said of the first."""
    estimates = replace(
        manifest.estimates or Estimates(""),
        source="MACs and parameters counted from the graph; flash is the file's size",
        flash_bytes=result.stat().st_size,
        sram_bytes=None,
    )
    empty = replace(manifest, files=(), step=None, made=None, details={}, notes=(), passes=())
    return replace(empty, main=result.name, estimates=estimates)


def float_notes(left: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """Returns a sentence for each operator of a quantised file that computes in floating point."""
    return tuple(f"{each['operator']} stays in floating point; it makes {each['tensor']}" for each in left)


def with_passes(manifest: Manifest, listed: Any) -> Manifest:
    """Returns a manifest with the passes that a child process lists as JSON, and a note for each that was dropped."""
    effects = tuple(schema.from_dict(PassEffect, each, "pass") for each in listed)
    return replace(manifest, passes=effects, notes=(*manifest.notes, *passes.notes(effects)))

"""The one quantisation as Quark takes it: the float model with its repairs, and the ranges that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from anynpu import schema, tool
from anynpu.artifact import Artifact, PassEffect
from anynpu.quantize.fixed import Fixed, keep_quantisation, read_stated
from anynpu.quantize.plan import Activations, QuantPlan
from anynpu.quantize.ranges import Range, planned_form
from anynpu.records.quantisation import Origin
from anynpu.targets.base import Work
from anynpu.targets.vitisai.form import KINDS
from anynpu.targets.vitisai.options import VitisOptions

if TYPE_CHECKING:
    import onnx

EMITTER: Literal["quark"] = "quark"
ACTIVATIONS: Mapping[str, Activations] = {"xint8": "uint8", "a8w8": "int8", "a16w8": "int16"}


@dataclass(frozen=True)
class ForQuark:
    """The ranges of a model's tensors, where they come from, what passes did to the model, and why it is not in the
    opset that was asked for."""

    ranges: Mapping[str, Range]
    origins: Mapping[str, Origin]
    passes: tuple[PassEffect, ...]
    other_opset: str


@dataclass(frozen=True)
class QuarkPlan(QuantPlan):
    """What Quark writes: one scale for a tensor and zero in the middle; with uint8, which is XINT8, powers of two."""

    def is_symmetric(self, dtype: str) -> bool:
        return True

    def scale_for_each(self, dense: bool) -> bool:
        return False

    @property
    def power_of_two(self) -> bool:
        return self.activations == "uint8"


def plan_of(options: VitisOptions) -> QuarkPlan:
    """Returns the plan of a precision. Learnt roundings start from the model as it is, so that nothing is repaired."""
    activations = ACTIVATIONS[options.precision]
    return QuarkPlan(
        activations=activations,
        weights="per-tensor",
        method="mse" if options.method == "auto" and activations == "uint8" else options.method,
        equalize=options.equalize,
        bias_correction=options.bias_correction and not options.adaround,
        quantisation=options.quantisation,
    )


def settled(out: Path, model: Artifact, data: Artifact, options: VitisOptions, work: Work) -> ForQuark:
    """Writes the float model with its repairs, and returns its ranges."""
    arguments = {"model": str(model.path), "data": str(data.path), "options": options, "out": str(out)}
    function = "anynpu.targets.vitisai.quantise:write"
    answer = tool.call(function, arguments, scratch=out.parent, log=work.log, progress=work.progress)
    return schema.from_dict(ForQuark, answer, function)


def keep(quantised: onnx.ModelProto, table: ForQuark, options: VitisOptions, out: Path) -> None:
    """Writes how Quark stores every tensor next to its file, from which it is read; what is stated must be so."""
    from anynpu.quantize.qdq_record import described

    quantisation = described(quantised, table.ranges, table.origins, plan_of(options), EMITTER)
    if stated := read_stated(options.quantisation, EMITTER):
        stated.check(quantisation)
    keep_quantisation(quantisation, out)


def write(model: str, data: str, options: VitisOptions, out: str) -> ForQuark:
    """Writes the float model with its repairs, and returns its ranges (runs in a child process)."""
    import onnx

    from anynpu.quantize.qdq import Dialect, but_before_rectifiers, prepare, settle
    from anynpu.source.onnx_file import read
    from anynpu.targets.data import dataset
    from anynpu.targets.quantising import keep_calibration
    from anynpu.targets.vitisai.prepare import in_opset

    graph, reason = in_opset(read(Artifact.open(Path(model)).main), options.opset)
    source, plan = prepare(graph), plan_of(options)
    if stated := read_stated(options.quantisation, EMITTER):
        results, kind = {name for node in source.graph.node for name in node.output}, KINDS[options.precision]
        for name, form in stated.chosen(results, kind.activations, "-O precision= chooses the type of all").items():
            if any(point != kind.zero_point for point in form.zero_point):
                words = f"{options.precision} has the zero point {kind.zero_point}, not {form.zero_point[0]}"
                raise stated.error(f"{name}.zero_point", words, "")
            if plan.power_of_two and any(np.frexp(np.float32(scale))[0] != 0.5 for scale in form.scale):
                near = 2.0 ** np.rint(np.log2(form.scale[0]))
                words = f"scales are powers of two in {options.precision}, not {form.scale[0]:g}"
                raise stated.error(f"{name}.scale", words, f"{near:g} is the next one")
    report = partial(keep_calibration, result=Path(out))
    dialect = Dialect(EMITTER, _emitted, but_before_rectifiers)
    answer = settle(source, dataset(Path(data)), plan, dialect, tool.report_progress, report)
    onnx.save(answer.model, out)
    return ForQuark(answer.ranges, answer.origins, answer.effects, reason)


def _emitted(
    model: onnx.ModelProto, ranges: Mapping[str, Range], plan: QuantPlan, fixed: Fixed
) -> tuple[onnx.ModelProto, tuple[PassEffect, ...]]:
    """Returns a model with the pairs that Quark is expected to write: biases are measured behind them."""
    from anynpu.quantize.qdq import rounded_everywhere

    return rounded_everywhere(model, ranges, plan, replace(fixed, ranges=ranges))


def for_quark(ranges: Mapping[str, Range], plan: QuantPlan) -> dict[str, tuple[float, float]]:
    """Returns the ranges that have the scales of a plan in Quark's arithmetic, which divides by all of the integers."""
    integers = np.iinfo(plan.activations)
    half = (integers.max - integers.min) / 2 if integers.min == 0 else float(integers.max)
    ends = {name: half * planned_form(limits, plan.activations, plan).scale[0] for name, limits in ranges.items()}
    return {name: (-end, end) for name, end in ends.items()}

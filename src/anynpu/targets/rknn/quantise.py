"""The one quantisation as RKNN-Toolkit2 takes it: a model with QuantizeLinear and DequantizeLinear pairs.

Its table of hybrid quantisation (MODEL.quantization.cfg) states ranges and scales too, but a range that is edited there
changes nothing, and a scale is refused ("is not allowed to be modified").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from anynpu import schema, tool
from anynpu.artifact import Artifact, PassEffect
from anynpu.quantize.fixed import NOTHING, Fixed, keep_quantisation, read_stated
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range
from anynpu.targets.base import Work
from anynpu.targets.rknn.options import RknnOptions

if TYPE_CHECKING:
    import onnx

EMITTER: Literal["rknn"] = "rknn"
LARGEST, STEPS = 127, 128
"""What the toolkit takes integers with the zero point 0 for: it reads -128 to 127, and makes -127 to 127 of them."""


@dataclass(frozen=True)
class RknnPlan(QuantPlan):
    """What the toolkit keeps of int8: 127 is out of reach of weights."""

    @property
    def weight_room(self) -> float:
        return LARGEST / (LARGEST - 1)


def quantised(
    result: Path, model: Artifact, data: Artifact, options: RknnOptions, work: Work
) -> tuple[PassEffect, ...]:
    """Writes the model with our quantisation in pairs, and what is said of it next to it; returns what passes did."""
    arguments = {"model": str(model.path), "data": str(data.path), "options": options, "out": str(result)}
    function = "anynpu.targets.rknn.quantise:write"
    answer = tool.call(function, arguments, scratch=result.parent, log=work.log, progress=work.progress)
    return tuple(schema.from_dict(PassEffect, each, "pass") for each in answer)


def write(model: str, data: str, options: RknnOptions, out: str) -> tuple[PassEffect, ...]:
    """Writes the model with its pairs, and returns what passes did to it (runs in a child process)."""
    import onnx
    from onnx import numpy_helper

    from anynpu.quantize.qdq import Dialect, but_before_rectifiers, prepare, with_pairs
    from anynpu.source.onnx_file import read
    from anynpu.targets.data import dataset
    from anynpu.targets.quantising import keep_calibration
    from anynpu.targets.rknn.prepare import prepared

    source, _ = prepared(read(Artifact.open(Path(model)).main))
    source = prepare(source)
    stated = read_stated(options.quantisation, EMITTER)
    if stated is not None:
        results = {name for node in source.graph.node for name in node.output}
        stated.chosen(results, "int8", "-O quantize= chooses the numbers of all")
    plan = RknnPlan(
        weights="per-channel" if options.method == "channel" else "per-tensor",
        method=options.ranges,
        equalize=options.equalize,
        bias_correction=options.bias_correction,
        quantisation=options.quantisation,
    )
    effects: list[PassEffect] = []
    report, keep = (partial(function, result=Path(out)) for function in (keep_calibration, keep_quantisation))
    dialect = Dialect(EMITTER, _emitted, but_before_rectifiers)
    samples = dataset(Path(data))
    pairs = with_pairs(source, samples, plan, dialect, tool.report_progress, report, NOTHING, effects, keep)
    for tensor in pairs.graph.initializer if stated is not None else ():
        assert stated is not None
        name = tensor.name.removesuffix("_quantized")
        form = stated.quantisation.tensors.get(name)
        integers = numpy_helper.to_array(tensor)
        if form is not None and form.scale and integers.dtype == np.int8 and integers.max(initial=0) == LARGEST:
            words = f"some weights are stored as {LARGEST}, which RKNN-Toolkit2 makes {LARGEST - 1}"
            larger = f"choose one that is {LARGEST / (LARGEST - 1):.4f} times as large"
            raise stated.error(f"{name}.scale", words, larger)
    onnx.save(as_read(pairs), out)
    return tuple(effects)


def _emitted(
    model: onnx.ModelProto, ranges: Mapping[str, Range], plan: QuantPlan, fixed: Fixed
) -> tuple[onnx.ModelProto, tuple[PassEffect, ...]]:
    """Returns a model with pairs and all of its rectifiers: the toolkit joins a convolution with the sum behind it, and
    rounds neither to integers that would end where the rectifier does."""
    from anynpu.quantize.qdq import rounded_everywhere

    return rounded_everywhere(model, ranges, plan, fixed, keep_rectifiers=True)


def as_read(pairs: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model that the toolkit reads as `pairs`.

    RKNN-Toolkit2 2.5.0 takes integers with the zero point 0 for the whole range of int8, -128 to 127 steps, makes that
    range symmetric, and rounds stored integers again to the scale that follows, 128/127 of the one that was written.
    """
    from onnx import TensorProto, numpy_helper

    from anynpu.graph.fold import copied

    result = copied(pairs)
    stored = {tensor.name: tensor for tensor in result.graph.initializer}
    finer = set[str]()
    for node in (node for node in result.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")):
        values, scale, zero = (stored.get(name) for name in node.input)
        if scale is None or zero is None or zero.data_type != TensorProto.INT8 or numpy_helper.to_array(zero).any():
            continue
        if values is not None:
            integers = np.rint(numpy_helper.to_array(values) * (STEPS / LARGEST)).clip(-STEPS, LARGEST)
            values.CopyFrom(numpy_helper.from_array(integers.astype(np.int8), values.name))
        if scale.name not in finer:
            written = numpy_helper.to_array(scale).astype(np.float64) * (LARGEST / STEPS)
            scale.CopyFrom(numpy_helper.from_array(written.astype(np.float32), scale.name))
            finer.add(scale.name)
    return result

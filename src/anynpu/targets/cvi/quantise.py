"""The one quantisation as TPU-MLIR takes it: the float model with its repairs, and ranges in its table of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from anynpu import tool
from anynpu.artifact import Artifact, PassEffect
from anynpu.quantize.fixed import form_of
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range, quantization_for
from anynpu.records.quantisation import OperatorForm, Origin, Quantisation, TensorForm
from anynpu.targets.cvi.made import DTYPES
from anynpu.targets.cvi.mlir import Result
from anynpu.targets.cvi.options import CviOptions
from anynpu.tensors import Quantization

EMITTER: Literal["cvi"] = "cvi"
HALF = {"bf16": "bfloat16", "f16": "float16"}


@dataclass(frozen=True)
class ForTable:
    """The ranges of a model's tensors, where they come from, and what passes did to the model."""

    ranges: Mapping[str, Range]
    origins: Mapping[str, Origin]
    passes: tuple[PassEffect, ...]


@dataclass(frozen=True)
class TpuPlan(QuantPlan):
    """What TPU-MLIR does: dense layers have one scale for all of their weights."""

    zero_points: bool = False
    """Whether activations have them; those of BM chips may."""

    def is_symmetric(self, dtype: str) -> bool:
        return not self.zero_points

    def scale_for_each(self, dense: bool) -> bool:
        return not dense


def write(model: str, data: str, options: CviOptions, out: str) -> ForTable:
    """Writes the float model with its repairs, and returns its ranges (runs in a child process)."""
    import onnx

    from anynpu.quantize.qdq import Dialect, but_before_rectifiers, prepare, rounded_everywhere, settle
    from anynpu.source.onnx_file import read
    from anynpu.targets.data import dataset
    from anynpu.targets.quantising import keep_calibration

    report = partial(keep_calibration, result=Path(out))
    dialect = Dialect(EMITTER, rounded_everywhere, but_before_rectifiers)
    source = prepare(read(Artifact.open(Path(model)).main))
    plan = TpuPlan(
        method=options.method,
        equalize=options.equalize,
        bias_correction=options.bias_correction,
        quantisation=options.quantisation,
        zero_points=options.asymmetric,
    )
    settled = settle(source, dataset(Path(data)), plan, dialect, tool.report_progress, report)
    onnx.save(settled.model, out)
    return ForTable(settled.ranges, settled.origins, settled.effects)


def plain_name(name: str, known: Mapping[str, object]) -> str | None:
    """Returns the tensor of the model that one of TPU-MLIR's stands for: it has the same name, or that of the operator
    behind it; None where TPU-MLIR put it in itself."""
    return next((each for each in (name, name.rpartition("_")[0]) if each in known), None)


def row(name: str, limits: Range, options: CviOptions) -> str:
    """Returns the line of the table for a tensor: the threshold of integers without a zero point, and the range."""
    threshold = quantization_for(limits, "int8", True).scale[0] * 127
    low, high = (limits.min, limits.max) if options.asymmetric else (min(limits.min, 0.0), max(limits.max, 0.0))
    return f"{name} {threshold:.9g} {low:.9g} {high:.9g}"


def stored(results: Iterable[Result], table: ForTable, options: CviOptions) -> Quantisation:
    """Returns the quantisation that TPU-MLIR compiled, by the names of the model's own tensors."""
    tensors: dict[str, TensorForm] = {}
    operators: dict[str, OperatorForm] = {}
    for result in results:
        name = plain_name(result.name, table.ranges) or result.name
        dtype = HALF.get(result.dtype) or DTYPES.get(result.dtype, "float32")
        operators[name] = OperatorForm(kind=result.kind, computes=dtype)
        if result.scale is None:
            tensors[name] = TensorForm(dtype=dtype)
            continue
        form, limits = Quantization((result.scale,), (result.zero_point,)), table.ranges.get(name)
        own = None if limits is None else quantization_for(limits, dtype, not options.asymmetric)
        if own is None or own.zero_point != form.zero_point or not np.allclose(own.scale, form.scale, 1e-5, 0):
            tensors[name] = form_of(dtype, form, None, "tied")
        else:
            tensors[name] = form_of(dtype, form, limits, table.origins.get(name, "measured"))
    return Quantisation(emitter=EMITTER, tensors=tensors, operators=operators)

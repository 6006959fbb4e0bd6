"""TFLite emitter: our ranges and plan decide, the writer that is given makes the integers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.artifact import PassEffect
from anynpu.errors import ConfigError
from anynpu.quantize.adequacy import SampleLimits, calibration
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.followers import Follower
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Progress, Range, collect
from anynpu.quantize.tflite_passes import FloatFile, Smoother, levelled, rounded, runner
from anynpu.runtime.tflite_file import (
    border_names,
    float_operators,
    operator_counts,
    pack_model,
    read_specs,
    shared_model,
)
from anynpu.tensors import Array, TensorSpec, by_name, relayout

__all__ = ["in_layout", "quantize_file", "read_specs"]

Figures = dict[str, Any]
Writer = Callable[[bytes, Mapping[str, Range], QuantPlan], bytes]
Finder = Callable[[bytes], Mapping[str, Follower]]


def in_layout(data: Dataset, given: Sequence[TensorSpec], wanted: Sequence[TensorSpec]) -> Dataset:
    """Returns the data with the axes of each input moved from the layout of `given` to that of `wanted`."""
    old, new = by_name(given), by_name(wanted)
    moved = {
        name: _whole(relayout(array, old[name].layout, new[name].layout), new[name])
        for name, array in data.inputs.items()
    }
    return Dataset(moved, data.labels, data.origin, data.random)


def _whole(array: Array, spec: TensorSpec) -> Array:
    """Returns integers in the input's type: TFLite has 32 bits where ONNX has 64."""
    if array.dtype.kind not in "iu" or spec.quantization is not None or spec.dtype not in ("int32", "int64"):
        return array
    limits = np.iinfo(spec.dtype)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        raise ConfigError(f"input {spec.name} became {spec.dtype} in TFLite, the data has values outside of it")
    return array.astype(spec.dtype)


def quantize_file(
    float_path: Path,
    data: Dataset,
    plan: QuantPlan,
    out: Path,
    write: Writer,
    progress: Progress | None = None,
    followers: Finder | None = None,
    smooth: Smoother | None = None,
    fixed: Mapping[str, Range] | None = None,
    in_float: Collection[str] = (),
) -> Figures:
    """Writes the quantised .tflite of a float one and returns its figures; `data` is in the layout of the file.

    `write` makes the integers of a float file, ranges and plan. `followers` finds the functions behind the tensors of a
    float file, by which ranges are chosen; `smooth` changes one so that the channels around its normalisations are
    equally loud. `fixed` are ranges that training ended with: they hold, and the weights stay as they are. `in_float`
    are results of operators that the plan leaves in floating point.

    Operators that stay in floating point are named in the figures, and the factors of the channels
    that were equalised, by the tensor of the float file: inner values of the two files differ by them. `calibration` is
    what the samples say of their ranges.
    """
    if plan.activations == "uint8":
        raise ConfigError("TFLite has no uint8 activations: its kernels are int8 or int16", "choose int8")
    original = float_path.read_bytes()
    model = shared_model(original, str(float_path))
    started, effects = time.perf_counter(), tuple[PassEffect, ...]()
    if plan.activations == "float32":
        return _written(pack_model(model), model, out, plan, data, {})
    _check_inputs(float_path, data)
    file = FloatFile(original)
    # At 16 bits activations lose next to nothing, and one weight scale for all channels would pay for it.
    if plan.equalize and plan.bits == 8 and plan.weights == "per-channel" and fixed is None:
        file, effects = levelled(file, data, smooth)
    observed = SampleLimits()
    ranges = file_ranges(file.content, data, plan, progress, followers, observed) | dict(fixed or {})
    if fixed is None:
        file, more = rounded(file, data, plan, ranges, in_float)
        effects = (*effects, *more)
    calibrated = time.perf_counter()
    content = write(file.content, ranges, plan)
    seconds = {"calibrate": calibrated - started, "quantize": time.perf_counter() - calibrated}
    return _written(content, shared_model(content), out, plan, data, seconds) | {
        "equalized": dict(file.factors),
        "calibration": calibration(observed, ranges, data, file.factors),
        "passes": effects,
    }


def _written(
    content: bytes, model: Any, out: Path, plan: QuantPlan, data: Dataset, seconds: dict[str, float]
) -> Figures:
    out.write_bytes(content)
    operators = operator_counts(model)
    return {
        "plan": plan.to_json(),
        "samples": data.count,
        "random_data": data.random,
        "operators": operators,
        "float_operators": float_operators(model),
        "conversions": operators.get("QUANTIZE", 0) + operators.get("DEQUANTIZE", 0),
        "bytes": len(content),
        "seconds": seconds,
    }


def _check_inputs(path: Path, data: Dataset) -> None:
    inputs, _ = read_specs(path)
    if {spec.name for spec in inputs} != set(data.inputs):
        raise ConfigError(f"the data holds {sorted(data.inputs)}, {path.name} takes {sorted(by_name(inputs))}")
    for spec in inputs:
        got = data.inputs[spec.name].shape[1:]
        if got != spec.shape[1:]:
            raise ConfigError(
                f"input {spec.name} of {path.name} has shape {list(spec.shape[1:])}, the data {list(got)}",
                "the axes seem to be in another order: bring the data into the file's layout"
                if sorted(got) == sorted(spec.shape[1:])
                else "",
            )


def file_ranges(
    content: bytes,
    data: Dataset,
    plan: QuantPlan,
    progress: Progress | None = None,
    followers: Finder | None = None,
    observed: SampleLimits | None = None,
) -> dict[str, Range]:
    """Returns the range of every activation of a float .tflite file over the data."""
    whole = border_names(shared_model(content))[1]
    behind = followers(content) if followers is not None else {}
    run, how = runner(content, reuse=True), (plan.method, plan.percentile, plan.bits, plan.symmetric)
    return collect(run, data, *how, progress, whole, behind, observed)

"""TFLite emitter: from a float .tflite file, samples and a plan to the file of integers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.artifact import PassEffect
from anynpu.errors import ConfigError
from anynpu.lowering.emit import integer_graph
from anynpu.lowering.graph import Graph
from anynpu.lowering.levels import all_arguments
from anynpu.lowering.net import LoweredForm
from anynpu.lowering.pieces import IntegerPieces
from anynpu.lowering.quantise import with_shorter_rows
from anynpu.lowering.read import from_bytes
from anynpu.lowering.widen import around, chosen_wide
from anynpu.lowering.write import to_model
from anynpu.quantize.adequacy import calibration
from anynpu.quantize.averages import averages
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fixed import NOTHING, Fixed, digest_of, keep_quantisation, read_stated
from anynpu.quantize.functions import followers
from anynpu.quantize.headroom import with_room
from anynpu.quantize.measured import Place, measured
from anynpu.quantize.most_samples import kept_by_most
from anynpu.quantize.padding import find_padding
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Progress, Range
from anynpu.quantize.repairs import rounded
from anynpu.quantize.sightings import calibrated
from anynpu.quantize.sketch import Sketch
from anynpu.records.quantisation import Origin, Quantisation
from anynpu.runtime.tflite_file import (
    float_operators,
    operator_counts,
    pack_model,
    read_specs,
    shared_model,
    specs_of,
)
from anynpu.tensors import Array, TensorSpec, by_name, seen_as

__all__ = ["in_layout", "quantize_file", "read_specs"]

Figures = dict[str, Any]


def in_layout(data: Dataset, specs: Sequence[TensorSpec], wanted: Sequence[TensorSpec]) -> Dataset:
    """Returns the data with the axes of each input moved from the layout of `specs` to that of `wanted`."""
    old, new = by_name(specs), by_name(wanted)
    moved = {
        name: _whole(seen_as(array, old[name].layout, new[name].layout), new[name])
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
    tables: bool = False,
    progress: Progress | None = None,
    fixed: Fixed = NOTHING,
    as_ramps: bool = False,
) -> Figures:
    """Writes the quantised .tflite of a float one, and its quantisation next to it, and returns its figures; `data` is
    in the layout of the file.

    With `tables`, functions that TFLite-Micro has no integer kernel for are read from tables; `as_ramps` is for NPUs
    that read none. What is `fixed` holds. The figures name operators that stay in floating point, and the factors of
    channels that were equalised, by the tensor of the float file. `calibration` is what the samples say of ranges,
    `borders` are the inputs and outputs of the file.
    """
    if plan.activations in ("uint8", "uint16"):
        raise ConfigError(f"TFLite has no {plan.activations} activations", "its kernels are int8 or int16")
    original = float_path.read_bytes()
    model = shared_model(original, str(float_path))
    started = time.perf_counter()
    if plan.activations == "float32":
        return _written(model, out, plan, data, {})
    _check_inputs(float_path, data)
    stated = read_stated(plan.quantisation, "tflite")
    form = LoweredForm(from_bytes(original, float_path.name))
    data = replace(data, padding=find_padding(form, data.inputs))
    # At 16 bits activations lose next to nothing, and one weight scale for all channels would pay for it.
    level = plan.equalize and plan.bits == 8 and plan.weights == "per-channel" and fixed.repaired
    first = calibrated(form, data, plan, level, between_layers=True, progress=progress)
    form, effects, observed, brought = first.form, first.effects, first.observed, fixed
    net = form.net()
    fixed = stated.over(fixed, net, plan) if stated is not None else fixed
    behind = followers(net)
    kept = kept_by_most(net, first.ranges, observed, plan, around(form.graph, plan.float_tensors))
    observed_ranges = with_shorter_rows(form.graph, with_room(net, kept, plan), plan)
    ranges = observed_ranges | dict(fixed.ranges)
    origins: dict[str, Origin] = dict.fromkeys(behind, "function") if plan.method == "auto" else {}
    origins |= fixed.origins
    if stated is not None:
        automatic = integer_graph(form.graph, observed_ranges | dict(brought.ranges), plan, tables, brought)[1]
        plan = stated.planned(plan, {name: each.dtype for name, each in automatic.tensors.items()})
    ranged = time.perf_counter()
    emitted = partial(integer_graph, ranges=ranges, plan=plan, tables=tables, fixed=fixed, as_ramps=as_ramps)
    if fixed.repaired:
        form, more = _repaired(form, data, plan, ranges, emitted, first.sketch)
        effects = (*effects, *more)
    graph, quantisation = emitted(form.graph, origins=origins)
    quantisation = replace(quantisation, equalized=digest_of(form.factors))
    if stated is not None:
        stated.check(quantisation, automatic)
    keep_quantisation(quantisation, out)
    seconds = {"calibrate": ranged - started, "quantize": time.perf_counter() - ranged}
    return _written(to_model(graph), out, plan, data, seconds) | {
        "equalized": dict(form.factors),
        "calibration": calibration(observed, ranges | observed_ranges, data, form.factors),
        "passes": effects,
    }


def _repaired(
    form: LoweredForm,
    data: Dataset,
    plan: QuantPlan,
    ranges: Mapping[str, Range],
    emitted: Callable[[Graph], tuple[Graph, Quantisation]],
    seen: Sketch | None,
) -> tuple[LoweredForm, tuple[PassEffect, ...]]:
    """Returns the float graph with weights and biases that make up for rounding, and what each pass did."""
    # What is named as wide has 16 bits: what 8 would take from it is not its loss.
    in_float = around(form.graph, plan.float_tensors) | chosen_wide(form.graph, plan.wide_tensors)
    in_float |= all_arguments(form.graph)
    exact = averages(form, data, plan, ranges, in_float, seen) if plan.bias_correction else None
    changed, effects = rounded(form, data, plan, ranges, in_float, exact)

    def pieces(chosen: Sequence[Place], samples: Iterable[dict[str, Array]]) -> IntegerPieces:
        return IntegerPieces(emitted(changed.graph)[0], chosen, samples)

    if exact is None:
        return changed, effects
    result, more = measured(changed, exact.targets, pieces, data, in_float)
    return result, (*effects, *more)


def _written(model: Any, out: Path, plan: QuantPlan, data: Dataset, seconds: dict[str, float]) -> Figures:
    content = pack_model(model)
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
        "borders": specs_of(model),
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

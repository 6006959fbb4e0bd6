"""QDQ ONNX emitter: our ranges and plan, written by onnxruntime's own quantiser.

Inputs and outputs stay float in a QDQ model, whatever the plan says of them: the integers begin behind the first
QuantizeLinear and end before the last DequantizeLinear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from anynpu.artifact import PassEffect
from anynpu.errors import ToolFailed
from anynpu.graph import passes
from anynpu.graph.fold import copied
from anynpu.graph.passes import Pass
from anynpu.quantize.adequacy import SampleLimits, calibration
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.functions import followers
from anynpu.quantize.onnx_net import OnnxForm, attribute, net_of, runner
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Progress, Range, collect
from anynpu.quantize.repairs import levelled, rounded
from anynpu.quantize.silu import is_silu, merge_silu
from anynpu.quantize.weights import symmetric_scales
from anynpu.quantize.whole import left_in_float, whole_operators, without_rounding
from anynpu.records.calibration import Calibration

# Per-channel QuantizeLinear begins here.
_OPSET = 13
# Activations that onnxruntime runs together with the operator before them.
_FUSED = ("Relu", "Clip")
_BORDER_OPERATORS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Held:
    """What training ended with, by tensor: forms of activations, and bits, scales and axis of weights."""

    activations: Mapping[str, tuple[float, int]]
    """Scale and zero point."""
    weights: Mapping[str, tuple[int, tuple[float, ...], int | None]]


def write_qdq(
    model: onnx.ModelProto,
    data: Dataset,
    plan: QuantPlan,
    progress: Progress | None = None,
    report: Callable[[Calibration], None] | None = None,
    held: Held | None = None,
    effects: list[PassEffect] | None = None,
) -> onnx.ModelProto:
    """Returns the model with QuantizeLinear and DequantizeLinear pairs that carry our ranges; `report` takes what the
    samples say of them, `effects` what each pass did, and what training `held` stays as it is."""
    prepared = prepare(model)
    if plan.activations == "float32":
        return prepared
    form, done = OnnxForm(prepared), tuple[PassEffect, ...]()
    if plan.equalize and plan.bits == 8 and held is None:
        form, done = levelled(form, data, between_layers=False)
    graph = form.model.graph
    whole, floating = whole_operators(graph), left_in_float(graph, plan.float_tensors)
    unrounded = whole.unrounded | floating.unrounded
    observed = SampleLimits()
    ranges = model_ranges(form.model, data, plan, progress, observed)
    plan.check_tensors(ranges)
    if report is not None:
        report(calibration(observed, ranges, data))

    if held is None:
        form, changes = rounded(form, data, plan, ranges)
        done = (*done, *changes)
    fusing = (
        Pass("silu", "x * sigmoid(x) is rounded once, at its end", merge_silu, keeps_results=False),
        Pass(
            "whole-operators",
            "normalisations, softmax and functions are not rounded inside",
            lambda given: without_rounding(given, unrounded),
            keeps_results=False,
        ),
    )
    quantised, changes = passes.run(fusing, _quantized(form.model, ranges, plan, whole.nodes | floating.nodes, held))
    if effects is not None:
        effects += [*done, *changes]
    try:
        onnx.checker.check_model(quantised)
    except onnx.checker.ValidationError as error:
        raise ToolFailed(f"onnxruntime's quantiser wrote a model that is not valid: {error}") from error
    return quantised


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy that the quantiser can take: a recent opset, known types, a name on every node."""
    copy = copied(model)
    opset = next((entry.version for entry in copy.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < _OPSET:
        copy = onnx.version_converter.convert_version(copy, _OPSET)
    taken = {node.name for node in copy.graph.node}
    for number, node in enumerate(copy.graph.node):
        if not node.name:
            node.name = next(n for n in (f"{node.op_type}_{number}{'_' * i}" for i in range(99)) if n not in taken)
            taken.add(node.name)
    _store_constants(copy.graph)
    _flatten_biases(copy.graph)
    return onnx.shape_inference.infer_shapes(copy, data_prop=True)


def _store_constants(graph: onnx.GraphProto) -> None:
    """Turns Constant nodes into initializers: the quantiser takes only these for weights."""
    for node in [node for node in graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]:
        tensor = graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        graph.node.remove(node)


def _flatten_biases(graph: onnx.GraphProto) -> None:
    """Gives a Gemm a bias with one number for each column, whatever shape its own is broadcast from: the quantiser
    takes no other."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        bias = stored.get(node.input[2]) if node.op_type == "Gemm" and len(node.input) > 2 else None
        weights = stored.get(node.input[1]) if bias is not None else None
        if bias is None or weights is None or math.prod(bias.dims[:-1]) != 1:
            continue
        columns = weights.dims[0 if attribute(node, "transB", 0) else 1]
        if list(bias.dims) != [columns]:
            values = np.broadcast_to(onnx.numpy_helper.to_array(bias).reshape(-1), (columns,))
            node.input[2] = f"{node.name}/bias"
            graph.initializer.append(onnx.numpy_helper.from_array(values, node.input[2]))


def model_ranges(
    model: onnx.ModelProto,
    data: Dataset,
    plan: QuantPlan,
    progress: Progress | None = None,
    observed: SampleLimits | None = None,
) -> dict[str, Range]:
    """Returns the range of every floating-point activation of the model over the data."""
    whole = {value.name for value in model.graph.output}
    how = plan.method, plan.percentile, plan.bits, plan.symmetric
    return collect(runner(model), data, *how, progress, whole, followers(net_of(model.graph)), observed)


def _quantized(
    model: onnx.ModelProto,
    ranges: Mapping[str, Range],
    plan: QuantPlan,
    left_out: Collection[str],
    held: Held | None = None,
) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationMethod, QuantType
    from onnxruntime.quantization.calibrate import TensorData, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    # onnxruntime drops a rectifier and lets the lowest code clip instead, which is zero only where the range is not.
    tops = {name: r.max if r.min or r.max else 1.0 for name, r in ranges.items()}
    limits = {
        name: TensorData(lowest=np.array(r.min, np.float32), highest=np.array(tops[name], np.float32))
        for name, r in ranges.items()
    }
    types = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "int16": QuantType.QInt16}
    quantizer = QDQQuantizer(
        model,
        per_channel=plan.weights == "per-channel",
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=types[plan.activations],
        tensors_range=TensorsData(CalibrationMethod.MinMax, limits),
        nodes_to_quantize=[],
        nodes_to_exclude=sorted(left_out),
        op_types_to_quantize=_quantizable(),
        extra_options={
            "ActivationSymmetric": plan.symmetric,
            "WeightSymmetric": True,
            "TensorQuantOverrides": _overrides(model, plan, held),
        },
    )
    try:
        quantizer.quantize_model()
        quantizer.model.topological_sort()
    except Exception as error:  # the quantiser raises whatever it meets
        lines = str(error).splitlines() or [type(error).__name__]
        raise ToolFailed(f"onnxruntime cannot quantise the model: {lines[0]}", last_lines=lines[-20:]) from error
    return without_leftovers(quantizer.model.model)


def _overrides(model: onnx.ModelProto, plan: QuantPlan, held: Held | None) -> dict[str, list[dict[str, Any]]]:
    """Returns the forms that onnxruntime's quantiser is not to find itself: trained ones, weights of four bits, and
    activations of sixteen beside those of eight."""
    from onnxruntime.quantization import QuantType

    kinds = {4: QuantType.QInt4, 8: QuantType.QInt8}
    stored = {tensor.name for tensor in model.graph.initializer}
    # onnxruntime's kernels take one scale for what stands first, such as the stored query of an attention pool.
    first = [node.input[0] for node in model.graph.node if node.op_type == "MatMul" and node.input[0] in stored]
    forms: dict[str, list[dict[str, Any]]] = {
        name: [{"quant_type": QuantType.QInt8, "symmetric": True}] for name in first
    }
    weights = held.weights if held is not None else _half_byte_weights(model, plan)
    for name, (bits, scales, axis) in weights.items():
        zero = {"zero_point": np.array(0, np.int8), "quant_type": kinds[bits]}
        axes = {} if axis is None else {"axis": axis}
        forms[name] = [{"scale": np.array(scale, np.float32), **zero, **axes} for scale in scales]
    for name, (scale, point) in (held.activations if held is not None else {}).items():
        forms[name] = [{"scale": np.array(scale, np.float32), "zero_point": np.array(point, plan.activations)}]
    for name in plan.wide_tensors if plan.bits == 8 else ():
        forms[name] = [{"quant_type": QuantType.QInt16}]  # not symmetric: it drops rectifiers
    return forms


def _half_byte_weights(model: onnx.ModelProto, plan: QuantPlan) -> dict[str, tuple[int, tuple[float, ...], int | None]]:
    """Returns the weights that a plan stores in four bits, each with its scales and their axis."""
    if plan.weight_bits == 8:
        return {}
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    found: dict[str, tuple[int, tuple[float, ...], int | None]] = {}
    for node in model.graph.node:
        if node.op_type not in ("Conv", "Gemm") or node.input[1] not in stored or node.input[0] in stored:
            continue
        axis = 1 if node.op_type == "Gemm" and not attribute(node, "transB", 0) else 0
        values = onnx.numpy_helper.to_array(stored[node.input[1]])
        along = axis if plan.weights == "per-channel" else None
        scales = symmetric_scales(values, along, plan.weight_bits)
        found[node.input[1]] = plan.weight_bits, tuple(scales.tolist()), along
    return found


def _quantizable() -> list[str]:
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    # Sorted: a set would put the nodes of two runs in different order.
    return sorted({*QDQRegistry, *QLinearOpsRegistry})


def without_leftovers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model without the constants that removed activations leave behind."""
    used = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    for node in [node for node in model.graph.node if node.op_type == "Constant" and not used & {*node.output}]:
        model.graph.node.remove(node)
    return model


def float_operators(model: onnx.ModelProto) -> list[dict[str, str]]:
    """Returns every operator of a QDQ model that has no integer form or does not stand between the pairs."""
    known = _quantizable()
    made_by = {name: node for node in model.graph.node for name in node.output}
    used_by: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            used_by.setdefault(name, []).append(node)
    found = []
    for node in model.graph.node:
        if node.op_type in (*_BORDER_OPERATORS, "Constant"):
            continue
        between = _takes_integers(node, made_by) and _gives_integers(node, used_by)
        between = between or is_silu(node, used_by.get(node.output[0], []))
        if node.op_type not in known or not between:
            found.append({"operator": node.op_type, "tensor": node.output[0]})
    return found


def _takes_integers(node: onnx.NodeProto, made_by: Mapping[str, onnx.NodeProto]) -> bool:
    maker = made_by.get(node.input[0]) if node.input else None
    if maker is not None and node.op_type in _FUSED:
        return maker.op_type == "DequantizeLinear" or _takes_integers(maker, made_by)
    return maker is not None and maker.op_type == "DequantizeLinear"


def _gives_integers(node: onnx.NodeProto, used_by: Mapping[str, list[onnx.NodeProto]]) -> bool:
    users = [user for name in node.output for user in used_by.get(name, [])]
    return bool(users) and all(
        user.op_type == "QuantizeLinear" or (user.op_type in _FUSED and _gives_integers(user, used_by))
        for user in users
    )

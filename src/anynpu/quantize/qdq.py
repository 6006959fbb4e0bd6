"""QDQ ONNX emitter: our ranges and plan, written by onnxruntime's own quantiser.

Inputs and outputs stay float in a QDQ model, whatever the plan says of them: the integers begin behind the first
QuantizeLinear and end before the last DequantizeLinear.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from anynpu.artifact import PassEffect
from anynpu.errors import ToolFailed
from anynpu.graph import passes
from anynpu.graph.agreement import executed, spread
from anynpu.graph.fold import copied
from anynpu.graph.passes import Pass
from anynpu.quantize.adequacy import SampleLimits, calibration
from anynpu.quantize.bias import ChannelMeans, channel_means, lost_mean, rounding_error
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fitting import FITTING_SAMPLES, Moments, Window, fitted
from anynpu.quantize.gates import level_gates
from anynpu.quantize.onnx_functions import followers
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Progress, Range, collect
from anynpu.quantize.silu import is_silu, merge_silu
from anynpu.quantize.smooth import smooth
from anynpu.quantize.weights import symmetric_scales
from anynpu.quantize.whole import Whole, left_in_float, whole_operators, without_rounding
from anynpu.records.calibration import Calibration
from anynpu.runtime.ort import open_session
from anynpu.tensors import Array

# Per-channel QuantizeLinear begins here.
_OPSET = 13
_FLOAT_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
# Activations that onnxruntime runs together with the operator before them.
_FUSED = ("Relu", "Clip")
_PLAIN_GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0.0}
PROOF_SAMPLES = 4
"""On how many samples a model whose channels were made equally loud is executed beside the one before."""
NOTHING = Whole(frozenset(), frozenset())
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
    levelled, done = NOTHING, list[PassEffect]()
    if plan.equalize and plan.bits == 8 and held is None:
        prepared, levelled, changes = _levelled(prepared, data)
        done += changes
    parts = whole_operators(prepared.graph), levelled, left_in_float(prepared.graph, plan.float_tensors)
    nodes = frozenset[str]().union(*(part.nodes for part in parts))
    unrounded = frozenset[str]().union(*(part.unrounded for part in parts))
    observed = SampleLimits()
    ranges = model_ranges(prepared, data, plan, progress, observed)
    plan.check_tensors(ranges)
    if report is not None:
        report(calibration(observed, ranges, data))

    def corrected(given: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
        inputs = weighted_inputs(given)
        means = channel_means(runner(given, inputs), data, inputs, ranges, plan)
        result = copied(given)
        return result, correct_biases(result, means, plan.weights == "per-channel", plan.weight_bits)

    if plan.rounding == "fitted" and held is None:
        fit_weights(prepared, data, plan)
    if plan.bias_correction and held is None:
        does = "biases take back what rounding takes from the mean of an output"
        prepared, changes = passes.run([Pass("bias-correction", does, corrected, keeps_results=False)], prepared)
        done += changes
    fusing = (
        Pass("silu", "x * sigmoid(x) is rounded once, at its end", merge_silu, keeps_results=False),
        Pass(
            "whole-operators",
            "normalisations, softmax and functions are not rounded inside",
            lambda given: without_rounding(given, unrounded),
            keeps_results=False,
        ),
    )
    quantised, changes = passes.run(fusing, _quantized(prepared, ranges, plan, nodes, held))
    if effects is not None:
        effects += [*done, *changes]
    try:
        onnx.checker.check_model(quantised)
    except onnx.checker.ValidationError as error:
        raise ToolFailed(f"onnxruntime's quantiser wrote a model that is not valid: {error}") from error
    return quantised


def _levelled(model: onnx.ModelProto, data: Dataset) -> tuple[onnx.ModelProto, Whole, tuple[PassEffect, ...]]:
    """Returns the model with channels equally loud where one scale serves them, what of it stands inside of gates, and
    what the passes did; it is executed beside the given one on some samples."""
    gates: list[Whole] = []

    def smoothed(given: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
        result = copied(given)
        return result, smooth(result, data)

    def levelled(given: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
        result = copied(given)
        gates.append(level_gates(result, data))
        return result, len(gates[-1].nodes) // 2

    plan = (
        Pass("smooth", "loud channels of normalisations become quieter, and the weights behind them louder", smoothed),
        Pass("level-gates", "channels of x * sigmoid(x) between convolutions become equally loud", levelled),
    )
    feeds = [data.sample(at) for at in spread(data.count, min(data.count, PROOF_SAMPLES))]
    result, effects = passes.run(plan, model, executed(feeds))
    return result, gates[-1] if effects[-1].changed else NOTHING, effects


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
        columns = weights.dims[0 if _attribute(node, "transB", 0) else 1]
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
    return collect(runner(model), data, *how, progress, whole, followers(model.graph), observed)


def runner(model: onnx.ModelProto, wanted: Collection[str] = ()) -> Callable[[dict[str, Array]], dict[str, Array]]:
    """Returns a function that gives every activation of the model for one sample, or those that are wanted."""
    # Fused operators would not give the tensors that are asked for.
    session = open_session(_with_all_outputs(model).SerializeToString(), threads=1, plain=True)
    names = [output.name for output in session.get_outputs() if not wanted or output.name in wanted]

    def run(sample: dict[str, Array]) -> dict[str, Array]:
        # Without a name, ONNX Runtime gives all outputs.
        return (dict(zip(names, session.run(names, sample), strict=True)) if names else {}) | sample

    return run


def _with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = copied(model)
    present = {value.name for value in copy.graph.output}
    made = {name for node in copy.graph.node for name in node.output}
    for value in copy.graph.value_info:
        if value.name in made - present and value.type.tensor_type.elem_type in _FLOAT_TYPES:
            copy.graph.output.append(value)
    return copy


def _weighted(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Returns the nodes with stored weights and a stored bias of their own."""
    stored = {tensor.name for tensor in model.graph.initializer}
    uses = Counter(name for node in model.graph.node for name in node.input)
    return [
        node
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm")
        and len(node.input) == 3
        and node.input[0] not in stored
        and {*node.input[1:]} <= stored
        and uses[node.input[2]] == 1
        and all(_attribute(node, name, default) == default for name, default in _PLAIN_GEMM.items())
    ]


def _attribute(node: onnx.NodeProto, name: str, default: float) -> float:
    found = next((item for item in node.attribute if item.name == name), None)
    return default if found is None else float(onnx.helper.get_attribute_value(found))


def weighted_inputs(model: onnx.ModelProto) -> dict[str, int]:
    """Returns the inputs of weighted nodes with the axis of their channels."""
    return {node.input[0]: 1 for node in _weighted(model)}


def correct_biases(model: onnx.ModelProto, means: ChannelMeans, per_channel: bool, bits: int = 8) -> int:
    """Adds to every bias what rounding will take from the mean of its output, and returns how many there are."""
    corrections = 0
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in _weighted(model):
        weights = onnx.numpy_helper.to_array(stored[node.input[1]])
        if node.op_type == "Gemm" and not _attribute(node, "transB", 0):
            weights = weights.T
        rounded = weights - rounding_error(weights, 0 if per_channel else None, bits)
        shift = lost_mean(_arranged(weights), _arranged(rounded), means, node.input[0])
        bias = stored[node.input[2]]
        values = onnx.numpy_helper.to_array(bias)
        if values.size == shift.size:
            corrected = (values + shift.reshape(values.shape)).astype(values.dtype)
            bias.CopyFrom(onnx.numpy_helper.from_array(corrected, bias.name))
            corrections += 1
    return corrections


def fit_weights(model: onnx.ModelProto, data: Dataset, plan: QuantPlan) -> None:
    """Replaces the weights of convolutions and dense layers by what is stored of them, rounded against their inputs."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    uses = Counter(name for node in model.graph.node for name in node.input)
    layers = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm") and n.input[1] in stored]
    layers = [n for n in layers if n.input[0] not in stored and uses[n.input[1]] == 1 and _fittable(n, stored)]
    moments = {node.name: Moments() for node in layers}
    run = runner(model)
    for index in range(min(data.count, FITTING_SAMPLES) if layers else 0):
        tensors = run(data.sample(index))
        for node in layers:
            if node.op_type == "Gemm":
                moments[node.name].rows(tensors[node.input[0]])
            else:
                for image in tensors[node.input[0]]:
                    moments[node.name].image(image, _window(node, stored[node.input[1]].dims))
    for node in layers:
        tensor = stored[node.input[1]]
        values = onnx.numpy_helper.to_array(tensor)
        turned = node.op_type == "Gemm" and not _attribute(node, "transB", 0)
        rows = values.T if turned else values
        scales = symmetric_scales(rows, 0 if plan.weights == "per-channel" else None, plan.weight_bits)
        found = fitted(rows.reshape(len(rows), -1), moments[node.name], scales, plan.weight_bits).reshape(rows.shape)
        back = np.ascontiguousarray((found.T if turned else found).astype(values.dtype))
        tensor.CopyFrom(onnx.numpy_helper.from_array(back, tensor.name))


def _fittable(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto]) -> bool:
    """Tells whether a layer reads its input as it is: two axes of places, pads that are stated."""
    if node.op_type == "Gemm":
        return not _attribute(node, "transA", 0)
    automatic = next((item.s for item in node.attribute if item.name == "auto_pad"), b"NOTSET")
    return len(stored[node.input[1]].dims) == 4 and automatic in (b"NOTSET", b"VALID")


def _window(node: onnx.NodeProto, dims: Sequence[int]) -> Window:
    stated = {item.name: tuple(item.ints) for item in node.attribute if item.ints}
    return Window(
        kernel=(dims[2], dims[3]),
        strides=stated.get("strides", (1, 1)),
        dilations=stated.get("dilations", (1, 1)),
        pads=stated.get("pads", (0, 0, 0, 0)),
        groups=int(_attribute(node, "group", 1)),
    )


def _arranged(weights: Array) -> Array:
    """Returns the weights as (outputs, positions, inputs)."""
    return np.moveaxis(weights.reshape(*weights.shape[:2], -1), 1, 2)


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
        axis = 1 if node.op_type == "Gemm" and not _attribute(node, "transB", 0) else 0
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

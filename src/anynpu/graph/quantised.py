"""Models that are quantised already: pairs of QuantizeLinear and DequantizeLinear are taken apart, the rest is named.

What a pair rounds is a tensor of a float model, and what it can hold is that tensor's range: a quantiser that keeps to
these ranges gives the file's own scales again.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper

from anynpu.errors import Finding, Unsupported
from anynpu.graph.fold import constant_value
from anynpu.tensors import Array

PAIR = ("QuantizeLinear", "DequantizeLinear")
DYNAMIC = frozenset(
    [
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "ConvInteger",
        "MatMulInteger",
        "MatMulIntegerToFloat",
    ]
)
# Results that are never below zero, or not where what they read is not: a pair that starts at zero cuts nothing there.
_POSITIVE = ("Relu", "Sigmoid", "Softmax", "HardSigmoid", "Abs", "Exp", "Sqrt")
_STAYS_POSITIVE = frozenset(
    [
        "AveragePool",
        "Concat",
        "Flatten",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "Identity",
        "MaxPool",
        "ReduceMean",
        "Reshape",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ]
)
FLOAT_MODEL = "give the float model that the file was made from"


def has_pairs(model: ModelProto) -> bool:
    """Tells whether a model holds stored scales."""
    return any(node.op_type in PAIR for node in model.graph.node)


def refuse_integers(model: ModelProto) -> None:
    """Raises Unsupported for operators that compute on integers themselves, or find their scales at run time."""
    names: dict[str, str] = {}
    for node in model.graph.node:
        names.setdefault(node.op_type, node.name or node.output[0])
    dynamic = [kind for kind in names if kind in DYNAMIC]
    if dynamic:
        raise Unsupported(
            f"the model is quantised dynamically: {dynamic[0]} ({names[dynamic[0]]}) finds scales at run time, "
            "which integer hardware does not",
            [Finding("dynamic-quantisation", f"{kind} finds scales at run time", names[kind]) for kind in dynamic],
            FLOAT_MODEL,
        )
    integer = [kind for kind in names if kind.startswith("QLinear") or kind in ("QGemm", "QAttention")]
    if integer:
        raise Unsupported(
            f"the model is quantised already, in operators on integers: {integer[0]} ({names[integer[0]]})",
            [Finding("integer-operator", f"{kind} computes on integers", names[kind]) for kind in integer],
            f"{FLOAT_MODEL}, or write it with QuantFormat.QDQ, whose scales are taken as they are",
        )


def taken_apart(model: ModelProto) -> tuple[ModelProto, dict[str, tuple[float, float]]]:
    """Returns the float model between the pairs, and the range that each of its quantised tensors can hold."""
    constants: dict[str, Array] = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    positive: set[str] = set()
    same: dict[str, str] = {}
    held: dict[str, str] = {}
    ranges: dict[str, tuple[float, float]] = {}
    nodes: list[NodeProto] = []
    results = {value.name for value in model.graph.output}
    for original in model.graph.node:
        node = NodeProto.FromString(original.SerializeToString())
        inputs = [same.get(name, name) for name in node.input]
        del node.input[:]
        node.input.extend(inputs)
        value = constant_value(node) if node.op_type == "Constant" else None
        if value is not None:
            constants[node.output[0]] = value
        if node.op_type in PAIR and all(name in constants for name in node.input if name):
            constants[node.output[0]] = _stored(node, constants)
            continue
        if node.op_type == "QuantizeLinear" and (limits := _limits(node, constants)) is not None:
            source = node.input[0]
            if limits[0] == 0.0 and source not in positive:
                # Quantisers drop a Relu whose work the lower end of the integers does.
                cut = helper.make_node("Relu", [source], [f"{node.output[0]}/cut"], name=f"{node.output[0]}/cut")
                nodes.append(cut)
                source = cut.output[0]
                positive.add(source)
            held[node.output[0]] = source
            ranges[source] = limits
            continue
        if node.op_type == "DequantizeLinear" and node.input[0] in held:
            source = held[node.input[0]]
            if node.output[0] in results:
                nodes.append(helper.make_node("Identity", [source], [node.output[0]], name=node.name))
                ranges[node.output[0]] = ranges[source]
            else:
                same[node.output[0]] = source
            continue
        nodes.append(node)
        if node.op_type in _POSITIVE or (node.op_type in _STAYS_POSITIVE and node.input[0] in positive):
            others = [name for name in node.input[1:] if name not in constants]
            positive |= {*node.output} if {*others} <= positive else set()
    return _rebuilt(model, nodes, constants, held), ranges


def _stored(node: NodeProto, constants: Mapping[str, Array]) -> Array:
    """Returns what a QuantizeLinear or DequantizeLinear makes of a constant."""
    array, scale, *rest = (constants[name] for name in node.input if name)
    zero = rest[0] if rest else np.zeros(scale.shape, np.uint8 if array.dtype.kind == "f" else array.dtype)
    if scale.size > 1:
        axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
        if scale.ndim != 1 or scale.size != array.shape[axis]:
            name = node.name or node.output[0]
            raise Unsupported(f"{node.op_type} ({name}) has a scale for each block of values", hint=FLOAT_MODEL)
        along = [1] * array.ndim
        along[axis] = -1
        scale, zero = scale.reshape(along), zero.reshape(along)
    if node.op_type == "DequantizeLinear":
        return np.asarray((array.astype(np.float64) - zero.astype(np.float64)) * scale, np.float32)
    kind = np.iinfo(zero.dtype)
    return np.asarray(np.clip(np.rint(array / scale) + zero, kind.min, kind.max), zero.dtype)


def _limits(node: NodeProto, constants: Mapping[str, Array]) -> tuple[float, float] | None:
    """Returns the lowest and highest number that a QuantizeLinear with one scale can hold, None for another."""
    scale = constants.get(node.input[1])
    zero = constants.get(node.input[2]) if len(node.input) > 2 else np.asarray(0, np.uint8)
    if scale is None or zero is None or scale.size != 1 or zero.dtype.kind not in "iu":
        return None
    kind, step, offset = np.iinfo(zero.dtype), float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])
    return (kind.min - offset) * step, (kind.max - offset) * step


def _rebuilt(
    model: ModelProto, nodes: list[NodeProto], constants: Mapping[str, Array], held: Mapping[str, str]
) -> ModelProto:
    """Returns the model with these nodes; a node that reads the integers themselves is Unsupported."""
    direct = [node for node in nodes if {*node.input} & {*held} or node.op_type in PAIR]
    if direct:
        where = direct[0].name or direct[0].output[0]
        raise Unsupported(
            f"the model is quantised already and {direct[0].op_type} ({where}) computes on the stored integers",
            [Finding("integer-operator", f"{node.op_type} reads integers", node.name) for node in direct],
            FLOAT_MODEL,
        )
    result = ModelProto()
    result.CopyFrom(model)
    read = {name for node in nodes for name in node.input} | {value.name for value in model.graph.output}
    produced = {name for node in nodes for name in node.output}
    stored = [numpy_helper.from_array(constants[name], name) for name in sorted({*constants} & read - produced)]
    del result.graph.node[:], result.graph.initializer[:], result.graph.value_info[:]
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(stored)
    return onnx.shape_inference.infer_shapes(result)

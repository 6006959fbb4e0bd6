"""What a QDQ model holds: the quantisation in its pairs, and the operators that stand outside of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from anynpu.graph.attributes import attribute
from anynpu.quantize.fixed import form_of
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range, quantization_for
from anynpu.quantize.silu import is_silu
from anynpu.quantize.whole import BEFORE_OUTPUT
from anynpu.records.quantisation import Converted, Emitter, OperatorForm, Origin, Quantisation, TensorForm
from anynpu.tensors import Quantization

_BORDER_OPERATORS = ("QuantizeLinear", "DequantizeLinear")
# Activations that onnxruntime runs together with the operator before them.
_FUSED = ("Relu", "Clip")


def described(
    model: onnx.ModelProto,
    ranges: Mapping[str, Range],
    origins: Mapping[str, Origin],
    plan: QuantPlan,
    emitter: Emitter = "qdq",
) -> Quantisation:
    """Returns the quantisation that the pairs of a QDQ model hold; `origins` says where ranges come from that were not
    measured."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    made_by = {name: node for node in model.graph.node for name in node.output}
    weights = {
        node.input[1] for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    }
    tensors: dict[str, TensorForm] = {name: TensorForm(dtype="float32") for name in plan.float_tensors}
    again: dict[str, tuple[TensorForm, onnx.NodeProto, onnx.NodeProto]] = {}
    for node in model.graph.node:
        if node.op_type not in _BORDER_OPERATORS or node.input[1] not in stored:
            continue
        scales = numpy_helper.to_array(stored[node.input[1]]).reshape(-1).astype(float).tolist()
        axis = int(attribute(node, "axis", 1)) if len(scales) > 1 else None
        zero = stored[node.input[2]] if len(node.input) > 2 else None
        zeros = np.zeros(1, int) if zero is None else numpy_helper.to_array(zero).astype(int).reshape(-1)
        points = np.broadcast_to(zeros, len(scales)).tolist()
        form = Quantization(tuple(scales), tuple(points), axis)
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            kind = stored[node.input[0]].data_type
            dtype = _type_name(kind)
            origin: Origin = "weights" if node.output[0] in weights else "bias" if dtype == "int32" else "constant"
            tensors[node.input[0].removesuffix("_quantized")] = form_of(dtype, form, None, origin)
        elif node.op_type == "QuantizeLinear" and zero is not None:
            maker = made_by.get(node.input[0])
            first = made_by.get(maker.input[0]) if maker is not None and maker.op_type == "DequantizeLinear" else None
            name = (first or node).input[0].removesuffix(BEFORE_OUTPUT)
            dtype, limits, origin = _type_name(zero.data_type), ranges.get(name), origins.get(name, "measured")
            own = None if limits is None else quantization_for(limits, dtype, plan.symmetric, plan.power_of_two)
            if own is None or own.zero_point != form.zero_point or not np.allclose(own.scale, form.scale, 1e-5, 0):
                origin = "kernel" if maker is not None and maker.op_type in ("Softmax", "Sigmoid") else "tied"
            held = form_of(dtype, form, None if origin in ("kernel", "tied") else limits, origin)
            if first is None:
                tensors[name] = held
            else:
                again[name] = held, first, node
    left = {each["tensor"] for each in float_operators(model)}
    operators = {
        node.output[0]: OperatorForm(
            kind=node.op_type, computes="float32" if node.output[0] in left else plan.activations
        )
        for node in model.graph.node
        if node.op_type not in (*_BORDER_OPERATORS, "Constant")
    }
    converted = conversions(model, tensors, again)
    return Quantisation(emitter=emitter, tensors=tensors, operators=operators, converted=converted)


def conversions(
    model: onnx.ModelProto,
    tensors: dict[str, TensorForm],
    again: Mapping[str, tuple[TensorForm, onnx.NodeProto, onnx.NodeProto]],
) -> tuple[Converted, ...]:
    """Returns what operators read or give in another form than it is stored in.

    `again` are the tensors that are quantised twice: the second form, and both nodes. What is wide only while an
    operator computes is stored in its narrow form: `tensors` has it so afterwards.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)

    def reading(quantise: onnx.NodeProto) -> list[str]:
        behind = [each for pair in readers[quantise.output[0]] for each in readers.get(pair.output[0], ())]
        return sorted({each.output[0] for each in behind if each.op_type != "QuantizeLinear"})

    converted = []
    for name, (form, once, twice) in again.items():
        places = reading(twice)
        if tensors[name].dtype in ("int16", "uint16"):
            tensors[name], form, places = form, tensors[name], [name, *reading(once)]
        converted += [Converted(operator=place, tensor=name, form=form) for place in places]
    return tuple(converted)


def _type_name(kind: int) -> str:
    return str(onnx.TensorProto.DataType.Name(kind)).lower()


def quantizable() -> list[str]:
    """Returns the operators that onnxruntime's quantiser has an integer form for."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    # Sorted: a set would put the nodes of two runs in different order.
    return sorted({*QDQRegistry, *QLinearOpsRegistry})


def float_operators(model: onnx.ModelProto) -> list[dict[str, str]]:
    """Returns every operator of a QDQ model that has no integer form or does not stand between the pairs."""
    known = quantizable()
    made_by = {name: node for node in model.graph.node for name in node.output}
    used_by: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            used_by.setdefault(name, []).append(node)
    in_float = []
    for node in model.graph.node:
        if node.op_type in (*_BORDER_OPERATORS, "Constant"):
            continue
        between = _takes_integers(node, made_by) and _gives_integers(node, used_by)
        between = between or is_silu(node, used_by.get(node.output[0], []))
        if node.op_type not in known or not between:
            in_float.append({"operator": node.op_type, "tensor": node.output[0]})
    return in_float


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

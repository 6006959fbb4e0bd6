"""Faults planted in quantised models with the onnx package alone: weights, scales and operators that are another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from families import random_net
from onnx import numpy_helper
from sick import Samples, naive

WEIGHTED = ("Conv", "Gemm", "MatMul")
OTHER_KIND = {"Relu": "Neg", "Sigmoid": "Tanh", "Tanh": "Neg", "HardSwish": "Relu", "Add": "Sub", "Mul": "Add"}


@dataclass(frozen=True)
class Fault:
    """What was done to which operator; a tensor's own scale belongs to the operator that makes it."""

    operator: str
    what: str


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto | None:
    return next((tensor for tensor in model.graph.initializer if tensor.name == name), None)


def stored_weights(model: onnx.ModelProto, node: onnx.NodeProto) -> tuple[onnx.TensorProto, onnx.TensorProto] | None:
    """Returns the integers and the scale of an operator's weights."""
    makers = {name: each for each in model.graph.node for name in each.output}
    for name in node.input[1:2]:
        made = makers.get(name)
        if made is not None and made.op_type == "DequantizeLinear":
            values, scale = (initializer(model, each) for each in made.input[:2])
            if values is not None and scale is not None:
                return values, scale
    return None


def change(tensor: onnx.TensorProto, values: np.ndarray) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))


def swapped_rows(model: onnx.ModelProto, node: onnx.NodeProto, draw: np.random.Generator) -> str:
    held = stored_weights(model, node)
    if held is None:
        return ""
    values = numpy_helper.to_array(held[0])
    change(held[0], np.roll(values, 1, axis=0))
    return "weights rolled by one row"


def negated(model: onnx.ModelProto, node: onnx.NodeProto, draw: np.random.Generator) -> str:
    held = stored_weights(model, node)
    if held is None:
        return ""
    values = numpy_helper.to_array(held[0])
    change(held[0], np.clip(-values.astype(np.int32), -128, 127).astype(values.dtype))
    return "weights negated"


def other_scale(model: onnx.ModelProto, node: onnx.NodeProto, draw: np.random.Generator) -> str:
    held = stored_weights(model, node)
    if held is None:
        return ""
    change(held[1], numpy_helper.to_array(held[1]) * np.float32(1.6))
    return "scale of the weights 1.6 times as large"


def other_result_scale(model: onnx.ModelProto, node: onnx.NodeProto, draw: np.random.Generator) -> str:
    """The integers of the result are read with another scale than they were written with."""
    behind = [each for each in model.graph.node if node.output[0] in each.input]
    if len(behind) != 1 or behind[0].op_type != "QuantizeLinear":
        return ""
    readers = [each for each in model.graph.node if behind[0].output[0] in each.input]
    scale = initializer(model, behind[0].input[1])
    if scale is None or any(each.op_type != "DequantizeLinear" for each in readers):
        return ""
    other = numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(0.6), f"{scale.name}//planted")
    model.graph.initializer.append(other)
    for each in readers:
        each.input[1] = other.name
    return "result read with 0.6 of its scale"


def other_kind(model: onnx.ModelProto, node: onnx.NodeProto, draw: np.random.Generator) -> str:
    if node.op_type not in OTHER_KIND:
        return ""
    before, node.op_type = node.op_type, OTHER_KIND[node.op_type]
    return f"{before} became {node.op_type}"


KINDS: tuple[Callable[[onnx.ModelProto, onnx.NodeProto, np.random.Generator], str], ...] = (
    *(swapped_rows, negated, other_scale, other_result_scale, other_kind),
)


def plant(model: onnx.ModelProto, seed: int) -> Iterator[tuple[onnx.ModelProto, Fault]]:
    """Yields the model with one fault, another one each time."""
    draw = np.random.default_rng(seed)
    places = [i for i, node in enumerate(model.graph.node) if not node.op_type.endswith("Linear")]
    for _ in range(40):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        node = copy.graph.node[int(draw.choice(places))]
        if what := KINDS[int(draw.integers(len(KINDS)))](copy, node, draw):
            yield copy, Fault(node.name, what)


def worst_db(model: onnx.ModelProto, other: onnx.ModelProto, data: Samples) -> float:
    """Returns the lowest SQNR of one model's output against another's over the samples."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    one, two = (
        onnxruntime.InferenceSession(each.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for each in (model, other)
    )
    rows = [{name: values[i : i + 1] for name, values in data.items()} for i in range(len(next(iter(data.values()))))]
    found = []
    for row in rows:
        wanted, got = one.run(None, row)[0].astype(np.float64), two.run(None, row)[0].astype(np.float64)
        found.append(10 * np.log10(np.sum(wanted**2) / max(np.sum((got - wanted) ** 2), 1e-30)))
    return float(min(found))


@dataclass(frozen=True)
class Case:
    """A float model, a quantised one with a fault that shows at the output, and what was done."""

    floating: onnx.ModelProto
    faulty: onnx.ModelProto
    data: Samples
    fault: Fault
    healthy_db: float
    faulty_db: float


def case(seed: int, tolerance_db: float = 20.0) -> Case | None:
    """Returns the case of a seed: the first fault that takes a healthy model below the tolerance."""
    net, data = random_net(seed)
    few = {name: values[:4] for name, values in data.items()}
    floating = net.model(data)
    quantised = naive(floating, data)
    healthy = worst_db(floating, quantised, few)
    if healthy < tolerance_db + 3:
        return None
    for faulty, fault in plant(quantised, seed):
        if (db := worst_db(floating, faulty, few)) < tolerance_db - 3:
            return Case(floating, faulty, few, fault, healthy, db)
    return None

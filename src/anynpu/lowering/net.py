"""TFLite graphs as the repairs see and change them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from anynpu.lowering.functions import kernel_of
from anynpu.lowering.graph import Graph, Operator, Tensor, free_name, pruned
from anynpu.lowering.integers import KEEPS_SCALE, WEIGHT_AXES, data_input
from anynpu.lowering.options import Conv2D, DepthwiseConv2D, Mul
from anynpu.lowering.widen import wide_operators
from anynpu.lowering.write import to_bytes
from anynpu.quantize.fitting import Window
from anynpu.quantize.net import Change, Kind, Layer, Net, Operation, Origin, Run
from anynpu.runtime.litert import DELEGATED, lent_tensor, open_interpreter
from anynpu.tensors import Array

_KINDS: Mapping[str, Kind] = {
    "ADD": "add",
    "MUL": "multiply",
    "DIV": "divide",
    "LOGISTIC": "sigmoid",
    "SOFTMAX": "softmax",
    "RSQRT": "root",
    "RELU": "rectifier",
    "RELU6": "rectifier",
    "PAD": "pad",
    "REDUCE_MAX": "largest",
}
_JOINS = {"CONCATENATION": None, "PACK": None, "PAD": 1, "RESHAPE": 1, "TRANSPOSE": 1}
"""How many inputs of an operator are its result, value for value; None stands for all."""


@dataclass(frozen=True)
class LoweredForm:
    """A float TFLite graph, and by how much the channels of its tensors are louder than in the first one."""

    graph: Graph
    factors: Mapping[str, list[float]] = field(default_factory=dict)
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def operators(self) -> Sequence[Operator]:
        return self.graph.operators

    def net(self) -> Net:
        return net_of(self.graph)

    def run(self, names: Collection[str] = ()) -> Run:
        return runner(self.graph, names, reuse=True)

    def changed(self, change: Change) -> LoweredForm:
        tensors = dict(self.graph.tensors)
        tensors |= {name: replace(tensors[name], data=values) for name, values in change.stored.items()}
        operators: list[Operator] = []
        restored: dict[str, str] = {}
        origins, before = dict(self.origins), {name: self.origins.get(name, Origin(name)) for name in change.factors}
        origins |= {name: each.louder(change.factors[name], change.axes[name]) for name, each in before.items()}
        for operator in self.graph.operators:
            inputs = list(operator.inputs)
            for place, name in enumerate(operator.inputs):
                if operator.outputs[0] not in change.restored.get(name, ()):
                    continue
                if name not in restored:
                    values, inverse = change.inverse(name), free_name(f"{name}/inverse", tensors)
                    tensors[inverse] = Tensor(inverse, values.shape, "float32", values)
                    restored[name] = free_name(f"{name}/restored", tensors)
                    tensors[restored[name]] = replace(tensors[name], name=restored[name])
                    operators.append(Operator("MUL", (name, inverse), (restored[name],), Mul()))
                    origins[restored[name]] = before[name]
                inputs[place] = restored[name]
            operators.append(replace(operator, inputs=tuple(inputs)))
        factors = {name: each.tolist() for name, each in change.factors.items()}
        graph = pruned(operators, tensors, self.graph.inputs, self.graph.outputs)
        return LoweredForm(graph, {**self.factors, **factors}, origins)


def net_of(graph: Graph) -> Net:
    """Returns a TFLite graph as the repairs see it."""
    stored = {name: tensor for name, tensor in graph.tensors.items() if tensor.data is not None}
    return Net(
        [_operation(operator, graph) for operator in graph.operators],
        frozenset(graph.outputs),
        {name: tensor.shape for name, tensor in graph.tensors.items() if tensor.data is None},
        stored.keys(),
        lambda name: np.asarray(stored[name].data),
        {
            name: np.asarray(tensor.data, np.float64).reshape(())
            for name, tensor in stored.items()
            if tensor.size == 1 and tensor.dtype == "float32"
        },
        wide_operators(graph, {}),
    )


def _operation(operator: Operator, graph: Graph) -> Operation:
    layer, fused = _layer(operator, graph), operator.activation
    result = graph.tensors[operator.outputs[0]]
    read = [graph.tensors[name] for name in operator.inputs if name and graph.constant(name) is None]
    elementwise = all(each.shape == result.shape and each.dtype == "float32" for each in (result, *read))
    return Operation(
        _KINDS.get(operator.kind, "other") if layer is None else "layer",
        operator.inputs,
        operator.outputs,
        layer,
        kernel_of(operator) if elementwise else None,
        plain=fused == "NONE",
        rectified=fused in ("RELU", "RELU6"),
        moves=data_input(operator) if operator.kind in KEEPS_SCALE else "",
        reshapes=operator.kind == "RESHAPE",
        joins=operator.inputs[: _JOINS.get(operator.kind, 0)] if fused == "NONE" else (),
    )


def _layer(operator: Operator, graph: Graph) -> Layer | None:
    """Returns the layer that an operator is: a convolution or product of something computed with stored numbers."""
    if operator.kind not in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED") or len(operator.inputs) < 2:
        return None
    source, weights, bias = (graph.tensors.get(name) for name in (*operator.inputs, "")[:3])
    if source is None or source.data is not None or weights is None or weights.data is None:
        return None
    if weights.dtype != "float32" or (bias is not None and bias.data is None):
        return None
    shape, depthwise = weights.shape, operator.kind == "DEPTHWISE_CONV_2D"
    groups = 1 if operator.kind == "FULLY_CONNECTED" else source.shape[-1] // (1 if depthwise else shape[-1])
    return Layer(
        weights.name,
        bias.name if bias is not None else "",
        shape,
        WEIGHT_AXES[operator.kind],
        0 if depthwise else len(shape) - 1,
        groups,
        dense=operator.kind == "FULLY_CONNECTED",
        window=_window(operator, source.shape, shape, groups),
    )


def _window(operator: Operator, source: Sequence[int], weights: Sequence[int], groups: int) -> Window | None:
    """Returns where a convolution reads; SAME pads more behind than before."""
    options = operator.options
    if not isinstance(options, Conv2D | DepthwiseConv2D):
        return None
    kernel, strides = (weights[1], weights[2]), (options.stride_h, options.stride_w)
    dilations = (options.dilation_h_factor, options.dilation_w_factor)
    pads = [0, 0, 0, 0]
    for axis in (0, 1) if options.padding == "SAME" else ():
        size, reach = source[1 + axis], dilations[axis] * (kernel[axis] - 1) + 1
        missing = max((-(-size // strides[axis]) - 1) * strides[axis] + reach - size, 0)
        pads[axis], pads[axis + 2] = missing // 2, missing - missing // 2
    return Window(kernel, strides, dilations, (pads[0], pads[1], pads[2], pads[3]), groups)


def runner(graph: Graph, names: Collection[str] = (), reuse: bool = False) -> Run:
    """Returns a function that gives every activation of a float graph for one sample, or those named.

    With `reuse` it lends them: the next sample overwrites the arrays, and nobody may keep them.
    """
    computed = {*graph.inputs, *graph.makers()}
    wanted = [name for name in graph.tensors if name in computed and (not names or name in names)]
    inner = tuple(name for name in wanted if name not in graph.inputs)
    # XNNPACK, which is four times as fast as the kernels without a delegate, keeps inner tensors to itself: as outputs
    # of the graph they come out of it.
    interpreter = open_interpreter(to_bytes(replace(graph, outputs=inner or graph.outputs)), DELEGATED, threads=1)
    inputs = {entry["name"]: entry["index"] for entry in interpreter.get_input_details()}
    indices = {entry["name"]: entry["index"] for entry in interpreter.get_output_details() if inner}

    def run(sample: dict[str, Array]) -> dict[str, Array]:
        for name, array in sample.items():
            interpreter.set_tensor(inputs[name], np.ascontiguousarray(array))
        interpreter.invoke()
        answers = {name: sample[name] for name in wanted if name in graph.inputs}
        for name, index in indices.items():
            lent = lent_tensor(interpreter, index)
            answers[name] = lent if reuse else lent.copy()
        return answers

    return run

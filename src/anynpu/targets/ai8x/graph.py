"""From an ONNX graph to the layers of the accelerator: what is folded, what is a layer, what has no place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto

from anynpu.errors import Finding
from anynpu.graph.fold import constant_value
from anynpu.plugins import registering
from anynpu.runtime.ai8x import Pool
from anynpu.targets.ai8x.blocks import Block, Blocks, interleaved
from anynpu.targets.ai8x.walk import Misfit, Value, Walk, chw

Handler = Callable[[Walk, NodeProto], None]
HANDLERS: dict[str, Handler] = {}


handles = registering(HANDLERS)
"""Registers what places operators of some kinds."""


def cut(model: ModelProto) -> tuple[Blocks, tuple[Finding, ...]]:
    """Returns the layers of a graph, and a finding for every operator that has no place among them."""
    walk = Walk(model)
    findings = list(walk.borders())
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = constant_value(node)
            if value is not None:
                walk.constants[node.output[0]] = value
            continue
        operands = [name for name in node.input if name and name not in walk.constants]
        if any(name not in walk.values for name in operands):
            continue  # what makes it was found to have no place already
        try:
            if not operands:
                raise Misfit("constant", "Its data are constant: fold it before the export.")
            handler = HANDLERS.get(node.op_type)
            if handler is None:
                raise Misfit("operator", "The accelerator has no such operator.")
            if node.domain not in ("", "ai.onnx"):
                raise Misfit("operator", "The operator is none of ONNX's own.")
            if walk.blocks.softmax or walk.blocks.offset:
                raise Misfit("last", "It follows what only the end of a network may have: softmax, or a constant sum.")
            handler(walk, node)
        except Misfit as misfit:
            findings.append(Finding(misfit.rule, f"{node.op_type}: {misfit}", node.name or node.output[0]))
    findings += walk.finish()
    return interleaved(walk.blocks), tuple(findings)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _pair(values: Any, default: int) -> tuple[int, int]:
    """Returns rows and columns of an attribute; a signal has one column."""
    sizes = [int(v) for v in values] if values else []
    if not sizes:
        return (default, default)
    return (sizes[0], sizes[1]) if len(sizes) > 1 else (sizes[0], 1 if default else 0)


def _pads(attributes: dict[str, Any], dims: int) -> tuple[int, int]:
    pads = [int(v) for v in attributes.get("pads", [0] * 2 * dims)]
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise Misfit("padding", "Automatic padding is not read: export with explicit padding.")
    if pads[:dims] != pads[dims:]:
        raise Misfit("padding", f"The padding {pads} differs between the two sides; the accelerator pads both alike.")
    return (pads[0], pads[1] if dims > 1 else 0)


@handles("Conv")
def _convolution(walk: Walk, node: NodeProto) -> None:
    value, attributes = walk.value(node), _attributes(node)
    weight, bias = walk.constant(node, 1), walk.constant(node, 2)
    assert weight is not None
    dims = weight.ndim - 2
    if dims not in (1, 2):
        raise Misfit("dimensions", f"A convolution over {dims} dimensions is not supported: one or two are.")
    pad, stride = _pads(attributes, dims), _pair(attributes.get("strides"), 1)
    dilation = _pair(attributes.get("dilations"), 1)
    kernel = weight if dims == 2 else weight[..., None]
    if dims == 2 and stride[0] != stride[1]:
        raise Misfit("stride", f"The stride {list(stride)} differs between rows and columns.")
    # The accelerator's own convolutions have no stride: a window leaves out what it would.
    skip = Pool("max", (1, 1), stride) if max(stride) > 1 else None
    if skip and kernel.shape[2:] == (1, 1) and value.plain and pad == (0, 0):
        value, skip = _window_of(value, skip), None
    size = [
        (n + 2 * p - d * (k - 1)) for n, p, d, k in zip(value.shape[1:], pad, dilation, kernel.shape[2:], strict=True)
    ]
    block = Block(
        _label(node),
        "conv2d" if dims == 2 else "conv1d",
        (value.layer,),
        walk.blocks.shape_of(value.layer),
        (len(weight), size[0], size[1]),
        node.output[0],
        kernel,
        np.zeros(len(weight)) if bias is None else bias,
        pool=value.pool,
        pad=pad,
        dilation=dilation,
        groups=int(attributes.get("group", 1)),
        product=node.output[0],
        own_bias=bias is not None,
        window=value.window,
        nodes=[_label(node)],
    )
    walk.add(node, block)
    if skip:
        walk.put(node, _window_of(walk.values[node.output[0]], skip))


def _window_of(value: Value, pool: Pool) -> Value:
    """Returns the value with a window to come; where one that leaves values out is to come already, they are one."""
    sides = zip(value.shape[1:], pool.size, pool.stride, strict=True)
    rows, columns = ((n - k) // s + 1 for n, k, s in sides)
    if value.pool is not None:
        first, second = value.pool.stride, pool.stride
        pool = replace(pool, stride=(first[0] * second[0], first[1] * second[1]))
    return replace(value, shape=(value.shape[0], rows, columns), pool=pool)


def _label(node: NodeProto) -> str:
    return node.name or node.output[0]


@handles("Gemm", "MatMul")
def _linear(walk: Walk, node: NodeProto) -> None:
    value, attributes = walk.value(node), _attributes(node)
    weight, bias = walk.constant(node, 1), walk.constant(node, 2)
    assert weight is not None
    if weight.ndim != 2 or attributes.get("transA", 0) or not value.flat:
        raise Misfit("matrix", "Only a vector times a constant matrix is supported (Linear on flattened data).")
    if not (node.op_type == "Gemm" and attributes.get("transB", 0)):
        weight = weight.T
    weight = weight * float(attributes.get("alpha", 1.0))
    out = len(weight)
    biases = np.zeros(out) if bias is None else np.broadcast_to(bias.reshape(-1), (out,))
    biases = biases * float(attributes.get("beta", 1.0))
    one = value.shape[1:] == (1, 1)
    if value.pool is not None and not one:
        value = walk.settle(value, node.input[0])
    before = walk.blocks.shape_of(value.layer)
    pooled = value.pool is not None
    kernel = weight[:, :, None, None] if pooled else weight
    name, operation = _label(node), "conv2d" if pooled else "linear"
    block = Block(name, operation, (value.layer,), before, (out, 1, 1), node.output[0], kernel, biases)  # type: ignore[arg-type]
    block.pool, block.window, block.flatten, block.nodes = value.pool, value.window, not one, [name]
    if attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0:
        block.product, block.own_bias = node.output[0], bias is not None and bias.size == out
    walk.add(node, block)
    walk.put(node, Value(len(walk.blocks.blocks) - 1, (out, 1, 1), flat=True))


@handles("BatchNormalization")
def _batch_norm(walk: Walk, node: NodeProto) -> None:
    block = walk.own(node)
    gamma, beta, mean, variance = (walk.constant(node, index) for index in (1, 2, 3, 4))
    if block is None or not walk.value(node).plain:
        raise Misfit("batch_norm", "A batch norm must follow the convolution or Linear layer that it is folded into.")
    assert gamma is not None and beta is not None and mean is not None and variance is not None
    if gamma.size != block.output[0]:
        raise Misfit("batch_norm", "A batch norm of single pixels, behind a flattening, is not folded.")
    factor = gamma / np.sqrt(variance + float(_attributes(node).get("epsilon", 1e-5)))
    assert block.weight is not None and block.bias is not None
    block.weight = block.weight * factor.reshape(-1, *[1] * (block.weight.ndim - 1))
    block.bias = block.bias * factor + (beta - mean * factor)
    block.product, block.own_bias = "", False
    _absorb(walk, node, block)


def _absorb(walk: Walk, node: NodeProto, block: Block) -> None:
    """Makes the node part of the layer before it."""
    block.tensor = node.output[0]
    block.nodes.append(_label(node))
    data = next(i for i, name in enumerate(node.input) if name and name not in walk.constants)
    walk.put(node, walk.value(node, data))


@handles("Relu", "Clip", "Abs")
def _activation(walk: Walk, node: NodeProto) -> None:
    value, block = walk.value(node), walk.own(node) or walk.summed(node)
    if block is None or (value.pool is not None and value.pool.kind != "max"):
        raise Misfit("activation", "An activation must follow the convolution or Linear layer that it belongs to.")
    if node.op_type == "Clip":
        low, high = walk.constant(node, 1), walk.constant(node, 2)
        if low is None or float(low) != 0.0:
            raise Misfit("activation", "Only ReLU, its bounded form from zero on, and Abs are supported.")
        block.ceiling = None if high is None or not np.isfinite(high) else float(high)
    block.activation = "abs" if node.op_type == "Abs" else "relu"
    if not value.plain and block.activation == "abs":
        raise Misfit("activation", "Abs behind a window is not supported.")
    tensor, block.nodes = block.tensor, [*block.nodes, _label(node)]
    # Behind a window the layer's own result has no name in the graph; the sums before the activation tell its range.
    block.tensor = tensor if value.pool is not None else node.output[0]
    walk.put(node, value)


@handles("MaxPool", "AveragePool", "GlobalAveragePool", "ReduceMean")
def _window(walk: Walk, node: NodeProto) -> None:
    value, attributes = walk.value(node), _attributes(node)
    out = chw(walk.shapes[node.output[0]])
    assert out is not None
    if value.pool is not None:
        value = walk.settle(value, node.input[0])
    if node.op_type == "GlobalAveragePool":
        size = stride = (value.shape[1], value.shape[2])
    elif node.op_type == "ReduceMean":
        axes = walk.constant(node, 1)
        wanted = _attributes(node).get("axes") if axes is None else axes.astype(int).tolist()
        rank = len(walk.shapes[node.input[0]])
        if sorted(axis % rank for axis in wanted or ()) != list(range(2, rank)):
            raise Misfit("mean", "Only the mean over rows and columns is supported.")
        size = stride = (value.shape[1], value.shape[2])
    else:
        size = _pair(attributes["kernel_shape"], 1)
        dims = len(attributes["kernel_shape"])
        stride = _pair(attributes.get("strides", [1] * dims), 1)
        if any(_pads(attributes, dims)):
            raise Misfit("pool_padding", "Padding of a window is not supported.")
        if attributes.get("ceil_mode", 0) and out[1:] != tuple(
            (n - k) // s + 1 for n, k, s in zip(value.shape[1:], size, stride, strict=True)
        ):
            raise Misfit("pool_ceiling", "A window over the edge (ceil_mode) is not supported.")
        if max(_pair(attributes.get("dilations"), 1)) > 1:
            raise Misfit("pool_dilation", "Dilation of a window is not supported here.")
    kind = "max" if node.op_type == "MaxPool" else "average"
    flat = len(walk.shapes[node.output[0]]) == 2
    window = node.output[0] if kind == "average" else ""
    walk.put(node, Value(value.layer, out, Pool(kind, size, stride), flat, window))  # type: ignore[arg-type]


@handles("Flatten", "Reshape", "Squeeze")
def _flatten(walk: Walk, node: NodeProto) -> None:
    value = walk.value(node)
    shape = walk.shapes[node.output[0]]
    if len(shape) != 2 or shape[0] != 1:
        raise Misfit("reshape", f"A reshape to {list(shape)} is not supported: only flattening is.")
    walk.put(node, replace(value, flat=True))


@handles("Add", "Sub")
def _addition(walk: Walk, node: NodeProto) -> None:
    constants = [name in walk.constants for name in node.input]
    if not any(constants):
        return _sum(walk, node)
    index = constants.index(False)
    number = np.asarray(walk.constants[node.input[1 - index]], np.float64)
    if node.op_type == "Sub":
        number = -number
        if index == 1:
            raise Misfit("subtraction", "A constant minus data is not supported.")
    value, block = walk.value(node, index), walk.own(node, index)
    channels = value.shape[0]
    a_channel = (1, channels, *[1] * (len(walk.shapes[node.output[0]]) - 2))
    spread = number.size == 1 or (number.size == channels and np.broadcast_shapes(number.shape, a_channel) == a_channel)
    if block is not None and value.plain and spread:
        assert block.bias is not None
        block.bias, block.own_bias = block.bias + number.reshape(-1), False
        return _absorb(walk, node, block)
    if node.output[0] not in walk.outputs or number.size != 1:
        raise Misfit("sum", "A constant is added on the accelerator only as a bias, or one for all at the very end.")
    walk.blocks.offset = float(number.reshape(()))
    return walk.put(node, value)


def _sum(walk: Walk, node: NodeProto) -> None:
    if node.op_type == "Sub":
        raise Misfit("subtraction", "The difference of two tensors is not mapped: only sums are.")
    first, second = walk.value(node, 0), walk.value(node, 1)
    if first.shape != second.shape or first.flat != second.flat:
        raise Misfit("sum", "A sum needs two tensors of one shape.")
    numbers = []
    for value, name in ((first, node.input[0]), (second, node.input[1])):
        settled = walk.settle(value, name) if value.pool is not None else value
        numbers.append(settled.layer)
    name = _label(node)
    block = Block(name, "passthrough", tuple(numbers), first.shape, first.shape, node.output[0], nodes=[name])
    walk.add(node, block)
    walk.put(node, Value(len(walk.blocks.blocks) - 1, first.shape, flat=first.flat))


@handles("Softmax")
def _softmax(walk: Walk, node: NodeProto) -> None:
    value = walk.value(node)
    rank = len(walk.shapes[node.input[0]])
    if node.output[0] not in walk.outputs or _attributes(node).get("axis", -1) % rank != 1 or value.pool is not None:
        raise Misfit("softmax", "Softmax runs on the processor, and only over the channels at the very end.")
    walk.blocks.softmax = _label(node)
    walk.put(node, value)


@handles("Identity", "Dropout")
def _through(walk: Walk, node: NodeProto) -> None:
    walk.put(node, walk.value(node))

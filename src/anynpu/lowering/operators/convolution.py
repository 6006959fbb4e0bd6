"""Convolutions: channels last, SAME where TFLite means the same pads, otherwise PAD and VALID."""

from __future__ import annotations

import dataclasses

import numpy as np

from anynpu.lowering.graph import int32
from anynpu.lowering.lower import CHANNELS_LAST, Lowering
from anynpu.lowering.operators.windows import pad_image, padded, window_of
from anynpu.lowering.options import Conv2D, DepthToSpace, DepthwiseConv2D, TransposeConv
from anynpu.lowering.table import Node, Refused, operator, required
from anynpu.tensors import Array


def image(at: Lowering, name: str) -> str:
    """Returns the tensor as an image with its channels last; one of a single spatial axis gets a height of one."""
    rank = at.rank(name)
    if rank not in (3, 4):
        raise Refused(f"an input of {rank} axes: TFLite has windows over one or two axes")
    tensor = at.stored(name, CHANNELS_LAST[rank])
    batch, *spatial, channels = at.tensors[tensor].shape
    return at.reshape(tensor, (batch, 1, *spatial, channels)) if rank == 3 else tensor


def give_image(at: Lowering, name: str, tensor: str) -> None:
    """Gives an image with its channels last as an ONNX result."""
    rank = at.rank(name)
    batch, _, *rest = at.tensors[tensor].shape
    at.give(name, at.reshape(tensor, (batch, *rest)) if rank == 3 else tensor, CHANNELS_LAST[rank])


def flat_kernel(weights: Array) -> Array:
    """Returns weights with two spatial axes."""
    return weights[:, :, None, :] if weights.ndim == 3 else weights


@operator("Conv")
def conv(at: Lowering, node: Node) -> None:
    """CONV_2D with weights (out, height, width, in); DEPTHWISE_CONV_2D where each channel is its own group."""
    weights = flat_kernel(required(at.constant(node.input(1)), "the weights"))
    tensor = image(at, node.input(0))
    window = window_of(node, at.shape(node.input(0))[2:], weights.shape[2:])
    outputs, bias = weights.shape[0], _bias(at, node, weights.shape[0])
    group, channels = int(node.get("group", 1)), at.tensors[tensor].shape[-1]
    tensor, padding = padded(at, tensor, window)
    height, width = window.output
    shape = (at.tensors[tensor].shape[0], height, width, outputs)
    (stride_h, stride_w), (dilation_h, dilation_w) = window.strides, window.dilations
    steps = Conv2D(
        padding=padding,
        stride_h=stride_h,
        stride_w=stride_w,
        dilation_h_factor=dilation_h,
        dilation_w_factor=dilation_w,
    )
    if group == channels and weights.shape[1] == 1 and (group > 1 or outputs == 1):
        kernel = at.store(np.transpose(weights, (1, 2, 3, 0)), node.input(1))
        depthwise = DepthwiseConv2D(**dataclasses.asdict(steps), depth_multiplier=outputs // channels)
        result = at.emit("DEPTHWISE_CONV_2D", (tensor, kernel, bias), shape, depthwise, node.output)
    else:
        kernel = at.store(np.transpose(weights, (0, 2, 3, 1)), node.input(1))
        result = at.emit("CONV_2D", (tensor, kernel, bias), shape, steps, node.output)
    give_image(at, node.output, result)


def _bias(at: Lowering, node: Node, outputs: int) -> str:
    """Returns the stored bias; zeros where there is none, which corrections of the mean can use."""
    bias = node.input(2)
    if not bias:
        return at.store(np.zeros(outputs, np.float32), f"{node.output}/bias")
    return at.store(required(at.constant(bias), "the bias"), bias)


@operator("ConvTranspose")
def conv_transpose(at: Lowering, node: Node) -> None:
    """TRANSPOSE_CONV, or CONV_2D and DEPTH_TO_SPACE for strides above 2; then a SLICE that cuts ONNX's pads."""
    weights = flat_kernel(required(at.constant(node.input(1)), "the weights"))
    tensor = image(at, node.input(0))
    group = int(node.get("group", 1))
    dense = _dilated(_ungrouped(weights, group), node.integers("dilations", [1, 1])[-2:])
    strides = node.integers("strides", [1, 1])
    strides = [1, *strides] if len(strides) == 1 else strides
    batch, height, width, _ = at.tensors[tensor].shape
    whole = [
        (size - 1) * stride + kernel
        for size, stride, kernel in zip((height, width), strides, dense.shape[2:], strict=True)
    ]
    wanted = list(at.shape(node.output)[2:])
    wanted = [1, *wanted] if len(wanted) == 1 else wanted
    begin = _transposed_begin(node, whole, wanted)
    full = [max(have, at_ + want) for have, at_, want in zip(whole, begin, wanted, strict=True)]
    # Ethos-U55 has transposed convolutions with strides up to 2, and others spend their time on zeros.
    if max(strides) > 2 and strides[0] in (1, strides[1]):
        result, full = _in_phases(at, node, tensor, dense, strides, full)
    else:
        kernel = at.store(np.transpose(dense, (1, 2, 3, 0)), node.input(1))
        shape = (batch, *full, dense.shape[1])
        options = TransposeConv(padding="VALID", stride_h=strides[0], stride_w=strides[1])
        inputs = (at.store(int32(shape), "shape"), kernel, tensor, _bias(at, node, dense.shape[1]))
        result = at.emit("TRANSPOSE_CONV", inputs, shape, options, node.output, dtype="float32")
    if full != wanted:
        corner, size = (0, *begin, 0), (batch, *wanted, dense.shape[1])
        arguments = (result, at.store(int32(corner), "begin"), at.store(int32(size), "size"))
        result = at.emit("SLICE", arguments, size, stem=node.output)
    give_image(at, node.output, result)


def _in_phases(
    at: Lowering, node: Node, tensor: str, dense: Array, strides: list[int], full: list[int]
) -> tuple[str, list[int]]:
    """Returns a transposed convolution as one without gaps that has the results between two inputs as channels."""
    batch, height, width, _ = at.tensors[tensor].shape
    inputs, outputs, *kernel = dense.shape
    rows, columns = strides
    taps = [-(-(want - (size - 1) * s) // s) for want, size, s in zip(full, (height, width), strides, strict=True)]
    wide = np.zeros((inputs, outputs, taps[0] * rows, taps[1] * columns), dense.dtype)
    wide[:, :, : kernel[0], : kernel[1]] = dense
    phases = wide.reshape(inputs, outputs, taps[0], rows, taps[1], columns)[:, :, ::-1, :, ::-1]
    weights = phases.transpose(3, 5, 1, 2, 4, 0).reshape(rows * columns * outputs, *taps, inputs)
    ends = (taps[0] - 1, taps[1] - 1)
    bias = np.tile(required(at.tensors[_bias(at, node, outputs)].data, "the bias"), rows * columns)
    size = [height + ends[0], width + ends[1]]
    operands = (
        tensor if ends == (0, 0) else pad_image(at, tensor, ends, ends),
        at.store(np.ascontiguousarray(weights), node.input(1)),
        at.store(bias, node.input(2) or f"{node.output}/bias"),
    )
    result = at.emit("CONV_2D", operands, (batch, *size, weights.shape[0]), Conv2D(padding="VALID"), node.output)
    full = [size[0] * rows, size[1] * columns]
    if rows == 1:
        return at.reshape(result, (batch, *full, outputs)), full
    shape = (batch, *full, outputs)
    return at.emit("DEPTH_TO_SPACE", (result,), shape, DepthToSpace(rows), node.output), full


def _ungrouped(weights: Array, group: int) -> Array:
    inputs, per_group, *kernel = weights.shape
    if group == 1:
        return weights
    dense = np.zeros((inputs, per_group * group, *kernel), weights.dtype)
    step = inputs // group
    for number in range(group):
        rows = slice(number * step, (number + 1) * step)
        dense[rows, number * per_group : (number + 1) * per_group] = weights[rows]
    return dense


def _dilated(weights: Array, dilations: list[int]) -> Array:
    """Returns the weights with zeros between their elements."""
    dilations = [1, *dilations] if len(dilations) == 1 else dilations
    if dilations == [1, 1]:
        return weights
    sizes = [(size - 1) * step + 1 for size, step in zip(weights.shape[2:], dilations, strict=True)]
    wide = np.zeros((*weights.shape[:2], *sizes), weights.dtype)
    wide[:, :, :: dilations[0], :: dilations[1]] = weights
    return wide


def _transposed_begin(node: Node, whole: list[int], wanted: list[int]) -> list[int]:
    """Returns how much ONNX cuts from the start of each spatial axis."""
    extra = node.integers("output_padding", [0, 0])
    extra = [0] * (2 - len(extra)) + extra
    automatic = node.get("auto_pad", "NOTSET")
    if automatic in ("NOTSET", "VALID"):
        pads = node.integers("pads", [])
        if "output_shape" not in node.attributes:
            half = len(pads) // 2
            return [0] * (2 - half) + pads[:half] if pads else [0, 0]
    total = [max(0, have + more - want) for have, more, want in zip(whole, extra, wanted, strict=True)]
    return [each - each // 2 if automatic != "SAME_UPPER" else each // 2 for each in total]

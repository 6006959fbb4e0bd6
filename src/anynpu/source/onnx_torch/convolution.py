"""Convolutions and their paddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, Refused, operator


@dataclass(frozen=True)
class Window:
    """A sliding window over the spatial dimensions, with every default filled in."""

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    before: list[int]
    after: list[int]

    @property
    def symmetric(self) -> bool:
        """Whether both sides of every dimension have the same padding."""
        return self.before == self.after

    @property
    def reach(self) -> list[int]:
        """How many elements the window covers in each dimension, holes included."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]


def window(node: Node, kernel: list[int]) -> Window:
    """Reads strides, dilations, pads and auto_pad of a convolution or pooling node."""
    dims = len(kernel)
    if dims not in (1, 2, 3):
        raise Refused(f"{node.op} over {dims} spatial dimensions has no equivalent in torch")
    stride = list(node.get("strides", [1] * dims))
    dilation = list(node.get("dilations", [1] * dims))
    mode = node.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = list(node.get("pads", [0] * 2 * dims))
        before, after = pads[:dims], pads[dims:]
    elif mode == "VALID":
        before, after = [0] * dims, [0] * dims
    elif any(step != 1 for step in dilation):
        raise Refused(f"{node.op} with auto_pad={mode} and dilations is refused by onnxruntime; state the pads")
    else:
        sizes = node.shape()[2:]
        upper = mode == "SAME_UPPER"
        before, after = [], []
        for size, k, s in zip(sizes, kernel, stride, strict=True):
            total = max(0, (-(-size // s) - 1) * s + k - size)
            small, large = total // 2, total - total // 2
            before.append(small if upper else large)
            after.append(large if upper else small)
    if min(before + after, default=0) < 0:
        raise Refused(f"{node.op} with negative pads is not supported")
    return Window(kernel, stride, dilation, before, after)


def padding(before: list[int], after: list[int]) -> list[int]:
    """Returns per-dimension paddings in the order of F.pad: last dimension first."""
    return [amount for pair in zip(reversed(before), reversed(after), strict=True) for amount in pair]


@operator("Conv")
def conv(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolution over 1, 2 or 3 dimensions with groups, dilations, any pads and auto_pad."""
    shape = _window(node)
    pads = shape.before
    if not shape.symmetric:
        x, pads = F.pad(x, padding(shape.before, shape.after)), [0] * len(shape.kernel)
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(shape.kernel)]
    group = node.get("group", 1)
    return function(x, weight, bias, stride=shape.stride, padding=pads, dilation=shape.dilation, groups=group)


def _window(node: Node) -> Window:
    kernel = list(node.shape(1)[2:])
    if list(node.get("kernel_shape", kernel)) != kernel:
        raise Refused(f"{node.op}: kernel_shape does not fit the weights")
    return window(node, kernel)


@operator("ConvTranspose")
def conv_transpose(node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Transposed convolution over 1, 2 or 3 dimensions with groups, dilations, output_padding and output_shape."""
    shape = _window(node)
    dims = len(shape.kernel)
    extra = list(node.get("output_padding", [0] * dims))
    before, after = _transposed_pads(node, shape, extra)
    if min(before + after) < 0:
        raise Refused("ConvTranspose with an output larger than its windows is not supported")
    limits = zip(extra, shape.stride, shape.dilation, strict=True)
    if any(e >= max(s, d) for e, s, d in limits):
        raise Refused("ConvTranspose with output_padding as large as the stride has no equivalent in torch")
    symmetric = before == after
    function = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[dims]
    result = function(
        x,
        weight,
        bias,
        stride=shape.stride,
        padding=before if symmetric else [0] * dims,
        output_padding=extra,
        groups=node.get("group", 1),
        dilation=shape.dilation,
    )
    if symmetric:
        return result
    return F.pad(result, [-amount for amount in padding(before, after)])


def _transposed_pads(node: Node, shape: Window, extra: list[int]) -> tuple[list[int], list[int]]:
    mode = node.get("auto_pad", "NOTSET")
    wanted = node.get("output_shape")
    sizes = node.shape()[2:]
    if wanted is None and mode in ("NOTSET", "VALID"):
        return shape.before, shape.after
    if wanted is None:
        wanted = [size * stride for size, stride in zip(sizes, shape.stride, strict=True)]
    before, after = [], []
    for size, target, s, e, reach in zip(sizes, wanted[-len(sizes) :], shape.stride, extra, shape.reach, strict=True):
        total = s * (size - 1) + e + reach - target
        half = total // 2
        before.append(half if mode == "SAME_UPPER" else total - half)
        after.append(total - half if mode == "SAME_UPPER" else half)
    return before, after

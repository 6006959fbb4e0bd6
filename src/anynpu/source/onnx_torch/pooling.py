"""Pooling over windows and over whole feature maps."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anynpu.source.onnx_torch.convolution import Window, padding, window
from anynpu.source.onnx_torch.table import Node, Refused, operator


@operator("MaxPool")
def max_pool(node: Node, x: Tensor) -> Tensor:
    """Largest element of each window, with dilations, any pads and ceil_mode; the indices output is refused."""
    shape = _window(node)
    ceil = _ceil(node, shape)
    pads = shape.before
    if not _inside(shape):
        x, pads = F.pad(x, padding(shape.before, shape.after), value=float("-inf")), [0] * len(pads)
    function = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(shape.kernel)]
    return function(
        x, kernel_size=shape.kernel, stride=shape.stride, padding=pads, dilation=shape.dilation, ceil_mode=ceil
    )


@operator("AveragePool")
def average_pool(node: Node, x: Tensor) -> Tensor:
    """Mean of each window, with any pads, ceil_mode and count_include_pad; dilations are refused."""
    shape = _window(node)
    if any(dilation != 1 for dilation in shape.dilation):
        raise Refused("AveragePool with dilations has no exact equivalent in torch")
    ceil, counted = _ceil(node, shape), bool(node.get("count_include_pad", 0))
    function = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[len(shape.kernel)]
    if _inside(shape):
        return function(x, shape.kernel, shape.stride, shape.before, ceil_mode=ceil, count_include_pad=counted)
    if ceil:
        raise Refused("AveragePool with ceil_mode and different pads on the two sides is not supported")
    pooled = function(F.pad(x, padding(shape.before, shape.after)), shape.kernel, shape.stride)
    if counted:
        return pooled
    # Window size over the number of elements that are not padding, for each output position
    factors = np.ones((1, 1), np.float32)
    for size, k, s, before, after in zip(
        node.shape()[2:], shape.kernel, shape.stride, shape.before, shape.after, strict=True
    ):
        starts = np.arange(0, size + before + after - k + 1, s) - before
        inside = np.minimum(starts + k, size) - np.maximum(starts, 0)
        factors = factors[..., None] * (k / inside).astype(np.float32)
    return pooled * node.constant(factors)


@operator("GlobalAveragePool")
def global_average_pool(node: Node, x: Tensor) -> Tensor:
    """Mean over all spatial dimensions."""
    return torch.mean(x, dim=list(range(2, node.rank())), keepdim=True)


@operator("GlobalMaxPool")
def global_max_pool(node: Node, x: Tensor) -> Tensor:
    """Largest element over all spatial dimensions."""
    return torch.amax(x, dim=list(range(2, node.rank())), keepdim=True)


def _window(node: Node) -> Window:
    kernel = [int(size) for size in node.get("kernel_shape", [])]
    if len(kernel) != node.rank() - 2:
        raise Refused(f"{node.op}: kernel_shape does not fit an input of {node.rank()} dimensions")
    shape = window(node, kernel)
    automatic = str(node.get("auto_pad", "NOTSET")).startswith("SAME")
    if automatic and any(stride > size for stride, size in zip(shape.stride, kernel, strict=True)):
        # onnxruntime computes negative pads here and fails or, from opset 19 on, pools other elements.
        raise Refused(f"{node.op} with automatic pads and strides larger than its window is not supported")
    edges = zip(shape.before, shape.after, shape.reach, strict=True)
    if any(max(before, after) >= reach for before, after, reach in edges):
        raise Refused(f"{node.op} with windows that lie wholly in the padding is not supported")
    return shape


def _inside(shape: Window) -> bool:
    """Whether torch takes these pads as they are: equal on both sides, at most half a window."""
    return shape.symmetric and all(2 * pad <= k for pad, k in zip(shape.before, shape.kernel, strict=True))


def _ceil(node: Node, shape: Window) -> bool:
    """Whether ceil_mode makes a difference; auto_pad ignores it, and a window that starts in the padding is refused."""
    if not node.get("ceil_mode", 0) or node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return False
    differs = False
    sides = zip(node.shape()[2:], shape.before, shape.after, shape.stride, shape.reach, strict=True)
    for size, before, after, stride, reach in sides:
        rest = size + before + after - reach
        if rest % stride == 0:
            continue
        differs = True
        if (-(-rest // stride)) * stride >= size + before:
            raise Refused(f"{node.op} with ceil_mode and a last window in the padding is read differently by runtimes")
    return differs

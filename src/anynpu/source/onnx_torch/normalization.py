"""Normalisations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, Refused, operator


@operator("BatchNormalization")
def batch_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Batch normalisation with stored statistics; training mode is refused."""
    node.only("training_mode", 0)
    return F.batch_norm(x, mean, variance, scale, bias, training=False, eps=node.get("epsilon", 1e-5))


@operator("LayerNormalization")
def layer_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """Layer normalisation over all axes from `axis` on; the mean and deviation outputs are refused."""
    node.only("stash_type", 1)
    shape = node.shape()[node.axis(-1) :]
    epsilon = node.get("epsilon", 1e-5)
    if node.shape(1) == shape and (bias is None or node.shape(2) == shape):
        return F.layer_norm(x, shape, scale, bias, eps=epsilon)
    scaled = F.layer_norm(x, shape, eps=epsilon) * scale
    return scaled if bias is None else scaled + bias


@operator("InstanceNormalization")
def instance_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Normalisation of each channel of each sample."""
    return torch.group_norm(x, node.shape()[1], scale, bias, eps=node.get("epsilon", 1e-5))


@operator("GroupNormalization")
def group_norm(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Normalisation of groups of channels; scale and bias for each group before opset 21, for each channel since."""
    node.only("stash_type", 1)
    groups, channels = int(node.get("num_groups")), node.shape()[1]
    if node.opset < 21 and groups != channels:
        scale, bias = (torch.repeat_interleave(each, channels // groups) for each in (scale, bias))
    return torch.group_norm(x, groups, scale, bias, eps=node.get("epsilon", 1e-5))


@operator("LpNormalization")
def lp_normalization(node: Node, x: Tensor) -> Tensor:
    """Division by the L1 or L2 norm along one axis."""
    node.only("p", 1, 2, default=2)
    return F.normalize(x, p=float(node.get("p", 2)), dim=node.axis(-1))


@operator("LRN")
def local_response_norm(node: Node, x: Tensor) -> Tensor:
    """Local response normalisation over an odd number of channels."""
    size = int(node.get("size"))
    if size % 2 == 0:
        raise Refused("LRN over an even number of channels is centred differently in torch")
    alpha, beta, bias = node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("bias", 1.0)
    return F.local_response_norm(x, size, alpha=alpha, beta=beta, k=bias)

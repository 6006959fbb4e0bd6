"""Layers that several zoo networks share."""

from __future__ import annotations

import torch
from torch import nn


def conv(
    into: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1, activation: bool = True
) -> nn.Sequential:
    """Returns convolution and batch norm, then ReLU6 unless told otherwise."""
    layers: list[nn.Module] = [
        nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    return nn.Sequential(*layers, *([nn.ReLU6()] if activation else []))


def separable(into: int, out: int, stride: int = 1) -> nn.Sequential:
    """Returns a depthwise 3x3 and a pointwise convolution, each with batch norm and ReLU6."""
    return nn.Sequential(conv(into, into, 3, stride, groups=into), conv(into, out, 1))


START_SCALE = 2.0


def widened(network: nn.Module) -> nn.Module:
    """Returns the network with batch norm started wide, so that activations fill the range up to the bound of ReLU6.

    A peak far above the usual values would waste int8 steps.
    """
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, START_SCALE)
    return network


class Classifier(nn.Module):
    """A convolutional body, the mean over space, and one linear layer to the logits."""

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the logits of a batch."""
        logits: torch.Tensor = self.head(self.pool(self.body(image)).flatten(1))
        return logits


def classification_loss(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the cross-entropy of the logits."""
    return nn.functional.cross_entropy(network(inputs), labels, label_smoothing=0.05)

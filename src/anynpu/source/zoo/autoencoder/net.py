"""The auto-encoder network."""

from __future__ import annotations

import torch
from torch import nn

FEATURES = 640
WIDTHS = (128, 128, 24, 128, 128)


def build() -> nn.Module:
    """Returns the untrained network."""
    layers: list[nn.Module] = []
    for into, out in zip((FEATURES, *WIDTHS), WIDTHS, strict=False):
        layers += [nn.Linear(into, out, bias=False), nn.BatchNorm1d(out), nn.ReLU6()]
    return nn.Sequential(*layers, nn.Linear(WIDTHS[-1], FEATURES))


def loss(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the squared reconstruction error, scaled to the size of a classification loss."""
    return 100 * nn.functional.mse_loss(network(inputs), inputs)

"""The ResNet-8 network."""

from __future__ import annotations

import torch
from torch import nn

from anynpu.source.zoo.blocks import Classifier, classification_loss, conv

__all__ = ["build", "loss"]

loss = classification_loss


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(conv(into, out, 3, stride), conv(out, out, activation=False))
        same = into == out and stride == 1
        self.shortcut = nn.Identity() if same else conv(into, out, 1, stride, activation=False)
        self.relu = nn.ReLU6()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the activated sum of both branches."""
        out: torch.Tensor = self.relu(self.main(x) + self.shortcut(x))
        return out


def build() -> nn.Module:
    """Returns the untrained network."""
    body = nn.Sequential(conv(3, 16), Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
    return Classifier(body, 64, 10)

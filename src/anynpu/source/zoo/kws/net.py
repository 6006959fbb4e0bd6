"""The keyword-spotting network."""

from __future__ import annotations

from torch import nn

from anynpu.source.zoo.blocks import Classifier, classification_loss, separable, widened

__all__ = ["build", "loss"]

loss = classification_loss
WIDTH = 64


def build() -> nn.Module:
    """Returns the untrained network."""
    stem = [nn.Conv2d(1, WIDTH, (9, 3), 2, (4, 1), bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU6()]
    return widened(Classifier(nn.Sequential(*stem, *(separable(WIDTH, WIDTH) for _ in range(4))), WIDTH, 12))

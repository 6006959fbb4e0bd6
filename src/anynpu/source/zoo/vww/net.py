"""The visual-wake-word network."""

from __future__ import annotations

from torch import nn

from anynpu.source.zoo.blocks import Classifier, classification_loss, conv, separable

__all__ = ["build", "loss"]

loss = classification_loss
# Output width and stride of each separable block: MobileNet v1 at a quarter of its width.
BLOCKS = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *((128, 1),) * 5, (256, 2), (256, 1))


def build() -> nn.Module:
    """Returns the untrained network."""
    layers, width = [conv(3, 8, 3, 2)], 8
    for out, stride in BLOCKS:
        layers.append(separable(width, out, stride))
        width = out
    return Classifier(nn.Sequential(*layers), width, 2)

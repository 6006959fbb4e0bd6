"""The visual-wake-word network."""

from __future__ import annotations

from torch import nn

from anynpu.source.zoo.blocks import Classifier, classification_loss, conv, separable, widened

__all__ = ["build", "loss"]

loss = classification_loss
# Output width and stride of each separable block: MobileNet v1 at a quarter of its width, its five equal blocks
# cut to two, which saves training time.
BLOCKS = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (128, 1), (256, 2), (256, 1))
# Twice the width that the quarter would give: rounding this layer and the next ones costs the most SQNR in int8.
STEM = 16


def build() -> nn.Module:
    """Returns the untrained network."""
    layers, width = [conv(3, STEM, 3, 2)], STEM
    for out, stride in BLOCKS:
        layers.append(separable(width, out, stride))
        width = out
    return widened(Classifier(nn.Sequential(*layers), width, 2))

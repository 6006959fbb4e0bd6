"""MobileNetV2 with a linear map into the space of a sentence model: `anynpu build -m scripts/search_net.py:Projected`.

The names of the parameters below `features` are torchvision's, so its published weights load as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# expansion, channels, repeats, stride: the table of the paper
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
FEATURES = 1280


def conv(before: int, after: int, size: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(after), nn.ReLU6()
    )


class Inverted(nn.Module):
    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = before * expansion
        parts = [conv(before, inner)] if expansion > 1 else []
        parts += [conv(inner, inner, 3, stride, inner), nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)]
        self.conv = nn.Sequential(*parts)
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


class Projected(nn.Module):
    """A picture to a vector among those of sentences; the vector's length means nothing."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv(3, 32, 3, 2)]
        channels = 32
        for expansion, after, repeats, stride in BLOCKS:
            for at in range(repeats):
                layers.append(Inverted(channels, after, stride if at == 0 else 1, expansion))
                channels = after
        layers.append(conv(channels, FEATURES))
        self.features = nn.Sequential(*layers)
        self.projection = nn.Linear(FEATURES, width)

    def pooled(self, image: Tensor) -> Tensor:
        return self.features(image).mean(dim=(2, 3))

    def forward(self, image: Tensor) -> Tensor:
        return self.projection(self.pooled(image))


def load_backbone(net: Projected, weights: dict[str, Tensor]) -> Tensor:
    """Puts torchvision's weights into the net; returns the rows of its classifier, one a class of ImageNet."""
    own = {name: value for name, value in weights.items() if name.startswith("features.")}
    missing, unexpected = net.load_state_dict(own, strict=False)
    assert not unexpected and set(missing) == {"projection.weight", "projection.bias"}, (missing, unexpected)
    return torch.as_tensor(weights["classifier.1.weight"])

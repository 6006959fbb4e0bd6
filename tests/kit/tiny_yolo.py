"""Tiny detectors with the heads of YOLO 5, 8 and 11, for tests that need no download.

`-m tests/kit/tiny_yolo.py:v8 --shape images=1,3,64,64` names one on the command line; `export` writes one as a file.
Weights are random and seeded; scores spread from 0 to 1, so that a decode has something to find.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

STRIDES = (8, 16, 32)
SIZE = (64, 64)
CLASSES = 3
REG_MAX = 16
# Width and height of the three anchors of each stride, in pixels.
ANCHORS = (((5, 6), (8, 14), (15, 11)), ((14, 28), (28, 20), (27, 55)), ((52, 40), (70, 90), (120, 100)))


class Block(nn.Sequential):
    """Convolution, batch normalisation and SiLU."""

    def __init__(self, before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1) -> None:
        convolution = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(after), nn.SiLU())


class Backbone(nn.Module):
    """Feature maps of strides 8, 16 and 32, the coarse ones mixed into the fine ones."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(Block(3, width, stride=2), Block(width, width, stride=2))
        self.fine = Block(width, width, stride=2)
        self.middle = Block(width, 2 * width, stride=2)
        self.coarse = Block(2 * width, 2 * width, stride=2)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.mixed_middle = Block(4 * width, 2 * width, 1)
        self.mixed_fine = Block(3 * width, width, 1)

    def forward(self, image: Tensor) -> list[Tensor]:
        fine = self.fine(self.stem(image))
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        middle = self.mixed_middle(torch.cat([self.up(coarse), middle], 1))
        return [self.mixed_fine(torch.cat([self.up(middle), fine], 1)), middle, coarse]


class AnchorFree(nn.Module):
    """The head of versions 8 and 11: distances to four sides as distributions, one score a class."""

    def __init__(self, widths: list[int], classes: int, reg_max: int, separable: bool) -> None:
        super().__init__()
        self.classes, self.reg_max = classes, reg_max
        self.boxes = nn.ModuleList(nn.Sequential(Block(w, w), nn.Conv2d(w, 4 * reg_max, 1)) for w in widths)
        hidden = [nn.Sequential(Block(w, w, groups=w), Block(w, w, 1)) if separable else Block(w, w) for w in widths]
        self.scores = nn.ModuleList(
            nn.Sequential(h, nn.Conv2d(w, classes, 1)) for h, w in zip(hidden, widths, strict=True)
        )
        self.project = nn.Conv2d(reg_max, 1, 1, bias=False).requires_grad_(False)
        self.project.weight.data[:] = torch.arange(reg_max, dtype=torch.float).view(1, reg_max, 1, 1)

    def maps(self, features: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return [(box(x), score(x)) for box, score, x in zip(self.boxes, self.scores, features, strict=True)]

    def forward(self, features: list[Tensor]) -> Tensor:
        rows = [torch.cat(pair, 1) for pair in self.maps(features)]
        flat = torch.cat([row.view(1, 4 * self.reg_max + self.classes, -1) for row in rows], 2)
        box, score = flat.split((4 * self.reg_max, self.classes), 1)
        if self.reg_max > 1:
            box = self.project(box.view(1, 4, self.reg_max, -1).transpose(2, 1).softmax(1)).view(1, 4, -1)
        before, after = box.chunk(2, 1)
        centres, strides = _centres([tuple(row.shape[2:]) for row in rows])
        low, high = centres - before, centres + after
        return torch.cat([torch.cat([(low + high) / 2, high - low], 1) * strides, score.sigmoid()], 1)


class AnchorBased(nn.Module):
    """The head of version 5: three anchors a cell, each with a box, an objectness and one score a class."""

    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        self.row = 5 + classes
        self.layers = nn.ModuleList(nn.Conv2d(w, 3 * self.row, 1) for w in widths)

    def maps(self, features: list[Tensor]) -> list[Tensor]:
        return [layer(x) for layer, x in zip(self.layers, features, strict=True)]

    def forward(self, features: list[Tensor]) -> Tensor:
        rows = []
        for x, stride, anchors in zip(self.maps(features), STRIDES, ANCHORS, strict=True):
            height, width = x.shape[2:]
            x = x.view(1, 3, self.row, height, width).permute(0, 1, 3, 4, 2)
            y, z = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            grid = torch.stack([z, y], 2).float().expand(1, 3, height, width, 2) - 0.5
            sizes = torch.tensor(anchors).float().view(1, 3, 1, 1, 2).expand(1, 3, height, width, 2)
            xy, wh, rest = x.sigmoid().split((2, 2, self.row - 4), 4)
            rows.append(torch.cat(((xy * 2 + grid) * stride, (wh * 2) ** 2 * sizes, rest), 4).view(1, -1, self.row))
        return torch.cat(rows, 1)


class Detector(nn.Module):
    """Backbone and head; `forward` gives decoded boxes and scores as an export does."""

    def __init__(self, head: nn.Module, backbone: Backbone) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))


def _centres(sizes: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Returns the centres of all cells in units of their stride, and the strides."""
    centres, strides = [], []
    for (height, width), stride in zip(sizes, STRIDES, strict=True):
        y, x = torch.meshgrid(torch.arange(height).float() + 0.5, torch.arange(width).float() + 0.5, indexing="ij")
        centres.append(torch.stack([x.reshape(-1), y.reshape(-1)]))
        strides.append(torch.full((1, height * width), float(stride)))
    return torch.cat(centres, 1)[None], torch.cat(strides, 1)


def build(
    version: str = "v8", classes: int = CLASSES, reg_max: int = REG_MAX, width: int = 8, seed: int = 0
) -> Detector:
    """Returns a detector with random weights; `version` is v5, v8 or v11."""
    torch.manual_seed(seed)
    widths = [width, 2 * width, 2 * width]
    head = AnchorBased(widths, classes) if version == "v5" else AnchorFree(widths, classes, reg_max, version == "v11")
    model = Detector(head, Backbone(width))
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 1.0, 2.0)
            nn.init.uniform_(layer.bias, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.1, 0.4)
    last = head.layers if version == "v5" else [branch[-1] for branch in (*head.boxes, *head.scores)]
    for layer in last:
        nn.init.normal_(layer.weight, std=1.5 / width**0.5)
        nn.init.normal_(layer.bias, std=0.5)
    return model.eval()


def v5() -> Detector:
    return build("v5")


def v8() -> Detector:
    return build("v8")


def v11() -> Detector:
    return build("v11")


def export(path: Path, model: Detector, size: tuple[int, int] = SIZE, dynamo: bool = False) -> Path:
    """Writes the detector as an ONNX file with input `images` [1, 3, height, width] and output `output0`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, on constants
        torch.onnx.export(
            model,
            (torch.zeros(1, 3, *size),),
            str(path),
            input_names=["images"],
            output_names=["output0"],
            opset_version=18 if dynamo else 17,
            dynamo=dynamo,
            verbose=False,
        )
    return path


def images(count: int, size: tuple[int, int] = SIZE, seed: int = 0) -> np.ndarray:
    """Returns seeded pictures of coloured rectangles on noise, [count, 3, height, width] from 0 to 1."""
    random = np.random.default_rng(seed)
    pictures = random.uniform(0.2, 0.6, (count, 3, *size)).astype(np.float32)
    for picture in pictures:
        for _ in range(random.integers(1, 4)):
            h, w = random.integers(8, max(9, size[0] * 3 // 4)), random.integers(8, max(9, size[1] * 3 // 4))
            y, x = random.integers(0, size[0] - h + 1), random.integers(0, size[1] - w + 1)
            picture[:, y : y + h, x : x + w] = random.uniform(0, 1, (3, 1, 1))
    return pictures

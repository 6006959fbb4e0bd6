"""The detector network and its loss."""

from __future__ import annotations

import torch
from torch import nn

from anynpu.source.zoo.blocks import conv, widened

CLASSES = 3
CELLS = 12
# A cell answers for an object if its centre lies within this many cells of the object's centre.
NEAR_CELLS = 0.75


def build() -> nn.Module:
    """Returns the untrained network; its map has objectness, class logits and four distances."""
    head = nn.Conv2d(64, 1 + CLASSES + 4, 1)
    layers = [conv(3, 16, stride=2), conv(16, 24, stride=2), conv(24, 32), conv(32, 48, stride=2)]
    return widened(nn.Sequential(*layers, conv(48, 64), conv(64, 64), conv(64, 64), head))


def loss(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns objectness and class cross-entropy plus the distance error of the cells that hold an object."""
    output = network(inputs)
    count = len(labels)
    centre = torch.arange(CELLS) + 0.5
    held = torch.zeros(count, CELLS, CELLS, dtype=torch.bool)
    kind = torch.zeros(count, CELLS, CELLS, dtype=torch.long)
    distances = torch.zeros(count, 4, CELLS, CELLS)
    for row in labels.unbind(1):
        x0, y0, x1, y1 = (row[:, 1:] * CELLS).unbind(1)
        near_x = (centre - ((x0 + x1) / 2)[:, None]).abs() < NEAR_CELLS
        near_y = (centre - ((y0 + y1) / 2)[:, None]).abs() < NEAR_CELLS
        here = near_y[:, :, None] & near_x[:, None, :] & (row[:, 0] >= 0)[:, None, None]
        x, y = centre[None, None, :], centre[None, :, None]
        sides = (x - x0[:, None, None], y - y0[:, None, None], x1[:, None, None] - x, y1[:, None, None] - y)
        rows = torch.stack([side.expand(count, CELLS, CELLS) for side in sides], 1)
        kind = torch.where(here, row[:, 0].long()[:, None, None], kind)
        distances = torch.where(here[:, None], rows, distances)
        held |= here
    weight = held.float()
    objects = nn.functional.binary_cross_entropy_with_logits(output[:, 0], weight, pos_weight=torch.tensor(4.0))
    wanted = nn.functional.one_hot(kind, CLASSES).permute(0, 3, 1, 2).float()
    classes = nn.functional.binary_cross_entropy_with_logits(output[:, 1 : 1 + CLASSES], wanted, reduction="none")
    boxes = nn.functional.smooth_l1_loss(output[:, -4:], distances, reduction="none", beta=0.3)
    cells = weight.sum().clamp_min(1)
    return 10 * objects + ((classes.mean(1) + boxes.mean(1)) * weight).sum() / cells

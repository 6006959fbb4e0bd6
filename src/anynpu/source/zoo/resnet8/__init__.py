"""An image classifier of the ResNet-8 class on generated pictures of shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from anynpu.source.zoo import draw
from anynpu.source.zoo.cards import Array, Card, Recipe

SIZE = 32


def _radius(u: Array, v: Array) -> Array:
    return np.asarray(np.hypot(u, v))


def _side(u: Array, v: Array) -> Array:
    return np.asarray(np.maximum(np.abs(u), np.abs(v)))


# Each shape is a distance-like field in units of its radius, negative inside.
SHAPES: dict[str, Callable[[Array, Array], Any]] = {
    "disc": lambda u, v: _radius(u, v) - 0.9,
    "ring": lambda u, v: np.abs(_radius(u, v) - 0.75) - 0.22,
    "square": lambda u, v: _side(u, v) - 0.8,
    "frame": lambda u, v: np.abs(_side(u, v) - 0.65) - 0.2,
    "triangle": lambda u, v: np.maximum(v - 0.55, np.maximum(-0.5 * v + 0.866 * u, -0.5 * v - 0.866 * u) - 0.5),
    "cross": lambda u, v: np.maximum(_side(u, v) - 0.95, np.minimum(np.abs(u), np.abs(v)) - 0.28),
    "star": lambda u, v: _radius(u, v) - 0.65 - 0.32 * np.cos(5 * np.arctan2(v, u)),
    "crescent": lambda u, v: np.maximum(_radius(u, v) - 0.95, 0.75 - _radius(u - 0.45, v)),
    "bars": lambda u, v: np.maximum(_side(u, v) - 0.85, 0.3 - np.abs(np.abs(u) - 0.55)),
    "pair": lambda u, v: np.minimum(_radius(u - 0.55, v), _radius(u + 0.55, v)) - 0.45,
}
CLASSES = tuple(SHAPES)
CARD = Card(
    name="resnet8",
    title="ResNet-8",
    task="image classification",
    metric="top1",
    input_name="image",
    input_shape=(1, 3, SIZE, SIZE),
    output_names=("logits",),
    value_range="0..1",
    classes=CLASSES,
    description="Residual network with seven 3x3 convolutions; ten shapes under clutter, occlusion and noise.",
)
RECIPE = Recipe(samples=7000, epochs=12)


def sample(rng: np.random.Generator, index: int, split: str) -> tuple[Array, int]:
    """Returns one image (3, 32, 32) and its class."""
    label = index % len(CLASSES)
    image = 0.6 * draw.background(rng, SIZE)
    for _ in range(int(rng.integers(1, 4))):
        start = tuple(rng.uniform(0, SIZE, 2))
        end = (start[0] + rng.uniform(-9, 9), start[1] + rng.uniform(-9, 9))
        draw.paint(image, draw.capsule(SIZE, start, end, float(rng.uniform(0.5, 1.8))), draw.colour(rng))
    radius = float(rng.uniform(8, 13))
    centre = (float(rng.uniform(radius, SIZE - radius)), float(rng.uniform(radius, SIZE - radius)))
    u, v = draw.local(SIZE, centre, float(rng.normal(0, 0.4)))
    mask = draw.soft(SHAPES[CLASSES[label]](u / radius, v / radius * np.float32(rng.uniform(0.85, 1.2))) * radius)
    draw.paint(image, mask, draw.colour(rng, 0.35), 0.12 * draw.smooth_noise(rng, SIZE, 6))
    if rng.random() < 0.5:
        edge = (centre[0] + rng.uniform(-1, 1) * radius, centre[1] + rng.uniform(-1, 1) * radius)
        half = (float(rng.uniform(1, 3.5)), float(rng.uniform(2, 6)))
        draw.paint(image, draw.box(SIZE, edge, half, float(rng.uniform(0, np.pi))), draw.colour(rng))
    return draw.finish(rng, image, float(rng.uniform(0.02, 0.1))), label

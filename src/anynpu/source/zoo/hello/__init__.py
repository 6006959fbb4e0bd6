"""Four convolutions and an addition, trained to tell textures apart: the first model to try."""

from __future__ import annotations

import numpy as np

from anynpu.source.zoo import draw
from anynpu.source.zoo.cards import Array, Card, Recipe

SIZE = 32
ANGLES = (0, 45, 90, 135)
CLASSES = (
    *(f"fine stripes {angle}" for angle in ANGLES),
    *(f"wide stripes {angle}" for angle in ANGLES),
    "fine checks",
    "wide checks",
    "fine dots",
    "wide dots",
    "grain",
    "clouds",
    "sparks",
    "bricks",
)
CARD = Card(
    name="hello",
    title="SmallModel",
    task="texture classification",
    metric="mean_top1",
    input_name="input",
    input_shape=(1, 3, SIZE, SIZE),
    output_names=("output",),
    value_range="0..1",
    classes=CLASSES,
    description="Four 3x3 convolutions to 256 channels, each with ReLU, then plus one; fully convolutional. "
    "The class score is the spatial mean of channel k, for the first 16 channels.",
)
RECIPE = Recipe(samples=4000, epochs=7, quantised_epochs=1, learning_rate=2e-3, batch=32)


def _waves(rng: np.random.Generator, angle: float, period: float) -> Array:
    u, _ = draw.local(SIZE, (0.0, 0.0), angle)
    return np.asarray(np.sin(2 * np.pi * u / period + rng.uniform(0, 2 * np.pi)), np.float32)


def _pattern(rng: np.random.Generator, label: int) -> Array:
    """Returns the texture of a class as a field in -1..1."""
    turn = float(rng.normal(0, 0.12))
    if label < 8:
        period = rng.uniform(3.0, 4.6) if label < 4 else rng.uniform(5.4, 8.5)
        return _waves(rng, np.pi * ANGLES[label % 4] / 180 + turn, float(period))
    if label < 12:
        period = float(rng.uniform(3.6, 5.2) if label % 2 == 0 else rng.uniform(6.0, 9.0))
        first, second = _waves(rng, turn, period), _waves(rng, np.pi / 2 + turn, period)
        return np.clip(3 * first * second, -1, 1) if label < 10 else np.where(first + second > 0.8, 1.0, -1.0)
    if label == 12:
        return np.clip(rng.standard_normal((SIZE, SIZE), dtype=np.float32), -1, 1)
    if label == 13:
        return draw.smooth_noise(rng, SIZE, int(rng.integers(8, 13)))
    if label == 14:
        return np.where(rng.random((SIZE, SIZE)) < rng.uniform(0.04, 0.12), 1.0, -1.0).astype(np.float32)
    y, x = draw.grid(SIZE)
    height = rng.uniform(4, 6)
    row, inside = np.divmod(y + rng.uniform(0, 16), height)
    column = (x + rng.uniform(0, 16) + (row % 2) * height) % (2 * height)
    return np.where((inside < 1.2) | (column < 1.2), -1, 1).astype(np.float32)


def sample(rng: np.random.Generator, index: int, split: str) -> tuple[Array, int]:
    """Returns one image (3, 32, 32) and its class."""
    label = index % len(CLASSES)
    field = 0.5 + 0.5 * _pattern(rng, label).astype(np.float32)
    first = draw.colour(rng)
    second = draw.contrasting(rng, first, 0.35)
    image = first[:, None, None] * field + second[:, None, None] * (1 - field)
    image = np.asarray(image + 0.2 * draw.smooth_noise(rng, SIZE, 4), np.float32)
    return draw.finish(rng, image, float(rng.uniform(0.02, 0.14))), label

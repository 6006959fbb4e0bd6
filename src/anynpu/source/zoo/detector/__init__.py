"""A one-stage detector of three kinds of things on a 12 x 12 grid."""

from __future__ import annotations

import numpy as np

from anynpu.source.zoo import draw
from anynpu.source.zoo.cards import Array, Card, Recipe

SIZE = 96
MOST_OBJECTS = 4
CLASSES = ("ball", "crate", "cone")
CARD = Card(
    name="detector",
    title="One-stage detector",
    task="object detection",
    metric="map50",
    input_name="image",
    input_shape=(1, 3, SIZE, SIZE),
    output_names=("map",),
    value_range="0..1",
    classes=CLASSES,
    description="Anchor-free, one scale: 12 x 12 cells of objectness, three class logits and four distances in "
    "cells; decoding and suppression run on the host. A label row is (class, x0, y0, x1, y1), class -1 for none.",
)
RECIPE = Recipe(samples=3200, epochs=11, quantised_epochs=1, batch=32)


def _mask(kind: int, centre: tuple[float, float], half: tuple[float, float]) -> Array:
    """Returns the mask of an object that fills its box exactly."""
    if kind == 0:
        return draw.ellipse(SIZE, centre, half)
    if kind == 1:
        return draw.box(SIZE, centre, half)
    u, v = draw.local(SIZE, centre, 0.0)
    slope = half[1] / (2 * half[0])
    return draw.soft(np.maximum(v - half[0], (np.abs(u) - (v + half[0]) * slope) / np.hypot(1, slope)))


def _free(rng: np.random.Generator, taken: list[Array]) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Returns a place and size that hardly covers the others, or nothing after a few tries."""
    for _ in range(8):
        tall = float(rng.uniform(8, 21))
        half = (tall, tall * float(rng.uniform(0.75, 1.3)))
        centre = (float(rng.uniform(half[0], SIZE - half[0])), float(rng.uniform(half[1], SIZE - half[1])))
        if all(
            abs(centre[0] - o[0]) > 0.8 * (half[0] + o[2]) or abs(centre[1] - o[1]) > 0.8 * (half[1] + o[3])
            for o in taken
        ):
            return centre, half
    return None


def sample(rng: np.random.Generator, index: int, split: str) -> tuple[Array, Array]:
    """Returns one image (3, 96, 96) and its (4, 5) label rows."""
    image = 0.75 * draw.background(rng, SIZE)
    for _ in range(int(rng.integers(2, 7))):
        start = (float(rng.uniform(0, SIZE)), float(rng.uniform(0, SIZE)))
        end = (start[0] + rng.uniform(-25, 25), start[1] + rng.uniform(-25, 25))
        draw.paint(image, draw.capsule(SIZE, start, end, float(rng.uniform(0.5, 2.5))), draw.colour(rng))
    labels = np.full((MOST_OBJECTS, 5), -1, np.float32)
    taken: list[Array] = []
    for row in range(1 + index % MOST_OBJECTS):
        place = _free(rng, taken)
        if place is None:
            break
        (y, x), (tall, wide) = place
        taken.append(np.array([y, x, tall, wide], np.float32))
        kind = (index // MOST_OBJECTS + row) % len(CLASSES)
        shade = 0.15 * draw.smooth_noise(rng, SIZE, 24)
        draw.paint(image, _mask(kind, (y, x), (tall, wide)), draw.colour(rng, 0.2), shade)
        labels[row] = kind, (x - wide) / SIZE, (y - tall) / SIZE, (x + wide) / SIZE, (y + tall) / SIZE
    return draw.finish(rng, image, float(rng.uniform(0.01, 0.07))), labels

"""A visual wake word: is a person-like figure in the picture?"""

from __future__ import annotations

import numpy as np

from anynpu.source.zoo import draw
from anynpu.source.zoo.cards import Array, Card, Recipe

SIZE = 96
CARD = Card(
    name="vww",
    title="Visual wake word (MobileNet v1, width 0.25)",
    task="image classification",
    metric="top1",
    input_name="image",
    input_shape=(1, 3, SIZE, SIZE),
    output_names=("logits",),
    value_range="-1..1",
    classes=("empty", "person"),
    description="Shortened MobileNet v1 at a quarter of its width; a drawn person among balls, posts, trees, boxes and "
    "bodies without heads.",
)
RECIPE = Recipe(samples=4500, epochs=8, quantised_epochs=1, batch=32)
SKIN = np.array([1.0, 0.76, 0.6], np.float32)
Point = tuple[float, float]


def _reach(start: Point, angle: float, length: float) -> Point:
    return start[0] + length * float(np.cos(angle)), start[1] + length * float(np.sin(angle))


def _limb(rng: np.random.Generator, image: Array, start: Point, angle: float, length: float, fill: Array) -> None:
    knee = _reach(start, angle, length / 2)
    foot = _reach(knee, angle + float(rng.normal(0, 0.35)), length / 2)
    for ends in ((start, knee), (knee, foot)):
        draw.paint(image, draw.capsule(SIZE, *ends, length * 0.11), fill)


def _distractor(rng: np.random.Generator, image: Array) -> None:
    """Draws a ball, a post, a tree, a box or a heap of sticks."""
    kind, size = int(rng.integers(5)), float(rng.uniform(5, 14))
    centre = (float(rng.uniform(8, SIZE - 8)), float(rng.uniform(8, SIZE - 8)))
    foot = (centre[0] + 2.5 * size, centre[1])
    if kind in (1, 2):
        draw.paint(image, draw.capsule(SIZE, centre, foot, size * 0.2), draw.colour(rng))
    if kind in (0, 2):
        draw.paint(image, draw.ellipse(SIZE, centre, (size, size * float(rng.uniform(0.7, 1.3)))), draw.colour(rng))
    if kind == 3:
        half = (size, size * float(rng.uniform(0.5, 1.5)))
        draw.paint(image, draw.box(SIZE, centre, half, float(rng.normal(0, 0.3))), draw.colour(rng))
    if kind == 4:
        for _ in range(3):
            end = _reach(centre, float(rng.uniform(0, 6.28)), 2 * size)
            draw.paint(image, draw.capsule(SIZE, centre, end, size * 0.18), draw.colour(rng))


def sample(rng: np.random.Generator, index: int, split: str) -> tuple[Array, int]:
    """Returns one image (3, 96, 96) and whether it shows a person."""
    label = index % 2
    image = 0.7 * draw.background(rng, SIZE)
    for _ in range(int(rng.integers(1, 4))):
        _distractor(rng, image)
    if label or rng.random() < 0.04:
        tall = float(rng.uniform(52, 78))
        neck = (float(rng.uniform(0.22 * tall, SIZE - 0.72 * tall)), float(rng.uniform(16, SIZE - 16)))
        lean = float(rng.normal(0, 0.12))
        hip = _reach(neck, lean, 0.36 * tall)
        shirt, trousers = draw.colour(rng, 0.3), draw.colour(rng, 0.3)
        skin = SKIN * np.float32(rng.uniform(0.6, 1)) + np.float32(0.05) * draw.colour(rng)
        for side in (-1, 1):
            _limb(rng, image, hip, side * float(rng.uniform(0.08, 0.5)), 0.44 * tall, trousers)
            shoulder = (neck[0] + 0.04 * tall, neck[1] + side * 0.1 * tall)
            _limb(rng, image, shoulder, side * float(rng.uniform(0.2, 1.6)), 0.36 * tall, skin)
        draw.paint(image, draw.capsule(SIZE, (neck[0] + 0.06 * tall, neck[1]), hip, 0.1 * tall), shirt)
        if label:
            head = (neck[0] - 0.11 * tall, neck[1] - lean * 0.1 * tall)
            draw.paint(image, draw.ellipse(SIZE, head, (0.11 * tall, 0.09 * tall)), skin)
    if rng.random() < 0.25:
        _distractor(rng, image)
    # Centred as for kws, where the mean of the input multiplied the rounding errors of the first weights.
    return 2 * draw.finish(rng, image, float(rng.uniform(0.01, 0.03))) - 1, label

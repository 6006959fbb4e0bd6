"""Soft-edged drawing with numpy, for the images that the zoo generates."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from anynpu.source.zoo.cards import Array


@lru_cache(maxsize=8)
def grid(size: int) -> tuple[Array, Array]:
    """Returns the pixel centres of a square image as (y, x)."""
    axis = np.arange(size, dtype=np.float32) + 0.5
    y, x = np.meshgrid(axis, axis, indexing="ij")
    return y, x


@lru_cache(maxsize=32)
def _upsample(size: int, knots: int) -> Array:
    place = np.linspace(0, knots - 1, size)
    return np.asarray(np.maximum(0, 1 - np.abs(place[:, None] - np.arange(knots))), np.float32)


def smooth_noise(rng: np.random.Generator, size: int, knots: int) -> Array:
    """Returns a (size, size) field in -1..1, bilinear between random knots."""
    up = _upsample(size, knots)
    return np.asarray(up @ rng.uniform(-1, 1, (knots, knots)).astype(np.float32) @ up.T, np.float32)


def colour(rng: np.random.Generator, low: float = 0.0, high: float = 1.0) -> Array:
    """Returns a random RGB colour."""
    return rng.uniform(low, high, 3).astype(np.float32)


def contrasting(rng: np.random.Generator, other: Array, distance: float) -> Array:
    """Returns a random colour at least `distance` from another one."""
    while True:
        candidate = colour(rng)
        if float(np.linalg.norm(candidate - other)) >= distance:
            return candidate


def paint(image: Array, mask: Array, fill: Array, shade: Array | None = None) -> None:
    """Blends a colour into a (3, h, w) image through a mask, with an optional brightness field."""
    layer = fill[:, None, None] if shade is None else fill[:, None, None] + shade
    image += mask * (layer - image)


def soft(distance: Array) -> Array:
    """Returns the coverage mask of a signed distance in pixels, negative inside."""
    return np.asarray(np.clip(0.5 - distance, 0, 1), np.float32)


def capsule(size: int, start: tuple[float, float], end: tuple[float, float], radius: float) -> Array:
    """Returns the mask of a line with round ends; points are (y, x)."""
    y, x = grid(size)
    dy, dx = end[0] - start[0], end[1] - start[1]
    along = ((y - start[0]) * dy + (x - start[1]) * dx) / max(dy * dy + dx * dx, 1e-6)
    along = np.clip(along, 0, 1)
    return soft(np.hypot(y - start[0] - along * dy, x - start[1] - along * dx) - radius)


def ellipse(size: int, centre: tuple[float, float], radii: tuple[float, float]) -> Array:
    """Returns the mask of an upright ellipse."""
    y, x = grid(size)
    unit = np.hypot((y - centre[0]) / radii[0], (x - centre[1]) / radii[1])
    return soft((unit - 1) * min(radii))


def box(size: int, centre: tuple[float, float], half: tuple[float, float], angle: float = 0.0) -> Array:
    """Returns the mask of a turned rectangle with half-sides (v, u)."""
    u, v = local(size, centre, angle)
    return soft(np.maximum(np.abs(v) - half[0], np.abs(u) - half[1]))


def local(size: int, centre: tuple[float, float], angle: float) -> tuple[Array, Array]:
    """Returns pixel coordinates (u, v) in a frame moved to `centre` and turned by `angle`."""
    y, x = grid(size)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return cos * (x - centre[1]) + sin * (y - centre[0]), cos * (y - centre[0]) - sin * (x - centre[1])


def background(rng: np.random.Generator, size: int) -> Array:
    """Returns a (3, size, size) image of two blended colours with uneven light."""
    blend = 0.5 + 0.5 * smooth_noise(rng, size, int(rng.integers(2, 6)))
    first, second = colour(rng), colour(rng)
    image = first[:, None, None] * blend + second[:, None, None] * (1 - blend)
    return np.asarray(image + 0.15 * smooth_noise(rng, size, size // 3), np.float32)


def finish(rng: np.random.Generator, image: Array, noise: float) -> Array:
    """Returns the image with exposure change and sensor noise, clipped to 0..1."""
    image = image * np.float32(rng.uniform(0.75, 1.15)) + np.float32(rng.uniform(-0.05, 0.05))
    image += noise * rng.standard_normal(image.shape, dtype=np.float32)
    return np.asarray(np.clip(image, 0, 1), np.float32)

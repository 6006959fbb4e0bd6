"""Models small enough to check by hand, and pictures for them."""

from __future__ import annotations

import numpy as np

from anynpu.apps.search.models import Models, PictureModel, TextModel
from anynpu.vectors.base import VectorSpace

COLOURS = ("red", "green", "blue")
WORDS = (*COLOURS, "cat", "dog", "rain", "sun", "mat")


def unit(rows):
    rows = np.asarray(rows, np.float32) + 1e-3
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Counted:
    """The mean colour of a picture, and the counts of some words in a text, as vectors; counts what it computed."""

    def __init__(self):
        self.pictures, self.texts = [], []

    def colours(self, named):
        self.pictures += [name for name, _ in named]
        return unit([picture.pixels.reshape(-1, 3).mean(axis=0) / 255 for _, picture in named])

    def colour_words(self, texts):
        return unit([[text.lower().split().count(word) for word in COLOURS] for text in texts])

    def words(self, texts):
        self.texts += texts
        return unit([[text.lower().count(word) for word in WORDS] for text in texts])

    def models(self):
        return Models(
            PictureModel(VectorSpace("colours", "a" * 64, 3), self.colours),
            TextModel(VectorSpace("colours", "b" * 64, 3), self.colour_words),
            TextModel(VectorSpace("words", "c" * 64, len(WORDS)), self.words),
        )


def picture(path, colour, size=(40, 30), **more):
    """Writes a picture of one colour, with a corner that makes it the only one of its kind."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, colour)
    image.putpixel((0, 0), tuple(np.random.default_rng(len(str(path))).integers(0, 255, 3).tolist()))
    image.save(path, **more)
    return path

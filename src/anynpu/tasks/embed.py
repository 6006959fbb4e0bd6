"""Texts and pictures to vectors of a space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Protocol

import numpy as np

from anynpu.errors import ConfigError
from anynpu.tasks.images import Picture, Preprocess, check_input, fit, to_input
from anynpu.tasks.model import Model
from anynpu.tasks.space import Space, embedding_output, unit
from anynpu.tasks.text import Tokens, bind
from anynpu.tensors import Array, TensorSpec


class Embedder(Protocol):
    """A tower: names and what they stand for become rows of one space."""

    @property
    def space(self) -> Space: ...

    @property
    def width(self) -> int: ...


@dataclass(frozen=True)
class Tower:
    """A model whose output is a vector: its space, the width it really gives, and the rows of a batch."""

    model: Model

    @cached_property
    def output(self) -> TensorSpec:
        return embedding_output(self.space, self.model.outputs)

    @property
    def space(self) -> Space:
        if self.model.card.space is None:
            raise ConfigError(f"a card of kind {self.model.card.kind} has no space: it makes no vectors")
        return self.model.card.space

    @property
    def width(self) -> int:
        return self.output.shape[1]

    def vectors(self, outputs: dict[str, Array], names: Sequence[str]) -> Array:
        """Returns one vector a name from what the model gave; rows past the names are filling."""
        rows = self.output.to_real(outputs[self.output.name])
        return unit(rows[: len(names)], names, self.space.normalized)

    def empty(self) -> Array:
        return np.zeros((0, self.width), np.float32)


class TextTower(Tower):
    """Text to vectors."""

    @cached_property
    def tokens(self) -> Tokens:
        if self.model.card.text is None:
            raise ConfigError(f"a card of kind {self.model.card.kind} reads no text")
        return bind(self.model.card.text, self.model.files, self.model.inputs)

    def embed(self, texts: Sequence[str]) -> Array:
        """Returns one row a text."""
        found = [self.empty()]
        rest = iter(texts)
        while batch := list(islice(rest, self.tokens.batch)):
            found.append(self.vectors(self.model.run(self.tokens(batch)), [repr(text[:40]) for text in batch]))
        return np.concatenate(found)


class ImageTower(Tower):
    """Pictures to vectors."""

    @cached_property
    def fitted(self) -> tuple[TensorSpec, tuple[int, int], Preprocess]:
        """The one input, the height and width of its pictures, and how they become that."""
        preprocess = self.model.card.preprocess
        if preprocess is None:
            raise ConfigError(f"a card of kind {self.model.card.kind} reads no pictures")
        if len(self.model.inputs) != 1:
            names = ", ".join(spec.name for spec in self.model.inputs)
            raise ConfigError(f"a model of pictures has one input, this one has {names or 'none'}")
        spec = self.model.inputs[0]
        return spec, check_input(spec, preprocess), preprocess

    def embed(self, pictures: Sequence[Picture], names: Sequence[str]) -> Array:
        """Returns one row a picture."""
        found = [self.empty()]
        for at in range(0, len(pictures), self.batch):
            part = names[at : at + self.batch]
            found.append(self.vectors(self.run(pictures[at : at + self.batch], part), part))
        return np.concatenate(found)

    @property
    def batch(self) -> int:
        return self.fitted[0].shape[0]

    def run(self, pictures: Sequence[Picture], names: Sequence[str]) -> dict[str, Array]:
        """Runs the model on at most a batch of pictures; the last is given again where there are fewer."""
        spec, size, preprocess = self.fitted
        rows = []
        for picture, name in zip(pictures, names, strict=True):
            pixels, _ = fit(picture.pixels, size, preprocess, spec.layout, name)
            rows.append(to_input(pixels, preprocess, spec))
        rows += rows[-1:] * (spec.shape[0] - len(rows))
        return self.model.run({spec.name: np.concatenate(rows)})


def batches(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yields the names a batch at a time."""
    for at in range(0, len(names), size):
        yield names[at : at + size]

"""Texts and pictures to vectors of a space."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from anynpu.errors import ConfigError
from anynpu.tasks.images import Picture
from anynpu.tasks.minilm import MASK
from anynpu.tasks.model import Model
from anynpu.tasks.pictures import PictureInput
from anynpu.tasks.space import Space, cosines, embedding_output, joint, probabilities, unit
from anynpu.tasks.text import TextInput, Tokens, bind
from anynpu.tensors import Array, TensorSpec


@dataclass(frozen=True)
class Tower:
    """A model whose output is a vector: its space, and the width it really gives."""

    model: Model

    def __post_init__(self) -> None:
        _ = self.output  # a model that does not fit its card is refused before anything is read

    @property
    def space(self) -> Space:
        if self.model.card.space is None:
            raise ConfigError(f"a card of kind {self.model.card.kind} has no space: the model makes no vectors")
        return self.model.card.space

    @cached_property
    def output(self) -> TensorSpec:
        return embedding_output(self.space, self.model.outputs)

    @property
    def width(self) -> int:
        return self.output.shape[-1]

    def vectors(self, outputs: Mapping[str, Array], names: Sequence[str]) -> Array:
        """Returns one vector a name from what the model gave; rows past the names are filling."""
        rows = self.output.to_real(outputs[self.output.name])
        return unit(rows[: len(names)], names, self.space.normalized)

    def empty(self) -> Array:
        return np.zeros((0, self.width), np.float32)


class TextTower(Tower):
    """Text to vectors."""

    @cached_property
    def text(self) -> TextInput:
        if self.model.card.text is None:
            raise ConfigError(f"a card of kind {self.model.card.kind} reads no text")
        return self.model.card.text

    @cached_property
    def output(self) -> TensorSpec:
        return embedding_output(self.space, self.model.outputs, self.text.pooling != "model")

    @cached_property
    def tokens(self) -> Tokens:
        return bind(self.text, self.model.files, self.model.inputs)

    def embed(self, texts: Iterable[str]) -> Array:
        """Returns one row a text."""
        vectors = [self.empty()]
        rest = iter(texts)
        while batch := list(islice(rest, self.tokens.batch)):
            inputs = self.tokens(batch)
            rows = self.rows(self.model.run(inputs), inputs)
            vectors.append(unit(rows[: len(batch)], [repr(text[:40]) for text in batch], self.space.normalized))
        return np.concatenate(vectors)

    def rows(self, outputs: Mapping[str, Array], inputs: Mapping[str, Array]) -> Array:
        """Returns a row of real numbers for every row that the model ran on, its tokens' vectors pooled."""
        real = self.output.to_real(outputs[self.output.name])
        return real if self.text.pooling == "model" else pool(self.text.pooling, real, inputs)


def pool(how: str, states: Array, inputs: Mapping[str, Array]) -> Array:
    """Returns one vector a text from those of its tokens; padding does not count."""
    if how == "first":
        return states[:, 0]
    if MASK not in inputs:
        raise ConfigError(f"the mean over tokens needs the input {MASK}: which of them are padding?")
    present = inputs[MASK].astype(np.float64)[:, :, None]
    return np.asarray((states * present).sum(1) / np.maximum(present.sum(1), 1.0), np.float32)


@dataclass(frozen=True)
class Buckets:
    """One network at several lengths: every text goes to the shortest that holds all its tokens, or to the longest."""

    towers: tuple[TextTower, ...]

    @classmethod
    def of(cls, towers: Sequence[TextTower]) -> Buckets:
        """Returns the towers by length, if they share a space."""
        for other in towers[1:]:
            joint(towers[0].space, towers[0].width, other.space, other.width)
        return cls(tuple(sorted(towers, key=lambda tower: tower.tokens.length)))

    @property
    def space(self) -> Space:
        return self.towers[0].space

    @property
    def width(self) -> int:
        return self.towers[0].width

    def embed(self, texts: Iterable[str]) -> Array:
        """Returns one row a text, in the order given."""
        listed = list(texts)
        vectors = np.zeros((len(listed), self.width), np.float32)
        lengths = [self.towers[0].tokens.count(text) for text in listed]
        last = len(self.towers) - 1
        chosen = [next((i for i, t in enumerate(self.towers) if n <= t.tokens.length), last) for n in lengths]
        for index, bucket in enumerate(self.towers):
            rows = [row for row, which in enumerate(chosen) if which == index]
            if rows:
                vectors[rows] = bucket.embed(listed[row] for row in rows)
        return vectors


class ImageTower(Tower):
    """Pictures to vectors."""

    @cached_property
    def pictures(self) -> PictureInput:
        return PictureInput.of(self.model)

    def embed(self, pictures: Iterable[tuple[str, Picture]]) -> Array:
        """Returns one row for every named picture; only a batch of them is held at a time."""
        vectors = [self.empty()]
        rest = iter(pictures)
        while batch := list(islice(rest, self.pictures.batch)):
            vectors.append(self.vectors(self.model.run(self.pictures(batch)), [name for name, _ in batch]))
        return np.concatenate(vectors)


def tower(model: Model) -> TextTower | ImageTower:
    """Returns the model as what its card says it is."""
    return TextTower(model) if model.card.kind == "embed-text" else ImageTower(model)


@dataclass(frozen=True)
class ZeroShot:
    """Pictures told apart by texts: the share that each label's text has among all."""

    labels: tuple[str, ...]
    texts: Array
    images: ImageTower

    @classmethod
    def of(cls, images: ImageTower, texts: TextTower, labels: Sequence[str], template: str) -> ZeroShot:
        """Returns a classifier for any labels, if both towers share a space."""
        joint(images.space, images.width, texts.space, texts.width)
        if template.count("{}") != 1:
            raise ConfigError(f"the template {template!r} must hold {{}} once", "the label is put there")
        return cls(tuple(labels), texts.embed(template.replace("{}", label) for label in labels), images)

    def __call__(self, pictures: Iterable[tuple[str, Picture]]) -> Array:
        """Returns a row of probabilities a picture."""
        return probabilities(self.images.space.logit_scale * cosines(self.images.embed(pictures), self.texts))

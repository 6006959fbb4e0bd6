"""Pictures as the one input of a model, a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.errors import ConfigError
from anynpu.tasks.images import Picture, Preprocess, check_input, fit, in_order, to_input
from anynpu.tasks.model import Model
from anynpu.tensors import Array, TensorSpec


@dataclass(frozen=True)
class PictureInput:
    """Pictures prepared as a card says."""

    spec: TensorSpec
    size: tuple[int, int]
    preprocess: Preprocess

    @classmethod
    def of(cls, model: Model) -> PictureInput:
        """Returns the preparation for the one input of a model."""
        if model.card.preprocess is None:
            raise ConfigError(f"a card of kind {model.card.kind} reads no pictures")
        if len(model.inputs) != 1:
            names = ", ".join(spec.name for spec in model.inputs)
            raise ConfigError(f"a model of pictures has one input, this one has {names or 'none'}")
        spec = model.inputs[0]
        preprocess = in_order(model.card.preprocess, spec.channels)
        return cls(spec, check_input(spec, preprocess), preprocess)

    @property
    def batch(self) -> int:
        return self.spec.shape[0]

    def row(self, pixels: Array, name: str = "the image") -> Array:
        """Returns 8-bit RGB pixels as one row of the input."""
        fitted, _ = fit(pixels, self.size, self.preprocess, self.spec.layout, name)
        return to_input(fitted, self.preprocess, self.spec)

    def stack(self, rows: Sequence[Array], batch: int) -> dict[str, Array]:
        """Returns the input of this many rows; the last fills those that are left."""
        filled = [*rows, *[rows[-1]] * (batch - len(rows))]
        return {self.spec.name: filled[0] if len(filled) == 1 else np.concatenate(filled)}

    def __call__(self, pictures: Sequence[tuple[str, Picture]]) -> dict[str, Array]:
        """Returns the input for at most a batch of named pictures; the last fills the rows that are left."""
        return self.stack([self.row(picture.pixels, name) for name, picture in pictures], self.batch)

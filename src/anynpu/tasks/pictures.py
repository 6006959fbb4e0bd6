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

    def __call__(self, pictures: Sequence[tuple[str, Picture]]) -> dict[str, Array]:
        """Returns the input for at most a batch of named pictures; the last fills the rows that are left."""
        rows = []
        for name, picture in pictures:
            pixels, _ = fit(picture.pixels, self.size, self.preprocess, self.spec.layout, name)
            rows.append(to_input(pixels, self.preprocess, self.spec))
        rows += rows[-1:] * (self.batch - len(rows))
        return {self.spec.name: np.concatenate(rows)}

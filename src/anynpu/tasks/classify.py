"""Pictures to classes, by the labels of the model's own card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from anynpu.errors import AccuracyError, ConfigError
from anynpu.tasks.images import Picture
from anynpu.tasks.model import Model
from anynpu.tasks.pictures import PictureInput
from anynpu.tasks.space import probabilities
from anynpu.tensors import Array, TensorSpec


@dataclass(frozen=True)
class Classifier:
    """A model whose one output holds a logit a class."""

    model: Model

    @cached_property
    def output(self) -> TensorSpec:
        specs = self.model.outputs
        shown = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in specs)
        if len(specs) != 1 or len(specs[0].shape) < 2 or specs[0].size != specs[0].shape[0] * max(specs[0].shape[1:]):
            raise ConfigError(f"classes are one output [batch, classes]; the model has {shown}")
        return specs[0]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers where the card has none."""
        count, named = self.output.size // self.output.shape[0], self.model.card.labels
        if named and len(named) != count:
            raise ConfigError(f"the card names {len(named)} labels, the model has {count} classes")
        return named or tuple(map(str, range(count)))

    def read(self, outputs: Mapping[str, Array], names: Sequence[str]) -> Array:
        """Returns a row of probabilities a name from what the model gave; rows past the names are filling."""
        stored = outputs[self.output.name]
        logits = self.output.to_real(stored).reshape(len(stored), -1)[: len(names)]
        finite = np.isfinite(logits).all(axis=1)
        if not finite.all():
            name = names[int(np.argmin(finite))]
            raise AccuracyError(
                f"{name}: the model gives NaN or infinite numbers", "finite logits", float(finite.mean()), 1.0
            )
        return probabilities(logits)

    def __call__(self, pictures: Iterable[tuple[str, Picture]]) -> Array:
        """Returns a row of probabilities a picture."""
        prepare, rest = PictureInput.of(self.model), iter(pictures)
        scores = [np.zeros((0, len(self.labels)), np.float32)]
        while batch := list(islice(rest, prepare.batch)):
            scores.append(self.read(self.model.run(prepare(batch)), [name for name, _ in batch]))
        return np.concatenate(scores)

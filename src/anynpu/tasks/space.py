"""Embedding spaces: vectors are comparable within one, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anynpu.errors import AccuracyError, ConfigError
from anynpu.tensors import Array, TensorSpec


@dataclass(frozen=True)
class Space:
    """What makes two vectors comparable: the models they come from, their width, and whether their length is 1.

    `name` means weights, not an architecture: two trainings of one network make two spaces. `logit_scale` is the
    factor from a cosine to a logit that the towers were trained with.
    """

    name: str
    width: int | None = None
    normalized: bool = True
    logit_scale: float = 100.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a space needs a name: which model and which weights its vectors come from")
        if self.width is not None and self.width < 1:
            raise ConfigError(f"space {self.name}: a width of {self.width}")
        if not (math.isfinite(self.logit_scale) and self.logit_scale > 0):
            raise ConfigError(f"space {self.name}: a logit scale of {self.logit_scale}")


def embedding_output(space: Space, outputs: Sequence[TensorSpec], pooled: bool = False) -> TensorSpec:
    """Returns the output that holds the vectors, if it has the width of the space: [batch, width], or [batch, length,
    width] where the vectors of tokens are yet to be pooled (the first such output, whatever else the model gives)."""
    shown = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in outputs)
    if pooled:
        outputs = [spec for spec in outputs if len(spec.shape) == 3][:1]
    if len(outputs) != 1 or len(outputs[0].shape) != (3 if pooled else 2):
        wanted = "[batch, length, width]" if pooled else "[batch, width]"
        raise ConfigError(f"an embedding is one output {wanted}; the model has {shown}")
    width = outputs[0].shape[-1]
    if space.width is not None and width != space.width:
        raise ConfigError(
            f"space {space.name} has {space.width} numbers a vector, the model gives {width} (output {shown})",
            "padding or cutting makes no vector of that space: use the model's own card",
        )
    return outputs[0]


def joint(first: Space, first_width: int, second: Space, second_width: int) -> Space:
    """Returns the space of both, or says why their vectors mean nothing to each other."""
    differences = {
        "name": (first.name, second.name),
        "width": (first_width, second_width),
        "normalisation": (first.normalized, second.normalized),
        "logit scale": (first.logit_scale, second.logit_scale),
    }
    for what, (a, b) in differences.items():
        if a != b:
            raise ConfigError(
                f"the two models have no space in common: {what} {a} and {b}",
                "compare vectors of two towers that were trained together, with cards that say so",
            )
    return first


def unit(vectors: Array, names: Sequence[str], normalized: bool = True) -> Array:
    """Returns float32 rows of length 1; a row that has no direction raises, a vector of NaN is not an embedding."""
    rows = np.asarray(vectors, np.float64)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        name = names[int(np.argmin(finite))]
        raise AccuracyError(
            f"{name}: the model gives NaN or infinite numbers", "finite vectors", float(finite.mean()), 1.0
        )
    lengths = np.linalg.norm(rows, axis=1)
    if not lengths.all():
        name = names[int(np.argmin(lengths))]
        raise AccuracyError(f"{name}: the model gives a vector of zeros, which has no direction", "length", 0.0, 1.0)
    return (rows / lengths[:, None] if normalized else rows).astype(np.float32)


def cosines(a: Array, b: Array) -> Array:
    """Returns the cosine of every row of `a` with every row of `b`."""
    left, right = (np.asarray(x, np.float64) for x in (a, b))
    lengths = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
    return np.clip(left @ right.T / lengths, -1.0, 1.0).astype(np.float32)


def row_cosines(a: Array, b: Array) -> Array:
    """Returns the cosine of each row and that of another matrix: 1 for equal rows, 0 for zeros, NaN for NaN."""
    left, right = (np.asarray(x, np.float64) for x in (a, b))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    products = np.divide((left * right).sum(axis=1), lengths, out=np.zeros_like(lengths), where=lengths != 0)
    return np.where((left == right).all(axis=1), 1.0, products)


def probabilities(logits: Array) -> Array:
    """Returns the softmax of every row."""
    rows = np.asarray(logits, np.float64)
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float32)

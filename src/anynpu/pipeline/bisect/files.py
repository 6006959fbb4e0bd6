"""What is cut: a model file, the places of shared tensors in it, and sub-models of it as files of the same kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from anynpu.artifact import Manifest
from anynpu.graph.outline import Outline
from anynpu.tensors import Array, TensorSpec


@dataclass(frozen=True)
class Place:
    """Where a shared tensor lies in one file.

    Values go in at `fed`, before the tensor is rounded, and are read at `read`, behind that. `axes` is the order of the
    file's axes among the shared ones; where channels were equalised, the file's values are larger by `factors`.
    """

    fed: str
    read: str
    shape: tuple[int, ...] | None = None
    axes: tuple[int, ...] = ()
    factors: Array | None = None

    def to_file(self, shared: Array) -> Array:
        own = np.transpose(shared, self.axes) if self.axes else shared
        return np.ascontiguousarray(own if self.factors is None else (own * self.factors).astype(own.dtype))

    def to_shared(self, own: Array) -> Array:
        plain = own if self.factors is None else (own / self.factors).astype(own.dtype)
        return np.ascontiguousarray(np.transpose(plain, np.argsort(self.axes)) if self.axes else plain)


@dataclass(frozen=True)
class Fed:
    """What goes into a sub-model: the shared name, the file's own, and values that show shape and type."""

    name: str
    own: str
    values: Array


class ModelFile(Protocol):
    """A model whose operators can be read and taken apart."""

    path: Path
    suffix: str
    format: str
    """That of its artifacts, which decides what runs them."""
    outline: Outline
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def quantised(self) -> bool:
        """Whether some activations are stored as integers with a scale."""
        ...

    def places(self) -> Mapping[str, Place]:
        """Returns where each activation lies, by its name in this file."""
        ...

    def cut(self, inputs: Sequence[Fed], outputs: Mapping[str, str], folder: Path) -> Manifest:
        """Writes the sub-model between tensors into a folder and returns what it is; its borders have shared names.

        `outputs` are the file's own names by the shared ones. A cut that cannot be made raises Unsupported.
        """
        ...

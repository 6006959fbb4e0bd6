"""Tensors at the borders: their names, shapes, types, layouts, and the one quantisation convention.

    real = (stored - zero_point) * scale

A vendor that counts otherwise is converted where its files or calls are touched, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anynpu.errors import ConfigError

Array = NDArray[Any]
ENDLESS = 1e31
"""From here on a number stands for an infinity: exporters write the lowest number of its type into masks."""

DTYPES = (
    "float32",
    "float16",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
)


@dataclass(frozen=True)
class Quantization:
    """How stored integers stand for real numbers: one scale for the tensor, or one per slice along `axis`."""

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.zero_point) or not self.scale:
            raise ConfigError("a quantisation needs as many zero points as scales, and at least one")
        if self.axis is None and len(self.scale) != 1:
            raise ConfigError(f"{len(self.scale)} scales need the axis they belong to")
        if not all(math.isfinite(s) and s > 0 for s in self.scale):
            raise ConfigError("a quantisation scale must be a finite number above zero")

    def _along(self, values: Sequence[float] | Sequence[int], ndim: int) -> NDArray[np.float64]:
        array = np.asarray(values, dtype=np.float64)
        if self.axis is None:
            return array.reshape(())
        shape = [1] * ndim
        shape[self.axis] = len(array)
        return array.reshape(shape)

    def quantize(self, real: Array, dtype: str) -> Array:
        """Returns the stored integers nearest to `real`, saturated to the range of `dtype`."""
        limits = np.iinfo(dtype)
        steps = np.rint(np.asarray(real, np.float64) / self._along(self.scale, np.ndim(real)))
        stored = steps + self._along(self.zero_point, np.ndim(real))
        if np.isnan(stored).any():
            raise ConfigError("NaN cannot be quantised", "look for it in the data and in the model")
        # The largest 64-bit integers are not doubles: rounded up they would wrap around to the smallest.
        upper = float(limits.max) if int(float(limits.max)) <= limits.max else np.nextafter(float(limits.max), 0)
        return np.asarray(np.clip(stored, limits.min, upper)).astype(dtype)

    def dequantize(self, stored: Array) -> NDArray[np.float32]:
        """Returns the real numbers that the stored integers stand for."""
        offset = np.asarray(stored, np.float64) - self._along(self.zero_point, np.ndim(stored))
        return np.asarray(offset * self._along(self.scale, np.ndim(stored)), np.float32)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a vendor's runtime or a board's firmware describes it, in its own convention of scale and type."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float
    zero_point: int


@dataclass(frozen=True)
class TensorSpec:
    """What a model takes or gives under one name.

    `layout` names the axes ("NCHW", "NHWC", "NCW", "NF"); "" says that nobody stated it and no operator tells.
    `channels` is the order of colour channels ("RGB", "BGR"), "" where it means nothing.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = ""
    channels: str = ""
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"tensor {self.name}: no such data type: {self.dtype}", "known: " + ", ".join(DTYPES))
        if self.layout and len(self.layout) != len(self.shape):
            raise ConfigError(f"tensor {self.name}: layout {self.layout} does not fit the shape {list(self.shape)}")
        if len(set(self.layout)) != len(self.layout):
            raise ConfigError(f"tensor {self.name}: layout {self.layout} names an axis twice")

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize

    def check(self, array: Array) -> None:
        """Raises unless `array` has the shape and type this tensor has."""
        if tuple(array.shape) != self.shape:
            moved = sorted(array.shape) == sorted(self.shape)
            raise ConfigError(
                f"tensor {self.name} has shape {list(self.shape)}, not {list(array.shape)}",
                f"the layout is {self.layout}: are the axes in another order?" if moved and self.layout else "",
            )
        if str(array.dtype) != self.dtype:
            raise ConfigError(f"tensor {self.name} holds {self.dtype}, not {array.dtype}")

    def to_stored(self, real: Array) -> Array:
        """Returns real numbers in the form the model stores them."""
        if self.quantization is not None:
            return self.quantization.quantize(real, self.dtype)
        return np.asarray(real).astype(self.dtype)

    def to_real(self, stored: Array) -> Array:
        """Returns what the stored numbers stand for: float32, or the integers themselves where nothing is quantised."""
        if self.quantization is not None:
            return self.quantization.dequantize(stored)
        return stored.astype(np.float32) if stored.dtype.kind == "f" else stored

    def renamed(self, name: str) -> TensorSpec:
        return replace(self, name=name)


def relayout(array: Array, source: str, wanted: str) -> Array:
    """Returns `array` with its axes moved from layout `source` to layout `wanted`."""
    if source == wanted or not source or not wanted:
        return array
    return np.ascontiguousarray(seen_as(array, source, wanted))


def seen_as(array: Array, source: str, wanted: str) -> Array:
    """Returns what `relayout` does where the values stay: nothing is copied."""
    if source == wanted or not source or not wanted:
        return array
    if sorted(source) != sorted(wanted):
        raise ConfigError(f"layout {source} cannot be turned into {wanted}: they name different axes")
    return np.transpose(array, [source.index(axis) for axis in wanted])


def by_name(specs: Sequence[TensorSpec]) -> Mapping[str, TensorSpec]:
    return {spec.name: spec for spec in specs}

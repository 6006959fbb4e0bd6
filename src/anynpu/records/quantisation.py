"""The quantisation of a model: how every tensor is stored and where that comes from, and what every operator computes
in. Every emitter (QDQ ONNX, TFLite, QDQ for the Hexagon NPU) writes it, and takes an edited one back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from anynpu.errors import ConfigError
from anynpu.schema import about

FILE = "quantisation.json"
"""The record next to a file that was quantised here."""
Emitter = Literal["qdq", "tflite", "qnn", "cvi", "ai8x", "quark", "rknn"]
Origin = Literal["measured", "function", "kernel", "tied", "weights", "bias", "constant", "trained", "file", "stated"]
ORIGINS: Mapping[Origin, str] = {
    "measured": "the range comes from the samples",
    "function": "the range has the least error behind the function that reads the tensor",
    "kernel": "the kernel has this scale built in",
    "tied": "the scale is that of the tensors that it is moved from or joined with",
    "weights": "the scales come from the weights themselves",
    "bias": "the scales are those of the input times those of the weights",
    "constant": "the range is that of the stored numbers",
    "trained": "training ended with it",
    "file": "the model brought it",
    "stated": "-O quantisation states it",
}
_INTEGERS = {f"int{bits}": bits for bits in (1, 2, 4, 8, 16, 32, 64)}
_LIMITS = {name: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for name, bits in _INTEGERS.items()} | {
    "uint8": (0, 255),
    "uint16": (0, 65535),
}
_FLOATS = ("float32", "bfloat16", "float16")
DTYPES = (*_LIMITS, *_FLOATS)


@dataclass(frozen=True, kw_only=True)
class TensorForm:
    """How one tensor is stored: real = (stored - zero_point) * scale."""

    dtype: str = about("the type that it is stored in", "")
    scale: tuple[float, ...] = about("one, or one for each slice along the axis", ())
    zero_point: tuple[int, ...] = about("as many as there are scales", ())
    axis: int | None = about("the axis of the scales", None)
    range: tuple[float, float] | None = about("the real numbers that the integers were chosen for", None)
    origin: Origin | None = about("where the scale comes from", None)

    def __post_init__(self) -> None:
        if self.dtype and self.dtype not in DTYPES:
            raise ConfigError(f"no such type: {self.dtype}", "known: " + ", ".join(DTYPES))
        if not all(math.isfinite(each) and each > 0 for each in self.scale):
            raise ConfigError("a scale must be a finite number above zero")
        if len(self.scale) != len(self.zero_point):
            raise ConfigError(f"{len(self.scale)} scales need as many zero points, not {len(self.zero_point)}")
        if len(self.scale) > 1 and self.axis is None:
            raise ConfigError(f"{len(self.scale)} scales need the axis that they belong to")
        if self.range is not None and not (all(map(math.isfinite, self.range)) and self.range[0] <= self.range[1]):
            raise ConfigError(f"[{self.range[0]}, {self.range[1]}] is not a range of numbers")
        low, high = _LIMITS.get(self.dtype, (-math.inf, math.inf))
        if not all(low <= each <= high for each in self.zero_point):
            raise ConfigError(f"a zero point lies outside of {self.dtype}")
        if self.dtype in _FLOATS and self.scale:
            raise ConfigError("a tensor in floating point has no scale")

    def same_scale(self, other: TensorForm) -> bool:
        """Tells whether integers stand for the same numbers; files keep scales in float32."""
        alike = np.array_equal(np.asarray(self.scale, np.float32), np.asarray(other.scale, np.float32))
        return alike and self.zero_point == other.zero_point and self.axis == other.axis

    def same_form(self, other: TensorForm) -> bool:
        """Tells whether tensors are stored in the same type and at the same scale."""
        return self.dtype == other.dtype and self.same_scale(other)

    def in_words(self) -> str:
        """Returns the form as a sentence says it."""
        if len(self.scale) != 1:
            return self.dtype + (f" with {len(self.scale)} scales along axis {self.axis}" if self.scale else "")
        return f"{self.dtype} with scale {self.scale[0]:.6g} and zero point {self.zero_point[0]}".strip()


@dataclass(frozen=True, kw_only=True)
class OperatorForm:
    """What one operator computes in."""

    kind: str
    computes: str = about("the type of its activations")


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A tensor that one operator reads in another form than it is stored in."""

    operator: str = about("its first result")
    tensor: str
    form: TensorForm


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """The quantisation of a model, by the names of the emitter's own float graph."""

    emitter: Emitter | None = None
    tensors: Mapping[str, TensorForm] = field(default_factory=dict)
    operators: Mapping[str, OperatorForm] = field(default_factory=dict, metadata={"help": "by their first results"})
    converted: tuple[Converted, ...] = ()
    equalized: str = about("digest of the factors by which channels were made equally loud", "")
    schema_version: int = 1

    @property
    def floats(self) -> list[str]:
        """The first results of operators in floating point."""
        return sorted(name for name, each in self.operators.items() if each.computes == "float32")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A tensor that two quantisations store differently."""

    tensor: str
    what: Literal["type", "scale", "only in A", "only in B"]
    a: str = ""
    b: str = ""


def differences(a: Quantisation, b: Quantisation) -> list[Difference]:
    """Returns the tensors that two quantisations store differently, by name."""
    tensors = []
    for name in sorted({*a.tensors, *b.tensors}):
        mine, theirs = a.tensors.get(name), b.tensors.get(name)
        if mine is None or theirs is None:
            only = "only in B" if mine is None else "only in A"
            words = {"a": mine.in_words()} if mine is not None else {"b": theirs.in_words()} if theirs else {}
            tensors.append(Difference(tensor=name, what=only, **words))  # type: ignore[arg-type]
        elif not mine.same_form(theirs):
            what: Literal["type", "scale"] = "type" if mine.dtype != theirs.dtype else "scale"
            tensors.append(Difference(tensor=name, what=what, a=mine.in_words(), b=theirs.in_words()))
    return tensors

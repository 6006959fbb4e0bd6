"""How a compiler rounds a model: which tensors are stored as integers, and what the integers stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anynpu.quantize.fixed import Fixed, FixedWeights
from anynpu.quantize.ranges import Range
from anynpu.tensors import Array

Fractions = Literal["even", "up", "cut"]
"""What becomes of fractions: rounded, halves to even numbers or up, or cut off towards zero."""


@dataclass(frozen=True)
class Rounding:
    """The integers of one activation: real = (stored - zero_point) * scale, from `low` to `high`."""

    low: int
    high: int
    scale: float
    zero_point: int = 0
    free: bool = True
    """Whether the compiler takes the scale from a range, so that another may be given; kernels have some built in."""
    fractions: Fractions = "even"
    gain: float = 1.0
    """What a value is multiplied by first: a layer that ought to hand it on as it is may have too few bits for that."""
    least: float | None = None
    """The smallest value that was measured, where it lies above what integers on both sides of zero cover."""

    def limits(self) -> Range:
        """Returns the range of real numbers that the integers cover, from the smallest value that was measured on."""
        low = (self.low - self.zero_point) * self.scale
        return Range(low if self.least is None else self.least, (self.high - self.zero_point) * self.scale)

    @property
    def dtype(self) -> str:
        """The type of the integers."""
        return f"int{(self.high - self.low).bit_length()}"

    @property
    def group(self) -> tuple[int, int, float, int]:
        """What tensors that share one scale have in common."""
        return self.low, self.high, self.scale, self.zero_point


@dataclass(frozen=True)
class Folded:
    """The zero point of a layer's input, as its biases hold it: `centre` times the sum of each output's weights."""

    weights: str
    axis: int
    """That of the outputs in the weights."""
    centre: float


@dataclass(frozen=True)
class Factors:
    """Numbers that a compiler multiplies weights by along an axis: those of a product before or behind their layer."""

    axis: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class WeightRounding:
    """The integers of stored weights: real = stored * scale, one scale, or one for each slice along `axis`."""

    low: int
    high: int
    scale: tuple[float, ...]
    axis: int | None = None
    tensor: str = ""
    """The name of the weights in the compiled file."""
    fixed: bool = False
    """Whether the scale is bound to others (a power of two, a shift) and must stay as it is."""
    folded: Folded | None = None
    """Of biases: what is added to them before they are rounded."""
    factors: tuple[Factors, ...] = ()
    """What the weights of the float model are multiplied by before they are rounded."""

    def factor(self, rank: int) -> NDArray[np.float32]:
        """Returns the product of all factors, in a shape that weights of this rank can be multiplied with."""
        product = np.ones((1,) * rank)
        for each in self.factors:
            product = product * np.reshape(each.values, [-1 if axis == each.axis else 1 for axis in range(rank)])
        return product.astype(np.float32)

    @property
    def bits(self) -> int:
        """The width of an integer."""
        return (self.high - self.low).bit_length()


@dataclass(frozen=True)
class Scheme:
    """The roundings of a compiled model, by the names of the float ONNX graph.

    `others` are activations of the compiled file that the ONNX graph does not have by that name: they are not rounded
    in training, but share the scale of one that is. `added` are weights that only the compiled file has, by their names
    there. `constant` are stored numbers that training leaves as they are: the compiler makes them part of others.
    """

    activations: Mapping[str, Rounding]
    weights: Mapping[str, WeightRounding]
    others: Mapping[str, Rounding] = field(default_factory=dict)
    added: Mapping[str, WeightRounding] = field(default_factory=dict)
    constant: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    """Activations that are others in another type."""

    def fixed(self, weights_of_file: bool) -> Fixed:
        """Returns what a quantiser keeps to; weights have the names of the compiled file, or of the ONNX graph."""
        forms = {**self.activations, **self.others}
        weights = {
            each.tensor if weights_of_file else name: FixedWeights(4 if each.bits <= 4 else 8, each.scale, each.axis)
            for name, each in self.weights.items()
        }
        return Fixed(
            {name: each.limits() for name, each in forms.items()},
            {name: (each.scale, each.zero_point) for name, each in forms.items()},
            weights,
            "trained",
            repaired=False,
            copies={(source, forms[name].dtype): forms[name].limits() for name, source in self.copies.items()},
        )

    def stretched(self, factors: Mapping[str, float]) -> Scheme:
        """Returns the scheme with the scales of tensors changed by factors, and all that share a scale with them."""
        by_group = {self.activations[name].group: factor for name, factor in factors.items()}

        def changed(each: Rounding) -> Rounding:
            factor = by_group.get(each.group, 1.0)
            least = None if each.least is None else each.least * factor
            return replace(each, scale=float(np.float32(each.scale * factor)), least=least) if each.free else each

        return replace(
            self,
            activations={name: changed(each) for name, each in self.activations.items()},
            others={name: changed(each) for name, each in self.others.items()},
        )


def integers(weights: Array, rounding: WeightRounding) -> NDArray[np.int8]:
    """Returns weights as the integers that stand for them."""
    scale = np.asarray(rounding.scale, np.float64)
    if rounding.axis is not None and len(scale) > 1:
        scale = scale.reshape([-1 if a == rounding.axis else 1 for a in range(weights.ndim)])
    values = np.asarray(weights, np.float64) * rounding.factor(weights.ndim)
    return np.clip(np.rint(values / scale), rounding.low, rounding.high).astype(np.int8)


def reals(stored: Array, rounding: WeightRounding, values: Array) -> NDArray[np.float32]:
    """Returns what the integers of weights stand for; what a factor of zero leaves nothing of keeps its value."""
    scale = np.asarray(rounding.scale, np.float32)
    if rounding.axis is not None and len(scale) > 1:
        scale = scale.reshape([-1 if a == rounding.axis else 1 for a in range(stored.ndim)])
    real, factor = stored.astype(np.float32) * scale, rounding.factor(stored.ndim)
    return np.asarray(np.divide(real, factor, np.array(values, np.float32), where=factor != 0), np.float32)


def grids(scheme: Scheme, values: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns the integers of trained weights and biases, and all trained values with those as what they stand for."""
    stored: dict[str, Array] = {}
    real = dict(values)
    for name, rounding in sorted(scheme.weights.items(), key=lambda item: item[1].folded is not None):
        if name not in values:
            continue
        folded, shift = rounding.folded, 0.0
        if folded is not None:
            rows = np.moveaxis(real[folded.weights], folded.axis, 0)
            shift = folded.centre * rows.reshape(len(rows), -1).sum(axis=1)
        stored[name] = integers(values[name] + shift, rounding)
        real[name] = reals(stored[name], rounding, values[name]) - shift
    return stored, real

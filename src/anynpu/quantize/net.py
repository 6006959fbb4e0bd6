"""A graph as the repairs see it. ONNX models and TFLite graphs both show themselves as a `Net`, and both can take a
`Change`: every repair is written once, over these two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from anynpu.quantize.fitting import Window
from anynpu.tensors import Array

Floats = NDArray[np.float64]
Run = Callable[[dict[str, Array]], dict[str, Array]]
Kind = Literal[
    "layer", "add", "multiply", "divide", "sigmoid", "softmax", "norm", "root", "rectifier", "pad", "largest", "other"
]
"""What an operation is to the repairs; a root is a square root or an inverse, by which normalisations divide."""


@dataclass(frozen=True)
class Layer:
    """The stored weights and bias of a convolution or dense layer, and where its channels stand."""

    weights: str
    bias: str
    """Empty where there is none."""
    shape: tuple[int, ...]
    """That of the stored weights."""
    output_axis: int
    input_axis: int
    """In the weights; that of a depthwise layer has one element."""
    groups: int = 1
    channel_axis: int = -1
    """In what the layer reads and gives."""
    dense: bool = False
    window: Window | None = None
    """Where a convolution reads; None where that is not known."""

    @property
    def inputs(self) -> int:
        """The number of channels that the layer reads."""
        return self.shape[self.input_axis] * self.groups

    @property
    def depthwise(self) -> bool:
        """Whether each output channel is computed from one input channel."""
        return self.groups > 1 and self.shape[self.input_axis] == 1

    def along_outputs(self, factors: Floats) -> Floats:
        """Returns a factor for each output channel in the shape of the weights."""
        return factors.reshape([-1 if axis == self.output_axis else 1 for axis in range(len(self.shape))])

    def along_inputs(self, factors: Floats) -> Floats:
        """Returns a factor for each input channel in the shape of the weights of a layer of one group, or depthwise."""
        if self.depthwise:
            return self.along_outputs(np.repeat(factors, self.shape[self.output_axis] // self.groups))
        return factors.reshape([-1 if axis == self.input_axis else 1 for axis in range(len(self.shape))])

    def rows(self, weights: Array) -> Array:
        """Returns stored weights as (outputs, inputs of the output's group, places)."""
        return np.moveaxis(weights, (self.output_axis, self.input_axis), (0, 1))

    def stored(self, rows: Array) -> Array:
        """Returns rows as the weights are stored."""
        return np.ascontiguousarray(np.moveaxis(rows, (0, 1), (self.output_axis, self.input_axis)))


@dataclass(frozen=True)
class Operation:
    """One operation, with what the repairs need to know of it."""

    kind: Kind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layer: Layer | None = None
    function: Callable[..., Array] | None = None
    """What it computes element by element from all of its inputs; None where it does something else."""
    plain: bool = True
    """Whether no activation is fused into it."""
    rectified: bool = False
    """Whether a rectifier is fused into it, which a positive factor passes through."""
    moves: str = ""
    """The input whose values it hands on, none of them changed."""
    reshapes: bool = False
    """Whether it moves values without changing their order."""
    joins: tuple[str, ...] = ()
    """The tensors that its result consists of, every value of them; that of a pad has zeros too."""
    parameters: tuple[str, ...] = ()
    """The stored scale and bias of a normalisation over the last axis."""
    axis: int = -1
    """That of a softmax."""

    @property
    def result(self) -> str:
        return self.outputs[0]


@dataclass(frozen=True)
class Net:
    """Operations in an order in which they can run, and what is known of their tensors."""

    operations: Sequence[Operation]
    outputs: frozenset[str]
    shapes: Mapping[str, Sequence[int]]
    """Those of computed tensors."""
    stored: Collection[str]
    constant: Callable[[str], Array]
    """Returns a stored tensor."""
    numbers: Mapping[str, Array]
    """Stored tensors of one floating-point number, without axes."""
    fine: frozenset[str] = frozenset()
    """Results that have more bits than what is rounded before them."""

    @cached_property
    def makers(self) -> dict[str, Operation]:
        """The operation that makes each computed tensor."""
        return {name: operation for operation in self.operations for name in operation.outputs}

    @cached_property
    def readers(self) -> dict[str, list[Operation]]:
        """The operations that read each tensor, in order."""
        readers: dict[str, list[Operation]] = {}
        for operation in self.operations:
            for name in dict.fromkeys(operation.inputs):
                readers.setdefault(name, []).append(operation)
        return readers

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each tensor is read."""
        return Counter(name for operation in self.operations for name in operation.inputs)

    @cached_property
    def computed(self) -> frozenset[str]:
        """The tensors that are fed or computed."""
        return frozenset({*self.makers, *self.uses} - {*self.stored, ""})

    def alone(self, name: str) -> bool:
        """Tells whether one operation reads a tensor, and nobody else."""
        return len(self.readers.get(name, ())) == 1 and name not in self.outputs

    def own(self, *names: str) -> bool:
        """Tells whether each of the tensors that are named is stored and read once."""
        return all(name in self.stored and self.uses[name] == 1 for name in names if name)

    def owned_layer(self, operation: Operation) -> Layer | None:
        """Returns the layer that an operation is where its weights and bias are its own."""
        layer = operation.layer
        return layer if layer is not None and self.own(layer.weights, layer.bias) else None

    def taking(self, operation: Operation, name: str, channels: int) -> Layer | None:
        """Returns the layer that an operation is where it can take back factors of the channels of a tensor."""
        layer = self.owned_layer(operation)
        if layer is None or operation.inputs[0] != name or layer.inputs != channels:
            return None
        return layer if layer.groups == 1 or layer.depthwise else None


@dataclass
class Change:
    """Channels that become louder, with what makes them so and what takes it back."""

    net: Net
    stored: dict[str, Array] = field(default_factory=dict)
    """New contents of stored tensors."""
    factors: dict[str, Floats] = field(default_factory=dict)
    """By how much the channels of computed tensors become louder."""
    axes: dict[str, int] = field(default_factory=dict)
    """The axis of these channels."""
    restored: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The operations, by their first result, that read such a tensor as it was: through a product with the inverse
    factors."""

    def values(self, name: str) -> Array:
        """Returns what a stored tensor holds after all changes so far."""
        return self.stored[name] if name in self.stored else self.net.constant(name)

    def scale(self, name: str, factors: Floats) -> None:
        """Multiplies a stored tensor."""
        self.stored[name] = np.asarray(self.values(name) * factors, np.float32)

    def lift(self, layer: Layer, factors: Floats) -> None:
        """Multiplies the output channels of a layer."""
        self.scale(layer.weights, layer.along_outputs(factors))
        if layer.bias:
            self.scale(layer.bias, factors.reshape(self.values(layer.bias).shape))

    def take_back(self, layer: Layer, factors: Floats) -> None:
        """Lets a layer take back the factors of its input channels."""
        self.scale(layer.weights, layer.along_inputs(1 / factors))

    def louder(self, names: Iterable[str], factors: Floats, axis: int = -1) -> None:
        """Notes that the channels of tensors are louder by these factors."""
        for name in names:
            self.factors[name], self.axes[name] = factors, axis

    def restore(self, name: str, readers: Iterable[Operation]) -> None:
        """Lets some readers of a louder tensor read it as it was."""
        if results := tuple(reader.result for reader in readers):
            self.restored[name] = results

    def inverse(self, name: str) -> Array:
        """Returns the inverse factors of a tensor in a shape that it can be multiplied with."""
        rank = len(self.net.shapes[name])
        along = [1] * rank
        along[self.axes[name]] = -1
        return (1 / self.factors[name]).astype(np.float32).reshape(along)


@dataclass(frozen=True)
class Origin:
    """The tensor of the first graph whose values a tensor has, each channel times a factor where there are any."""

    tensor: str
    factors: Floats | None = None
    axis: int = -1

    def louder(self, factors: Floats, axis: int) -> Origin:
        """Returns the origin of a tensor that is louder by these factors than the one with this origin."""
        return Origin(self.tensor, factors if self.factors is None else self.factors * factors, axis)


class Form(Protocol):
    """A float graph in one of its forms; a change gives a new one."""

    @property
    def origins(self) -> Mapping[str, Origin]:
        """Where the values of tensors come from that the first graph does not have, or not with these values."""

    @property
    def operators(self) -> Sequence[Any]:
        """The operators as the form has them."""

    def net(self) -> Net:
        """Returns the graph as the repairs see it."""

    def run(self, names: Collection[str] = ()) -> Run:
        """Returns a function that gives activations for one sample: those that are named, or all; the next call may
        overwrite its arrays."""

    def changed(self, change: Change) -> Self:
        """Returns the graph with the change."""

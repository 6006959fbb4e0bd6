"""A graph of TFLite operators: frozen parts, tensors by name, with their constants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from anynpu.lowering.options import Fused, Options
from anynpu.tensors import Array, Quantization


@dataclass(frozen=True)
class Tensor:
    """One tensor; a constant carries its contents, a tensor of integers that stand for reals its quantisation."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    data: Array | None = field(default=None, repr=False, compare=False)
    quantization: Quantization | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Operator:
    """One TFLite operator; an optional input that is left out is the empty name."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: Options | None = None

    @property
    def activation(self) -> str:
        """The activation that the operator applies to its result."""
        return self.options.fused_activation_function if isinstance(self.options, Fused) else "NONE"


@dataclass(frozen=True)
class Graph:
    """Operators in an order in which they can run, every tensor they name, and the borders."""

    operators: tuple[Operator, ...]
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def constant(self, name: str) -> Array | None:
        """Returns the contents of a constant, None for anything else."""
        tensor = self.tensors.get(name)
        return None if tensor is None else tensor.data

    def makers(self) -> dict[str, Operator]:
        """Returns the operator that makes each computed tensor."""
        return {name: operator for operator in self.operators for name in operator.outputs}

    def readers(self) -> dict[str, list[Operator]]:
        """Returns the operators that read each tensor, in order."""
        readers: dict[str, list[Operator]] = {}
        for operator in self.operators:
            for name in dict.fromkeys(operator.inputs):
                readers.setdefault(name, []).append(operator)
        return readers

    def counts(self) -> dict[str, int]:
        """Returns how often each kind of operator occurs."""
        return dict(sorted(Counter(operator.kind for operator in self.operators).items()))


def pruned(
    operators: Iterable[Operator], tensors: Mapping[str, Tensor], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Graph:
    """Returns the graph without operators and tensors that no output depends on."""
    needed, kept = {*outputs}, list[Operator]()
    for operator in reversed(list(operators)):
        if needed & {*operator.outputs}:
            needed |= {*operator.inputs}
            kept.append(operator)
    needed |= {*inputs} | {name for operator in kept for name in operator.outputs}
    return Graph(tuple(reversed(kept)), {n: t for n, t in tensors.items() if n in needed}, inputs, outputs)


def free_name(stem: str, *taken: Container[str]) -> str:
    """Returns a name that no tensor has yet: the stem, or the stem and the number behind those that are in use."""

    def named(number: int) -> str:
        return f"{stem}~{number}" if number else stem

    def in_use(number: int) -> bool:
        return any(named(number) in each for each in taken)

    if not in_use(0):
        return stem
    high = 1
    while in_use(high):  # a recurrent layer makes thousands of one stem
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if in_use(middle) else (low, middle)
    return named(high)


def int32(values: Iterable[int]) -> Array:
    """Returns whole numbers as TFLite takes them for shapes, axes and paddings."""
    return np.asarray(list(values), np.int32)

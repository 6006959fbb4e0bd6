"""What an emitter makes of one operator: calls of kernels with constant parameters, and what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from anynpu.errors import AnyNpuError
from anynpu.firmware.generator.graph import Graph, Node
from anynpu.tensors import Array

MAX_RANK = 6


class Refused(AnyNpuError):
    """An operator that the generator has no kernel for; the message is the reason, without the operator's name."""


@dataclass(frozen=True)
class Constant:
    """An array in flash: `values` of C type `ctype`; the rows of a structured type are written in braces."""

    name: str
    ctype: str
    values: Array = field(compare=False, repr=False)
    item_bytes: int = 1

    @property
    def bytes(self) -> int:
        rows = self.values.shape[0] if self.values.ndim == 2 else self.values.size
        return rows * self.item_bytes


Value = int | float | Constant | Sequence[int] | Mapping[str, int] | Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Tensor:
    """An argument that is a tensor, by its number; `ctype` is the type that the kernel sees."""

    number: int
    ctype: str


@dataclass(frozen=True)
class Scratch:
    """An argument that is this layer's working memory."""

    ctype: str


@dataclass(frozen=True)
class Call:
    """One call: `kernel` without the prefix, the fields of its parameters in order, the arguments after them."""

    kernel: str
    params: Mapping[str, Value]
    arguments: tuple[Tensor | Scratch, ...]


@dataclass(frozen=True)
class Layer:
    """One operator as C. The output may take the memory of an input in `over`; with `alias` it is that input itself."""

    node: Node
    calls: tuple[Call, ...] = ()
    scratch: int = 0
    over: tuple[int, ...] = ()
    alias: int | None = None
    note: str = ""
    variant: str = "plain"
    reads_past: int = 0
    """How many bytes behind its first input a layer reads, whatever they hold."""
    plain_instructions: int | None = None
    """What plain kernels are expected to take, where this layer has others."""
    roomy: Layer | None = None
    """The same with fewer instructions and more scratch, for where the arena has room."""


Emitter = Callable[[Graph, Node], Layer]
VariantEmitter = Callable[[Graph, Node], Layer | None]
"""Makes a layer with instructions of a core, or None where it has no kernel for it."""


def require(condition: bool, reason: str) -> None:
    """Raises Refused with the reason unless the condition holds."""
    if not condition:
        raise Refused(reason)

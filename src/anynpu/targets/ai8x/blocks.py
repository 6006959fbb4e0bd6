"""A float network cut into the layers of the accelerator: a window, a sum or convolution, an activation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from anynpu.runtime.ai8x import INPUT, Pool
from anynpu.tensors import Array

Shape = tuple[int, int, int]


@dataclass
class Block:
    """What one layer will compute; `tensor` is the graph's tensor that its result stands for."""

    name: str
    operation: Literal["conv2d", "conv1d", "linear", "passthrough"]
    sources: tuple[int, ...]
    input: Shape
    output: Shape
    tensor: str
    weight: Array | None = None
    bias: Array | None = None
    activation: Literal["none", "relu", "abs"] = "none"
    ceiling: float | None = None
    """Where the activation ends (ReLU6); the largest integer stands for it or for less."""
    pool: Pool | None = None
    pad: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    flatten: bool = False
    sum: str = ""
    """The graph's tensor of the sum that an activation follows; the weights are the identity then."""
    product: str = ""
    """The graph's tensor that the model's own weights make, where they are the layer's as they stand."""
    own_bias: bool = False
    """Whether the bias is the model's own as it stands."""
    window: str = ""
    """The graph's tensor of the window's result, where that is an average."""
    nodes: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What the layer's parameters are known by to training."""
        return self.sum or self.product or self.tensor

    @property
    def macs(self) -> int:
        """The multiplications of the layer."""
        if self.weight is None:
            return 0
        return int(self.weight.size) * self.output[1] * self.output[2]

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the kernel."""
        if self.weight is None or self.operation == "linear":
            return (1, 1)
        return (int(self.weight.shape[2]), int(self.weight.shape[3]))


@dataclass
class Blocks:
    """The whole network."""

    tensor: str
    input: Shape
    blocks: list[Block]
    offset: float = 0.0
    """A constant that is added to every output behind the last activation."""
    softmax: str = ""
    """The node of a softmax behind the last layer; it runs on the processor."""

    def shape_of(self, number: int) -> Shape:
        """The shape of a layer's result, or of the input."""
        return self.input if number == INPUT else self.blocks[number].output

    def tensor_of(self, number: int) -> str:
        """The graph's tensor that a layer's result, or the input, stands for."""
        return self.tensor if number == INPUT else self.blocks[number].tensor

    def users(self, number: int) -> list[int]:
        """The layers that read a result."""
        return [index for index, block in enumerate(self.blocks) if number in block.sources]

    def tensors(self) -> list[str]:
        """The graph's tensors whose ranges are needed."""
        names = [self.tensor_of(number) for number in range(INPUT, len(self.blocks))]
        return list(dict.fromkeys([*names, *(block.sum for block in self.blocks if block.sum)]))

    def pairs(self) -> dict[int, tuple[int, int]]:
        """The layers that write one operand of a sum, with the sum and the operand's place in it."""
        sums = ((n, block) for n, block in enumerate(self.blocks) if len(block.sources) > 1)
        return {source: (n, place) for n, block in sums for place, source in enumerate(block.sources)}


def interleaved(apart: Blocks) -> Blocks:
    """Returns the network with copies of operands that more than a sum reads: two operands lie word by word in turn."""
    blocks: list[Block] = []
    moved = {INPUT: INPUT}
    for number, block in enumerate(apart.blocks):
        sources: list[int] = []
        for source in block.sources:
            shared = source == INPUT or len(apart.users(source)) > 1 or block.sources.count(source) > 1
            if len(block.sources) > 1 and shared:
                shape, tensor = apart.shape_of(source), apart.tensor_of(source)
                name = f"{block.name}/copy{len(sources)}"
                blocks.append(Block(name, "passthrough", (moved[source],), shape, shape, tensor))
                sources.append(len(blocks) - 1)
            else:
                sources.append(moved[source])
        blocks.append(replace(block, sources=tuple(sources)))
        moved[number] = len(blocks) - 1
    return replace(apart, blocks=blocks)

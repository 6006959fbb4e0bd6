"""What the accelerator does not do, as functions over a layer: the docstring is what the user reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from anynpu.errors import Finding, Unsupported
from anynpu.targets.ai8x import memory
from anynpu.targets.ai8x.bits import stated, weight_bytes
from anynpu.targets.ai8x.blocks import Block, Blocks
from anynpu.targets.ai8x.options import Ai8xFacts, Ai8xOptions

LayerRule = Callable[[Block, Ai8xFacts], bool]
RULES: dict[str, LayerRule] = {}
CONVOLUTIONS = ("conv2d", "conv1d")


def rule(function: LayerRule) -> LayerRule:
    """Registers a rule; it returns whether a layer keeps it."""
    RULES[function.__name__] = function
    return function


@rule
def kernel_size(block: Block, facts: Ai8xFacts) -> bool:
    """The kernel must be 1x1 or 3x3 in two dimensions, 1 to 9 long in one."""
    if block.operation == "conv1d":
        return 1 <= block.kernel[0] <= 9
    return block.operation != "conv2d" or block.kernel in ((1, 1), (3, 3))


@rule
def padding(block: Block, facts: Ai8xFacts) -> bool:
    """The padding must be 0, 1 or 2, alike for rows and columns, and less than the kernel."""
    if block.operation == "conv1d":
        return block.pad[0] <= 2 and block.pad[0] < block.kernel[0]
    return block.operation != "conv2d" or (block.pad[0] == block.pad[1] <= 2 and block.pad[0] < block.kernel[0])


@rule
def long_padding(block: Block, facts: Ai8xFacts) -> bool:
    """A Conv1d over more than 64 channels must not be padded on this chip."""
    return not (facts.depthwise and block.operation == "conv1d" and block.pad[0] and block.input[0] > 64)


@rule
def dilation(block: Block, facts: Ai8xFacts) -> bool:
    """Dilation is not supported."""
    return max(block.dilation) == 1


@rule
def groups(block: Block, facts: Ai8xFacts) -> bool:
    """Groups are not supported, apart from depthwise convolutions on the MAX78002."""
    return block.groups == 1 or (facts.depthwise and block.groups == block.input[0] == block.output[0])


@rule
def channels(block: Block, facts: Ai8xFacts) -> bool:
    """A layer has more channels than the chip can hold (1024 on the MAX78000, 2048 on the MAX78002)."""
    return max(block.input[0], block.output[0]) <= facts.channels


@rule
def pixels(block: Block, facts: Ai8xFacts) -> bool:
    """Rows and columns are limited to 1023 on the MAX78000 and 2047 on the MAX78002."""
    return max(*block.input[1:], *block.output[1:]) <= facts.rows


@rule
def window(block: Block, facts: Ai8xFacts) -> bool:
    """A window must be 1 to 16 wide, with equal strides of 1 to 16."""
    if block.pool is None:
        return True
    sizes, strides = block.pool.size, block.pool.stride
    if block.input[2] == 1:
        return max(sizes[0], strides[0]) <= 16
    return max(*sizes, *strides) <= 16 and strides[0] == strides[1]


@rule
def lone_window(block: Block, facts: Ai8xFacts) -> bool:
    """A window without a convolution behind it takes at most 64 channels, unless it leaves one pixel."""
    alone = block.pool is not None and block.operation == "passthrough"
    return not alone or block.input[0] <= 64 or block.output[1:] == (1, 1)


@rule
def summed(block: Block, facts: Ai8xFacts) -> bool:
    """A sum of two tensors takes at most 64 channels."""
    return len(block.sources) < 2 or block.input[0] <= 64


@rule
def flattened(block: Block, facts: Ai8xFacts) -> bool:
    """A Linear layer flattens at most 256 pixels per channel and 16,384 values, to at most 1024."""
    if block.operation != "linear":
        return True
    rows, columns = block.input[1:]
    return rows * columns <= 256 and block.input[0] * rows * columns <= 16384 and block.output[0] <= 1024


def findings(blocks: Blocks, facts: Ai8xFacts, options: Ai8xOptions) -> tuple[Finding, ...]:
    """Returns every reason why the layers do not run on the chip as they are."""
    misfits = []
    for block in blocks.blocks:
        kernel = f", kernel {block.kernel[0]}x{block.kernel[1]}" if block.operation in CONVOLUTIONS else ""
        pool = f", window {block.pool.size[0]}x{block.pool.size[1]}" if block.pool else ""
        split = f", {block.groups} groups" if block.groups > 1 else ""
        shown = f"{block.operation} over {'x'.join(map(str, block.input))}{kernel}{split}{pool}"
        for name, keeps in RULES.items():
            if not keeps(block, facts):
                misfits.append(Finding(name, f"{keeps.__doc__} ({shown})", block.name))
    return (*misfits, *_network(blocks, facts, options))


def _network(blocks: Blocks, facts: Ai8xFacts, options: Ai8xOptions) -> Iterator[Finding]:
    count = len(blocks.blocks)
    if count > facts.layers:
        yield Finding("layers", f"The network takes {count} layers; the chip has {facts.layers}.")
    bits = stated(blocks, options)
    needed = weight_bytes(blocks, bits)
    if needed > facts.weight_bytes:
        widths = " or ".join(map(str, sorted(set(bits))))
        words = f"The weights take {needed} bytes at {widths} bits; the chip has {facts.weight_bytes}."
        yield Finding("weight_memory", words)
    biased = [block for block in blocks.blocks if block.bias is not None and block.bias.any()]
    for block in biased:
        # What is read out in 32 bits gets its bias from the processor.
        if block.output[0] > facts.biased_channels and not (block is blocks.blocks[-1] and block.activation == "none"):
            words = f"A layer with a bias has at most {facts.biased_channels} outputs; this has {block.output[0]}."
            yield Finding("biased_channels", words, block.name)
    biases = sum(block.output[0] for block in biased if block.output[0] <= facts.biased_channels)
    if biases > facts.bias_bytes:
        yield Finding("bias_memory", f"The biases take {biases} bytes; the chip has {facts.bias_bytes}.")
    if options.fifo and blocks.input[0] > 16:
        yield Finding("fifo", f"The FIFO takes at most 16 channels; the input has {blocks.input[0]}.")
    if options.max_speed and not facts.max_speed:
        yield Finding("max_speed", "max_speed is for the MAX78002 alone.")
    try:
        memory.place(blocks, facts, bits, 8, options.fifo)
    except Unsupported as error:
        yield from error.findings

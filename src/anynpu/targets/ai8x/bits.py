"""Bits of weights, layer by layer: as the user states them, or the cheapest that fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anynpu.errors import ConfigError, Finding, Unsupported
from anynpu.targets.ai8x import memory
from anynpu.targets.ai8x.blocks import Block, Blocks
from anynpu.targets.ai8x.options import AUTO, Ai8xFacts, Ai8xOptions

WIDTHS = (8, 4, 2)
"""What a search may choose; a weight of one bit is 0 or -1, which a network has to be trained for."""


def stated(blocks: Blocks, options: Ai8xOptions) -> tuple[int, ...]:
    """Returns the bits of every layer as the options state them; what a search may choose counts as the fewest."""
    listed = options.layer_bits()
    if not listed:
        return (min(WIDTHS) if options.weight_bits == AUTO else options.bit_width,) * len(blocks.blocks)
    named = [block.name for block in blocks.blocks if _own_weights(block)]
    if len(listed) != len(named):
        raise ConfigError(
            f"weight_bits={options.weight_bits}: the network has {len(named)} layers with weights, not {len(listed)}",
            f"one width for each of {', '.join(named)}",
        )
    widths = iter(listed)
    return tuple(next(widths) if _own_weights(block) else 8 for block in blocks.blocks)


def _own_weights(block: Block) -> bool:
    """Tells whether a layer has weights of the model; the identity in front of an activation has none."""
    return block.weight is not None and not block.sum


def weight_bytes(blocks: Blocks, bits: Sequence[int]) -> int:
    """Returns what the weights of all layers take."""
    pairs = zip(blocks.blocks, bits, strict=True)
    return sum(-(-block.weight.size * each // 8) for block, each in pairs if block.weight is not None)


def chosen(
    blocks: Blocks, errors: Mapping[int, Sequence[float]], facts: Ai8xFacts, options: Ai8xOptions, last_width: int
) -> tuple[int, ...]:
    """Returns the bits of every layer: fewer where a byte saved costs the least, until the weights fit.

    `errors` are the expected errors of layers by bits, each as a share of the layer's result.
    """
    budget = options.weight_bytes or facts.weight_bytes
    bits = [8] * len(blocks.blocks)
    while True:
        if weight_bytes(blocks, bits) <= budget:
            try:
                memory.place(blocks, facts, bits, last_width, options.fifo)
                return tuple(bits)
            except Unsupported as error:
                if all(finding.rule != "kernel_memory" for finding in error.findings):
                    return tuple(bits)
        steps = [
            ((errors[less][n] - errors[bits[n]][n]) / (block.weight.size * (bits[n] - less)), n, less)
            for n, block in enumerate(blocks.blocks)
            if block.weight is not None and (less := bits[n] // 2) in WIDTHS
        ]
        if not steps:
            words = f"The weights take {weight_bytes(blocks, bits)} bytes at {min(WIDTHS)} bits; {budget} are allowed."
            raise Unsupported("the weights do not fit", [Finding("weight_memory", words)])
        _, number, less = min(steps)
        bits[number] = less

"""Where data and weights lie: 64 processors, four of which share one memory; more channels take several passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anynpu.errors import Finding, Unsupported
from anynpu.runtime.ai8x import INPUT
from anynpu.targets.ai8x.blocks import Blocks, Shape
from anynpu.targets.ai8x.options import Ai8xFacts

PROCESSORS, SHARED, WORD = 64, 4, 9


@dataclass(frozen=True)
class Place:
    """Where a layer reads, computes and writes; offsets are bytes in each shared memory."""

    processors: int
    out_processors: int
    in_offset: int
    out_offset: int
    write_gap: int = 0


def passes(channels: int) -> int:
    """Returns how often the 64 processors run for this many channels."""
    return -(-channels // PROCESSORS)


def width_of(channels: int) -> int:
    """Returns how many processors a tensor of this many channels takes: even passes, whole memories above 64."""
    share = -(-channels // passes(channels))
    return share if channels <= PROCESSORS else min(-(-share // SHARED) * SHARED, PROCESSORS)


def data_bytes(shape: Shape, width: int = 8) -> int:
    """Returns what a tensor takes in each memory: four channels to a word, all passes."""
    return shape[1] * shape[2] * passes(shape[0]) * 4 * (width // 8)


def kernel_words(blocks: Blocks, number: int, bits: int) -> int:
    """Returns the words of weights that a layer takes in each of its processors."""
    block = blocks.blocks[number]
    if block.weight is None:
        return 0
    per = block.input[1] * block.input[2] if block.flatten else block.kernel[0] * block.kernel[1]
    count = passes(block.input[0]) * (1 if block.groups > 1 else block.output[0]) * per
    return -(-count * bits // (8 * WORD)) if per < WORD else count * bits // 8 * -(-per // WORD) // per


def place(blocks: Blocks, facts: Ai8xFacts, bits: Sequence[int], last_width: int, fifo: bool) -> list[Place]:
    """Returns the place of every layer for the bits of its weights; raises Unsupported where memories are too small."""
    # The processors that hold each tensor; few channels go where the fewest weights are
    used, maps = [0] * PROCESSORS, dict[int, int]()
    for number in range(INPUT, len(blocks.blocks) - 1):
        if number in maps:
            continue
        group = _together(blocks, number)
        width = width_of(blocks.shape_of(number)[0])
        words = sum(kernel_words(blocks, user, bits[user]) for n in group for user in set(blocks.users(n)))
        starts = [0] if fifo and INPUT in group else range(0, PROCESSORS - width + 1, SHARED)
        start = min(starts, key=lambda s, w=width: (max(used[s : s + w]), s))
        for processor in range(start, start + width):
            used[processor] += words
        maps |= dict.fromkeys(group, ((1 << width) - 1) << start)
    if max(used) > facts.kernel_words:
        sentence = f"The weights take {max(used)} words of a processor's {facts.kernel_words}."
        raise Unsupported("the weights do not fit", [Finding("kernel_memory", sentence)])
    offsets, pairs = _offsets(blocks, facts, last_width), blocks.pairs()
    return [
        Place(
            maps[b.sources[0]],
            maps.get(n, 0),
            min(offsets[s] for s in b.sources),
            offsets[n],
            int(n in pairs),
        )
        for n, b in enumerate(blocks.blocks)
    ]


def _together(blocks: Blocks, number: int) -> set[int]:
    """Returns the tensors that must lie in the same processors: operands of a sum, and both sides of a copy."""
    group, last = {number}, len(blocks.blocks) - 1
    while True:
        more = set(group)
        for n, block in enumerate(blocks.blocks):
            same = {*block.sources, n} if block.operation == "passthrough" and n < last else set(block.sources)
            if same & more:
                more |= same
        if more == group:
            return group
        group = more


def _offsets(blocks: Blocks, facts: Ai8xFacts, last_width: int) -> dict[int, int]:
    """Returns where each result lies: at either end of the memories, or in a gap, while it lives."""
    count, pairs, total_bytes = len(blocks.blocks), blocks.pairs(), facts.instance_bytes
    ends = {n: max(blocks.users(n), default=count) for n in range(INPUT, count)}
    offsets, sizes = {INPUT: 0}, {INPUT: data_bytes(blocks.input)}
    for number, block in enumerate(blocks.blocks):
        size = data_bytes(block.output, last_width if number == count - 1 else 8)
        total, turn = pairs.get(number, (0, 0))
        mates = [n for n in blocks.blocks[total].sources if n in offsets] if number in pairs else []
        if mates:  # the place for both was taken by the first
            offsets[number], sizes[number] = offsets[mates[0]] + 4 * (turn - pairs[mates[0]][1]), 0
            continue
        sizes[number] = size = size * (2 if number in pairs else 1)
        alive = [n for n in offsets if ends[n] >= number and sizes[n]]
        lows = {n: offsets[n] - 4 * pairs.get(n, (0, 0))[1] for n in alive}
        taken = [(low, low + sizes[n]) for n, low in lows.items()]
        # The two ends first, so that a chain of layers goes to and fro between them.
        for start in (0, total_bytes - size, *(high for _, high in taken)):
            if 0 <= start <= total_bytes - size and all(start + size <= low or start >= high for low, high in taken):
                offsets[number] = start + 4 * turn
                break
        else:
            held = sum(sizes[n] for n in alive) + size
            words = f"What it reads, writes and keeps takes {held} of the {total_bytes} bytes of each memory."
            raise Unsupported("the data do not fit", [Finding("data_memory", words, block.name)])
    return offsets

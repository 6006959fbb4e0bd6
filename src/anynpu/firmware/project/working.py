"""How much memory the C that executes streams needs: one block of weights, one window, and what is handed on."""

from __future__ import annotations

from anynpu.runtime.ethos_u.operations85 import CHAINED, UNUSED
from anynpu.runtime.ethos_u.stream import Operation, Stream
from anynpu.runtime.ethos_u.windows import kernel_of

ALIGNMENT = 8
CHANNEL_BYTES = 24
"""Bias, scale and shift of a channel, in C."""
U85 = 2


def working_bytes(stream: Stream) -> int:
    """Returns what executing the stream takes at most, on top of its own memories."""
    kept: dict[str, int] = {}
    total = largest = 0
    for op in stream.operations:
        for key, size in _handed_on(op).items() if stream.product == U85 else ():
            if size > kept.get(key, 0):  # a larger one takes new memory, the smaller one's is not used again
                kept[key] = size
                total += _aligned(size)
        if op.kind in ("conv", "depthwise"):
            height, width = kernel_of(op).size
            depth, outs = op.register("IFM_DEPTH_M1") + 1, op.register("OFM_DEPTH_M1") + 1
            block = max(1, min(-(-(op.register("OFM_BLK_DEPTH_M1") + 1) // stream.cores), outs))
            elements = height * width
            weights = elements * (1 if op.kind == "depthwise" else depth) * block * 2
            largest = max(largest, _aligned(elements * depth * 4) + _aligned(weights) + block * CHANNEL_BYTES)
    return largest + total + ALIGNMENT


def _handed_on(op: Operation) -> dict[str, int]:
    """Returns what an operation of the U85 keeps for those after it, by where."""
    if op.kind == "dma":
        return {}
    deep = max(op.register("OFM_DEPTH_M1"), op.registers.get("IFM_DEPTH_M1", 0)) + 1
    count = (op.register("OFM_HEIGHT_M1") + 1) * (op.register("OFM_WIDTH_M1") + 1) * deep
    precision = op.register("OFM_PRECISION") >> 14
    if op.registers.get("ACC_FORMAT", 0) >> 6 & 1 or precision == UNUSED:
        return {"accumulator": count * 8}
    return {f"chain {op.register('OFM_REGION')}": count * 4} if precision == CHAINED else {}


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

"""Weights and scales of the U85: another order, several streams, and a fast format besides the compressed one."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.weights import SCALE_BYTES
from anynpu.tensors import Array

INTERLEAVE = 4
FAST_HEADER = 32
FAST_TABLE = 16


@dataclass(frozen=True)
class Order85:
    """What decides in which order the weights of one stream come."""

    height: int
    width: int
    ifm_depth: int
    ofm_depth: int
    depthwise: bool
    part_kernel: bool
    sparse: bool
    ofm_block: int
    ifm_block: int
    micro_depth: int
    ifm_bits: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    macs: int
    streams: int

    @property
    def ifm_micro_depth(self) -> int:
        if self.depthwise:
            return 1
        return 8 if self.part_kernel and self.ifm_bits == 16 and not self.sparse else self.ifm_block

    @property
    def rounding(self) -> int:
        """Kernel elements come in multiples of this."""
        if self.depthwise:
            return 10
        return (10 if self.ifm_bits == 16 or self.sparse else 5) if self.part_kernel else 1

    @property
    def pause(self) -> int:
        """Zeros per channel that follow ten elements of a depthwise kernel."""
        if not self.depthwise or (self.ifm_bits != 16 and self.macs <= 256):
            return 0
        return 2 if self.macs <= 512 else 6


def ifm_block(depthwise: bool, part_kernel: bool, sparse: bool, ifm_bits: int, macs: int, micro_depth: int) -> int:
    """Returns how many input channels make a block."""
    if part_kernel and not depthwise:
        return 16
    if ifm_bits == 32 or (macs in (128, 256) and micro_depth == 16 and not sparse):
        return 32
    return 128 if sparse and ifm_bits == 8 else 64


@functools.lru_cache(maxsize=256)
def positions(order: Order85, stream: int) -> Array:
    """Returns, for each weight of a stream, its place among (height, width, inputs, outputs), or -1 for padding."""
    depth = 1 if order.depthwise else order.ifm_depth
    down, across = 8 // order.dilation[0], 8 // order.dilation[1]
    parts = []
    for number, ofm in enumerate(range(0, order.ofm_depth, order.ofm_block)):
        blocks = range(0, depth, order.ifm_block)
        outs = min(order.ofm_block, order.ofm_depth - ofm)
        # Every second block of outputs walks the inputs backwards.
        for ifm, x, y in product(
            blocks[::-1] if number % 2 else blocks, range(0, order.width, across), range(0, order.height, down)
        ):
            size = min(order.height - y, down), min(order.width - x, across)
            rows, cols, ins, chans = _sub_kernel(order, stream, size)
            within = ((rows * order.width + cols) * depth + ins) * order.ofm_depth + chans
            ins_outer = range(0, 1 if order.depthwise else min(order.ifm_block, depth - ifm), order.ifm_micro_depth)
            for ifm_micro, ofm_micro in product(ins_outer, range(0, outs, order.micro_depth)):
                first_in, first_out = ifm + ifm_micro, ofm + ofm_micro
                places = within + (((y * order.width + x) * depth + first_in) * order.ofm_depth + first_out)
                places[(rows < 0) | (ins >= depth - first_in) | (chans >= order.ofm_depth - first_out)] = -1
                parts.append(places)
    return np.concatenate(parts)


@functools.lru_cache(maxsize=256)
def _sub_kernel(order: Order85, stream: int, size: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """Returns the coordinates of the weights of one sub-kernel and one pair of micro-blocks; row -1 is padding."""
    step = 1 if order.depthwise else 16 if order.sparse else 8
    inner, group, lane, channel = (
        g.reshape(-1)
        for g in np.meshgrid(
            np.arange(0, order.ifm_micro_depth, step),
            np.arange(stream * INTERLEAVE, order.micro_depth, INTERLEAVE * order.streams),
            np.arange(INTERLEAVE),
            np.arange(step),
            indexing="ij",
        )
    )
    # Rows and columns, one phase of the stride after the other, to and fro
    stride, elements = order.stride if order.part_kernel or order.depthwise else (1, 1), []
    for phase_y, phase_x in product(range(stride[0]), range(stride[1])):
        columns = range(phase_x, size[1], stride[1])
        for number, row in enumerate(range(phase_y, size[0], stride[0])):
            elements += [(row, col) for col in (columns[::-1] if number % 2 else columns)]
    left = -(-len(elements) // order.rounding) * order.rounding
    per_channel = order.micro_depth // order.streams
    parts: list[tuple[Array, Array, Array, Array]] = []
    for row, col in elements:
        left -= 1
        ones = np.ones(len(inner), np.int64)
        parts.append((row * ones, col * ones, inner + channel, group + lane))
        if order.depthwise and left % order.rounding == 0:
            parts.append(_padding(order.pause * per_channel))
    if left > 0:
        parts.append(_padding((left + order.pause) * order.ifm_micro_depth * per_channel))
    rows, cols, ins, outs = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, cols, ins, outs


def _padding(count: int) -> tuple[Array, Array, Array, Array]:
    zeros = np.zeros(count, np.int64)
    return zeros - 1, zeros, zeros, zeros


def arrange(streams: list[Array], order: Order85, title: str) -> Array:
    """Returns the weights as (height, width, ifm channels, ofm channels)."""
    depth = 1 if order.depthwise else order.ifm_depth
    count = order.height * order.width * depth * order.ofm_depth
    if count > sum(len(weights) for weights in streams):
        raise IntegrityError(f"{title}: its weights are cut off")
    placed = np.zeros(count, np.int16)
    for number, weights in enumerate(streams):
        places = positions(order, number)
        if len(weights) < len(places):
            raise IntegrityError(f"{title}: its weights are cut off: {len(weights)} are there")
        weights, rest = weights[: len(places)], weights[len(places) :]
        if weights[places < 0].any() or rest.any():
            raise IntegrityError(f"{title}: its weights are damaged: the padding between them is not zero")
        placed[places[places >= 0]] = weights[places >= 0]
    return placed.reshape(order.height, order.width, depth, order.ofm_depth)


def decode_fast(raw: bytes, title: str) -> Array:
    """Returns the weights of the fast format: a table of 4 or 16 values and indices, or plain bytes."""
    if len(raw) < FAST_HEADER:
        raise IntegrityError(f"{title}: its weights are cut off")
    bits = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")
    plain, small = bool(bits[0]), bool(bits[1])
    body = bits[FAST_HEADER * 8 :]
    if plain:
        adjust = int(np.packbits(bits[104:112], bitorder="little").view(np.int8)[0])
        return np.packbits(body, bitorder="little").view(np.int8).astype(np.int16) - adjust
    width = 2 if small else 4
    indices = body[: len(body) // width * width].reshape(-1, width) @ (1 << np.arange(width))
    codes = bits[112 : 112 + 9 * FAST_TABLE].reshape(FAST_TABLE, 9).astype(np.int64) @ (1 << np.arange(9))
    table = np.where(codes & 1, -(codes >> 1), codes >> 1).astype(np.int16)
    return table[indices]


def split_fast(weights: Array, order: Order85) -> list[Array]:
    """Returns the streams that the fast format has interleaved, block by block."""
    if order.streams == 1:
        return [weights]
    block = order.micro_depth * order.ifm_micro_depth * order.rounding // order.streams
    whole = weights[: len(weights) // (block * order.streams) * block * order.streams]
    parts = whole.reshape(-1, order.streams, block)
    return [np.ascontiguousarray(parts[:, number]).reshape(-1) for number in range(order.streams)]


def scales(raw: bytes, count: int, wide: bool, title: str) -> tuple[Array, Array, Array]:
    """Returns bias, scale and shift of each output channel; a wide accumulator has a wide bias and a short scale."""
    if len(raw) < count * SCALE_BYTES:
        raise IntegrityError(f"{title}: its scales are cut off: {len(raw)} bytes for {count} channels")
    table = np.frombuffer(raw, np.uint8, count * SCALE_BYTES).reshape(count, SCALE_BYTES).astype(np.int64)
    width = 6 if wide else 4
    bias = sum(table[:, i] << 8 * i for i in range(width))
    bias = np.where(bias >> (8 * width - 1), bias - (1 << 8 * width), bias)
    scale = sum(table[:, i] << 8 * (i - width) for i in range(width, 8))
    return bias, np.asarray(scale) & ((1 << 15) - 1 if wide else (1 << 31) - 1), table[:, 8] & 63

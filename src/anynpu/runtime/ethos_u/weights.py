"""Weights and scales of convolutions: decoded from Vela's compressed streams and put back into their places.

The decoder that comes with Vela reads outside of its buffer or ends the process when a stream is damaged, so it runs in
a forked child, with limits on memory and time.
"""

from __future__ import annotations

import functools
import importlib
import os
import resource
import select
import signal
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NoReturn

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.tensors import Array

DECODE_SECONDS = 60
DECODE_BYTES = 4 << 30
SCALE_BYTES = 10


class Decoder:
    """Decodes compressed weights and keeps what it has decoded."""

    def __init__(self) -> None:
        self._decoded: dict[bytes, Array] = {}

    def decode(self, streams: Sequence[bytes], titles: Sequence[str]) -> list[Array]:
        """Returns the weights of each stream in the order of the hardware; a damaged one raises with its title."""
        missing = {stream: title for stream, title in zip(streams, titles, strict=True) if stream not in self._decoded}
        if missing:
            importlib.import_module("ethosu.mlw_codec")  # here, so that no child has to
            # In memory: on a full disk an answer would be cut off, as that of a damaged stream is.
            with os.fdopen(os.memfd_create("weights"), "w+b") as sink:
                child = os.fork()
                if child == 0:
                    _decode_all(list(missing), sink.fileno())
                handle = os.pidfd_open(child)
                try:
                    if not select.select([handle], [], [], DECODE_SECONDS)[0]:
                        os.kill(child, signal.SIGKILL)
                finally:
                    os.close(handle)
                    os.waitpid(child, 0)
                sink.seek(0)
                answers = sink.read()
            decoded, position = [], 0
            while position + 4 <= len(answers):
                (count,) = struct.unpack_from("<I", answers, position)
                if position + 4 + 2 * count > len(answers):
                    break
                decoded.append(np.frombuffer(answers, np.int16, count, position + 4))
                position += 4 + 2 * count
            if len(decoded) < len(missing):
                raise IntegrityError(f"{list(missing.values())[len(decoded)]}: its weights are damaged")
            self._decoded.update(zip(missing, decoded, strict=True))
        return [self._decoded[stream] for stream in streams]


def _decode_all(streams: Sequence[bytes], sink: int) -> NoReturn:
    """Answers each stream with its weights, in the child: where it dies, the answers so far say at which."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):  # the decoder prints why it gives up
            os.dup2(nothing, output)
        own = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + DECODE_BYTES,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (DECODE_BYTES >> 2,) * 2)
        from ethosu.mlw_codec import decode

        with open(sink, "wb", closefd=False) as answers:
            for stream in streams:
                weights = array("h", decode(bytearray(stream)))
                answers.write(struct.pack("<I", len(weights)) + weights.tobytes())
                answers.flush()
    finally:
        os._exit(0)


@dataclass(frozen=True)
class Order:
    """What decides in which order the hardware wants the weights of a convolution."""

    height: int
    width: int
    ifm_depth: int
    ofm_depth: int
    depthwise: bool
    part_kernel: bool
    block_depth: int
    ofm_micro_depth: int
    ifm_bits: int
    dilation: tuple[int, int]
    """Down and across."""


@functools.lru_cache(maxsize=256)
def positions(order: Order) -> Array:
    """Returns, for each weight of a stream, its place among (height, width, inputs, outputs), or -1 for padding."""
    ifm_block = 16 if order.part_kernel or order.ifm_bits == 16 else 32
    ifm_depth = 1 if order.depthwise else order.ifm_depth
    decompose_y, decompose_x = 8 // order.dilation[0], 8 // order.dilation[1]
    parts = []
    # One sub-kernel of one pair of blocks after the other
    for ofm, ifm, y, x in product(
        range(0, order.ofm_depth, order.block_depth),
        range(0, ifm_depth, ifm_block),
        range(0, order.height, decompose_y),
        range(0, order.width, decompose_x),
    ):
        outs = min(order.block_depth, order.ofm_depth - ofm)
        height, width = min(order.height - y, decompose_y), min(order.width - x, decompose_x)
        ins = min(ifm_block, order.ifm_depth - ifm) if order.part_kernel else ifm_block
        row, col, channel_in, channel_out = _sub_kernel(order, outs, ins, height, width)
        places = ((row * order.width + col) * ifm_depth + channel_in) * order.ofm_depth + channel_out
        places += ((y * order.width + x) * ifm_depth + ifm) * order.ofm_depth + ofm
        # A row past the sub-kernel is padding.
        inside = (row < height) & (channel_in < ifm_depth - ifm) & (channel_out < order.ofm_depth - ofm)
        places[~inside] = -1
        parts.append(places)
    return np.concatenate(parts)


@functools.lru_cache(maxsize=256)
def _sub_kernel(order: Order, outs: int, ins: int, height: int, width: int) -> tuple[Array, Array, Array, Array]:
    """Returns the coordinates within one sub-kernel, in the order of the hardware."""
    elements = height * width
    if order.depthwise or order.part_kernel:
        step = 2 if order.part_kernel and order.ifm_bits == 16 else 4
        elements = -(-elements // step) * step
    one, micro_blocks = np.arange(1), np.arange(0, ins, 8)
    axes = (
        micro_blocks if order.part_kernel else one,
        np.arange(0, outs, order.ofm_micro_depth),
        np.arange(elements),
        one if order.part_kernel or order.depthwise else micro_blocks,
        np.arange(order.ofm_micro_depth),
        one if order.depthwise else np.arange(8),
    )
    outer, ofm, element, inner, out, channel = (g.reshape(-1) for g in np.meshgrid(*axes, indexing="ij"))
    return element // width, element % width, outer + inner + channel, ofm + out


def arrange(weights: Array, order: Order, title: str) -> Array:
    """Returns the weights as (height, width, ifm channels, ofm channels); whatever is not padding must be there."""
    depth = 1 if order.depthwise else order.ifm_depth
    places = positions(order) if order.height * order.width * depth * order.ofm_depth <= len(weights) else None
    if places is None or len(weights) < len(places):
        raise IntegrityError(f"{title}: its weights are cut off: {len(weights)} are there")
    weights, rest = weights[: len(places)], weights[len(places) :]
    if weights[places < 0].any() or rest.any():
        raise IntegrityError(f"{title}: its weights are damaged: the padding between them is not zero")
    placed = np.zeros(order.height * order.width * depth * order.ofm_depth, np.int16)
    placed[places[places >= 0]] = weights[places >= 0]
    return placed.reshape(order.height, order.width, depth, order.ofm_depth)


def scales(raw: bytes, count: int, title: str) -> tuple[Array, Array, Array]:
    """Returns bias, scale and shift of each output channel."""
    if len(raw) < count * SCALE_BYTES:
        raise IntegrityError(f"{title}: its scales are cut off: {len(raw)} bytes for {count} channels")
    table = np.frombuffer(raw, np.uint8, count * SCALE_BYTES).reshape(count, SCALE_BYTES).astype(np.int64)
    bias = sum(table[:, i] << 8 * i for i in range(5))
    bias = np.where(bias >> 39, bias - (1 << 40), bias)
    scale = sum(table[:, 5 + i] << 8 * i for i in range(4))
    return bias, np.asarray(scale), table[:, 9] & 63

"""The memories that a stream reads and writes, for many samples at once, and feature maps in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.tensors import Array

BRICK = 16
"""How many channels lie together in the format NHCWB16."""


@dataclass(frozen=True)
class Region:
    """A stretch of memory: one row a sample, or one row for all of them where it is read-only."""

    name: str
    rows: Array
    start: int
    size: int
    writable: bool = True


@dataclass(frozen=True)
class FeatureMap:
    """Where a tensor lies and how its bytes are to be read."""

    name: str
    region: int
    bases: tuple[int, int, int, int]
    height0: int
    height1: int
    width0: int
    strides: tuple[int, int, int]
    """Bytes from row to row, from column to column, and from channel to channel or brick to brick."""
    dtype: np.dtype[np.generic]
    bricks: bool
    zero_point: int

    def tiles(self, height: int, width: int) -> Iterator[tuple[slice, slice, int]]:
        """Returns rows, columns and base of each of the up to four tiles that the map is made of."""
        left, upper0, upper1 = min(width, self.width0), min(height, self.height0), min(height, self.height1)
        yield slice(0, upper0), slice(0, left), self.bases[0]
        if upper0 < height:
            yield slice(upper0, height), slice(0, left), self.bases[2]
        if left < width:
            yield slice(0, upper1), slice(left, width), self.bases[1]
            if upper1 < height:
                yield slice(upper1, height), slice(left, width), self.bases[3]


def signed(value: int, bits: int) -> int:
    """Returns the low bits as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def dtype_of(precision: int, width_bit: int) -> np.dtype[np.generic]:
    """Returns the type that a precision register names: bit 0 says signed, two bits the width."""
    return np.dtype(f"{'i' if precision & 1 else 'u'}{1 << (precision >> width_bit & 3)}")


def feature_map(op: Operation, name: str, width_bit: int) -> FeatureMap:
    """Returns the feature map "IFM", "IFM2" or "OFM" of an operation."""
    precision = op.register(f"{name}_PRECISION")
    dtype = dtype_of(precision, width_bit)
    zero_point = op.registers.get(f"{name}_ZERO_POINT", 0)
    return FeatureMap(
        name=name,
        region=op.register(f"{name}_REGION") & 7,
        bases=tuple(op.address(f"{name}_BASE{i}") for i in range(4)),  # type: ignore[arg-type]  # four of them
        height0=op.register(f"{name}_HEIGHT0_M1") + 1,
        height1=op.register(f"{name}_HEIGHT1_M1") + 1,
        width0=op.register(f"{name}_WIDTH0_M1") + 1,
        strides=(op.stride(f"{name}_STRIDE_Y"), op.stride(f"{name}_STRIDE_X"), op.stride(f"{name}_STRIDE_C")),
        dtype=dtype,
        bricks=bool(precision >> 6 & 3),
        zero_point=signed(zero_point, 16) if precision & 1 else zero_point,
    )


@dataclass(frozen=True)
class Span:
    """Where a block of values lies in a region: the address of the first, how many, and how far apart."""

    start: int
    """The region's own start in its memory."""
    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    width: int
    """Bytes a value."""

    def bounds(self) -> tuple[int, int]:
        """Returns the lowest address and the one behind the highest."""
        spans = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        return self.base + sum(s for s in spans if s < 0), self.base + sum(s for s in spans if s > 0) + self.width

    def of(self, labels: Array) -> Array:
        """Returns what an array with one number a byte has for these bytes."""
        step = labels.itemsize
        return np.ndarray(
            (*self.shape, self.width),
            labels.dtype,
            labels,
            (self.start + self.base) * step,
            (*(s * step for s in self.strides), step),
        )


class Watcher(Protocol):
    """Follows what operations do with the memories: `audit.py` has one."""

    def aligned(self, op: Operation, registers: str, value: int, multiple: int) -> None: ...
    def read_map(self, op: Operation, region: Region, fm: FeatureMap, span: Span) -> None: ...
    def write_map(self, op: Operation, region: Region, fm: FeatureMap, span: Span) -> None: ...
    def read_bytes(self, op: Operation, registers: str, region: Region, start: int, length: int) -> None: ...
    def move(self, op: Operation, source: tuple[Region, int], target: tuple[Region, int], length: int) -> None: ...
    def load_table(self, op: Operation, start: int, length: int) -> None: ...
    def use_table(self, op: Operation, start: int, length: int) -> None: ...


class Memories:
    """The regions of one stream and the on-chip memory of its tables."""

    def __init__(self, regions: dict[int, Region], table_bytes: int, watcher: Watcher | None = None) -> None:
        self._regions = regions
        self.tables = np.zeros(table_bytes, np.uint8)
        self.watcher = watcher
        self.on_write: Callable[[Operation, Array], None] | None = None
        """Hears what each operation stores."""
        self.chains: dict[int, Array] = {}
        """What one operation of the U85 hands to the next without storing it."""
        self.accumulator: Array | None = None
        """What an operation of the U85 leaves for the next to add to."""

    def region(self, op: Operation, number: int) -> Region:
        try:
            return self._regions[number]
        except KeyError:
            raise IntegrityError(f"{op.title}: there is no memory region {number}") from None

    def bytes(self, op: Operation, number: int, address: int, length: int, registers: str = "") -> Array:
        """Returns a stretch of memory, one row a sample or one for all; `registers` names the ones that read it."""
        region = self.region(op, number)
        self._check(op, region, address, address + length)
        if self.watcher is not None and registers:
            self.watcher.read_bytes(op, registers, region, address, length)
        return region.rows[:, region.start + address : region.start + address + length]

    def read(self, op: Operation, fm: FeatureMap, shape: tuple[int, int, int]) -> Array:
        """Returns a feature map as (samples, height, width, channels)."""
        height, width, depth = shape
        parts = [
            (rows, cols, self._tile(op, fm, base, rows, cols, depth)) for rows, cols, base in fm.tiles(height, width)
        ]
        if len(parts) == 1:
            return parts[0][2]
        whole = np.empty((len(parts[0][2]), height, width, depth), fm.dtype)
        for rows, cols, part in parts:
            whole[:, rows, cols] = part
        return whole

    def write(self, op: Operation, fm: FeatureMap, values: Array) -> None:
        """Stores (samples, height, width, channels) as a feature map."""
        _, height, width, depth = values.shape
        if self.on_write is not None:
            self.on_write(op, values)
        if not self.region(op, fm.region).writable:
            raise IntegrityError(f"{op.title}: it writes into read-only memory")
        for rows, cols, base in fm.tiles(height, width):
            part = values[:, rows, cols]
            if not fm.bricks:
                self._view(op, fm, base, part.shape[1:], fm.strides, writes=True)[...] = part
                continue
            row, _, brick = fm.strides
            size = fm.dtype.itemsize
            for first in range(0, depth, BRICK):
                channels = part[..., first : first + BRICK]
                start = base + first // BRICK * brick
                self._view(op, fm, start, channels.shape[1:], (row, BRICK * size, size), writes=True)[...] = channels

    def _tile(self, op: Operation, fm: FeatureMap, base: int, rows: slice, cols: slice, depth: int) -> Array:
        height, width = rows.stop - rows.start, cols.stop - cols.start
        if not fm.bricks:
            return self._view(op, fm, base, (height, width, depth), fm.strides)
        row, _, brick = fm.strides
        size = fm.dtype.itemsize
        step = (row, BRICK * size, size)
        if depth <= BRICK:
            return self._view(op, fm, base, (height, width, depth), step)
        starts = range(0, depth, BRICK)
        parts = [
            self._view(op, fm, base + first // BRICK * brick, (height, width, min(BRICK, depth - first)), step)
            for first in starts
        ]
        return np.concatenate(parts, axis=-1)

    def _view(
        self,
        op: Operation,
        fm: FeatureMap,
        base: int,
        shape: tuple[int, ...],
        strides: tuple[int, int, int],
        writes: bool = False,
    ) -> Array:
        """Returns the memory itself as (samples, height, width, channels), after checking that all of it is there."""
        region = self.region(op, fm.region)
        row, column, channel = strides
        if not fm.bricks:
            channel = fm.dtype.itemsize  # the hardware does not look at the channel stride of NHWC
        span = Span(region.start, base, shape, (row, column, channel), fm.dtype.itemsize)
        if math.prod(shape) * fm.dtype.itemsize > region.size:
            raise IntegrityError(f"{op.title}: {fm.name} has {math.prod(shape)} values: more than {region.name} holds")
        self._check(op, region, *span.bounds())
        if self.watcher is not None:
            (self.watcher.write_map if writes else self.watcher.read_map)(op, region, fm, span)
        return np.ndarray(
            (len(region.rows), *shape),
            fm.dtype,
            region.rows,
            region.start + base,
            (region.rows.strides[0], row, column, channel),
        )

    def _check(self, op: Operation, region: Region, low: int, high: int) -> None:
        if low < 0 or high > region.size:
            raise IntegrityError(
                f"{op.title}: bytes {low} to {high - 1} are outside of {region.name}, which has {region.size}"
            )

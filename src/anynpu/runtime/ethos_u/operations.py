"""The operations of the U55 and U65: convolution, pooling, element-wise arithmetic, tables, DMA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.arithmetic import Rounding, leading_zeros, rescale, shift
from anynpu.runtime.ethos_u.curves import curve, curve_table, interpolate
from anynpu.runtime.ethos_u.memory import FeatureMap, Memories, feature_map, signed
from anynpu.runtime.ethos_u.stream import Operation, Stream
from anynpu.runtime.ethos_u.weights import Decoder, Order, arrange, scales
from anynpu.runtime.ethos_u.windows import Kernel, averages, check_depth, convolve, kernel_of, padded, taps, window_sums
from anynpu.tensors import Array

MAX, AVERAGE, REDUCE_SUM = range(3)
MUL, ADD, SUB, MIN, MAXIMUM, LRELU, ABS, CLZ, SHR, SHL = range(10)
TANH, SIGMOID, TABLE = 3, 4, 16
TABLE_BYTES = 2048
INDEXED = 11
"""The bit of a region's register that says that the transfer goes by an index."""
LINE = 16
"""Weights and scales begin and end at multiples of it, as do the transfers of the U55."""
SHRAM_BYTES = {32: 16 << 10, 64: 16 << 10, 128: 24 << 10, 256: 48 << 10, 512: 48 << 10}
ROUNDINGS = (Rounding.DOUBLE, Rounding.DOWN, Rounding.NATURAL, Rounding.NATURAL)
MAX_WORK = 1 << 36
STEP_WORK = 1 << 18
"""What a step costs that numpy does not take off our hands."""
EVERY = slice(None)
FLOAT32_EXACT = 1 << 24


@dataclass(frozen=True)
class Filters:
    """The weights of one convolution, decoded, with bias, scale and shift of each channel."""

    raw: tuple[bytes, ...]
    weights: Array
    bias: Array
    scale: Array
    shift: Array


class Machine:
    """Executes the operations of one stream on its memories."""

    def __init__(self, stream: Stream, decoder: Decoder) -> None:
        self.stream = stream
        self._decoder = decoder
        self._filters: dict[int, Filters] = {}

    @property
    def table_bytes(self) -> int:
        """How large the memory is that tables are loaded into."""
        return SHRAM_BYTES.get(self.stream.macs, 48 << 10)

    def execute(self, op: Operation, memories: Memories) -> None:
        """Executes one operation; one that no NPU could execute raises."""
        if work(op) > MAX_WORK:
            raise IntegrityError(f"{op.title}: it is larger than any that an NPU executes")
        run: Callable[[Operation, Memories], None] = getattr(self, f"_{op.kind}", self._unknown)
        try:
            run(op, memories)
        except (ArithmeticError, LookupError, MemoryError, ValueError) as error:
            raise IntegrityError(f"{op.title}: its registers make no sense ({error})") from error

    def prefetch(self, memories: Memories) -> None:
        """Decodes the weights of all operations at once, as DMA alone brings them to their places.

        What is decoded is used only where an operation finds the same bytes when it is executed. Transfers by an index,
        which the U85 has, bring no weights, and nothing has computed their index yet.
        """
        compressed: dict[bytes, str] = {}
        for op in self.stream.operations:
            if op.kind == "dma":
                if not (op.register("DMA0_SRC_REGION") | op.register("DMA0_DST_REGION")) >> INDEXED & 1:
                    self._dma(op, memories)
            elif op.kind in ("conv", "depthwise"):
                raw = self._raw_filters(op, memories)
                compressed |= dict.fromkeys(self.compressed(op, raw), op.title)
        self._decoder.decode(list(compressed), list(compressed.values()))

    def _unknown(self, op: Operation, memories: Memories) -> None:
        raise IntegrityError(f"{op.title}: {self.stream.title} has no such operation")

    def _dma(self, op: Operation, memories: Memories) -> None:
        source, target = op.register("DMA0_SRC_REGION"), op.register("DMA0_DST_REGION")
        length, start = op.address("DMA0_LEN"), op.address("DMA0_DST")
        if memories.watcher is not None and (self.stream.product == 0 or target >> 8 & 1):
            names = ("DMA0_SRC", "DMA0_DST", "DMA0_LEN") if self.stream.product == 0 else ("DMA0_DST", "DMA0_LEN")
            for name in names:
                memories.watcher.aligned(op, name, op.address(name), LINE)
        planes, rows, row_step, plane_step = 1, 1, 0, 0
        if dimensions := target >> 9 & 3:
            rows, row_step = op.register("DMA0_SIZE0"), length + op.stride("DMA0_SRC_STRIDE0")
        if dimensions == 2:
            planes, plane_step = op.register("DMA0_SIZE1"), length * rows + op.stride("DMA0_SRC_STRIDE1")
        position = op.address("DMA0_SRC")
        for plane in range(planes):
            for row in range(rows):
                address = start + plane * plane_step + row * row_step
                self.copy(op, memories, source, position, target, address, length)
                position += length

    @staticmethod
    def copy(
        op: Operation,
        memories: Memories,
        source: int,
        start: int,
        target: int,
        end: int,
        length: int,
        samples: slice = EVERY,
    ) -> None:
        """Copies bytes from one region to another, or to the memory of tables."""
        if source >> 8 & 1:
            raise IntegrityError(f"{op.title}: it reads the memory of tables")
        data = memories.bytes(op, source & 7, start, length)
        data = data[samples] if len(data) > 1 else data
        watcher = memories.watcher
        if not target >> 8 & 1:
            taken, put = memories.region(op, source & 7), memories.region(op, target & 7)
            if not put.writable:
                raise IntegrityError(f"{op.title}: it writes into read-only memory")
            place = memories.bytes(op, target & 7, end, length)
            if watcher is not None:
                watcher.move(op, (taken, start), (put, end), length)
            place[samples] = data.copy()
        elif end + length > len(memories.tables) or (data != data[:1]).any():
            raise IntegrityError(f"{op.title}: it writes outside of the memory of tables")
        else:
            memories.tables[end : end + length] = data[0]
            if watcher is not None:
                watcher.load_table(op, end, length)

    def _conv(self, op: Operation, memories: Memories) -> None:
        self._convolution(op, memories, depthwise=False)

    def _depthwise(self, op: Operation, memories: Memories) -> None:
        self._convolution(op, memories, depthwise=True)

    def _convolution(self, op: Operation, memories: Memories, depthwise: bool) -> None:
        ifm, ofm, kernel = feature_map(op, "IFM", 2), feature_map(op, "OFM", 1), kernel_of(op)
        size, depth = ofm_size(op), op.register("OFM_DEPTH_M1") + 1
        ifm_depth = op.register("IFM_DEPTH_M1") + 1
        filters = self.filters_of(op, memories, KernelDepths(kernel, ifm_depth, depth, depthwise), ifm)
        values = self._windowed(op, memories, ifm, kernel, size, ifm_depth)
        total = self.sums(values, filters, kernel, size, depthwise, ifm.dtype.itemsize) + filters.bias
        self._finish(op, memories, ofm, self._scaled(op, total, filters.scale, filters.shift))

    @staticmethod
    def sums(
        values: Array, filters: Filters, kernel: Kernel, size: tuple[int, int], depthwise: bool, width: int
    ) -> Array:
        """Returns the sums of products, in the shortest floating point in which they are exact."""
        largest = int(np.abs(filters.weights.astype(np.int64)).sum(axis=(0, 1, 2)).max(initial=0)) << 8 * width
        kind = np.float32 if largest < FLOAT32_EXACT else np.float64
        moving, weights = values.astype(kind), filters.weights.astype(kind)
        if depthwise:
            sums: Array = np.zeros((len(values), *size, weights.shape[3]), kind)
            for y, x, seen in taps(moving, kernel, size):
                sums += seen * weights[y, x, 0]
        else:
            sums = convolve(moving, weights, kernel, size)
        return sums.astype(np.int64).reshape(len(values), *size, weights.shape[3])

    def _windowed(
        self, op: Operation, memories: Memories, ifm: FeatureMap, kernel: Kernel, size: tuple[int, int], depth: int
    ) -> Array:
        """Returns the input of a window operation less its zero point, padded."""
        height, width = kernel.ifm_size(size)
        if height < 1 or width < 1:
            raise IntegrityError(f"{op.title}: its padding is larger than its kernel reaches")
        values = memories.read(op, ifm, (height, width, depth)).astype(np.int32) - ifm.zero_point
        return padded(op, values, kernel, size, 0)

    def filters_of(self, op: Operation, memories: Memories, depths: KernelDepths, ifm: FeatureMap) -> Filters:
        """Returns the decoded weights of an operation, from the run before if the bytes are the same."""
        raw = self._raw_filters(op, memories)
        filters = self._filters.get(op.index)
        if filters is None or filters.raw != raw:
            filters = self._filters[op.index] = self.decode_filters(op, raw, depths, ifm)
        return filters

    def _raw_filters(self, op: Operation, memories: Memories) -> tuple[bytes, ...]:
        """Returns the compressed weights of each core, then the scales of each core."""
        cores = [""] if self.stream.cores == 1 or op.register("OFM_DEPTH_M1") == 0 else ["", "1"]
        streams = []
        for kind in ("WEIGHT", "SCALE"):
            region = op.register(f"{kind}_REGION")
            for core in cores:
                base, length = op.address(f"{kind}{core}_BASE"), op.address(f"{kind}{core}_LENGTH")
                streams.append(memories.bytes(op, region & 7, base, length, f"{kind}{core}")[0].tobytes())
                if memories.watcher is not None:
                    memories.watcher.aligned(op, f"{kind}{core}_BASE", base, LINE)
                    memories.watcher.aligned(op, f"{kind}{core}_LENGTH", length, LINE)
        return tuple(streams)

    def compressed(self, op: Operation, raw: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Returns which of the raw filters are compressed weights."""
        return raw[: len(raw) // 2]

    def decode_filters(self, op: Operation, raw: tuple[bytes, ...], depths: KernelDepths, ifm: FeatureMap) -> Filters:
        cores = len(raw) // 2
        kernel, block = depths.kernel, op.register("OFM_BLK_DEPTH_M1") + 1
        columns = 1 if depths.depthwise else depths.ifm
        weights = np.zeros((*kernel.size, columns, depths.ofm), np.int16)
        tables = [np.zeros(depths.ofm, np.int64) for _ in range(3)]
        for core, decoded in enumerate(self._decoder.decode(raw[:cores], [op.title] * cores)):
            order = Order(
                *kernel.size,
                ifm_depth=depths.ifm,
                ofm_depth=-(-(depths.ofm - core) // cores),
                depthwise=depths.depthwise,
                part_kernel=kernel.part_kernel and not depths.depthwise,
                block_depth=max(1, (block + self.stream.cores - 1 - core) // self.stream.cores),
                ofm_micro_depth=4 if self.stream.macs == 32 else 8,
                ifm_bits=8 * ifm.dtype.itemsize,
                dilation=kernel.dilation,
            )
            weights[..., core::cores] = arrange(decoded, order, op.title)
            for table, part in zip(tables, scales(raw[cores + core], order.ofm_depth, op.title), strict=True):
                table[core::cores] = part
        return Filters(raw, weights, *tables)

    def _pool(self, op: Operation, memories: Memories) -> None:
        ifm, ofm, kernel = feature_map(op, "IFM", 2), feature_map(op, "OFM", 1), kernel_of(op)
        size, depth = ofm_size(op), op.register("IFM_DEPTH_M1") + 1
        check_depth(op, 1 if op.mode == REDUCE_SUM else depth)
        if op.mode == MAX:
            height, width = kernel.ifm_size(size)
            if height < 1 or width < 1:
                raise IntegrityError(f"{op.title}: its padding is larger than its kernel reaches")
            values = memories.read(op, ifm, (height, width, depth)).astype(np.int64) - ifm.zero_point
            seen = (v for _, _, v in taps(padded(op, values, kernel, size, -(1 << 40)), kernel, size))
            largest = next(seen).copy()
            for values in seen:
                np.maximum(largest, values, out=largest)
            self._finish(op, memories, ofm, largest)
            return
        if op.mode not in (AVERAGE, REDUCE_SUM):
            raise IntegrityError(f"{op.title}: {self.stream.title} has no pooling {op.mode}")
        values = self._windowed(op, memories, ifm, kernel, size, depth).astype(np.int64)
        total = window_sums(values, kernel, size)
        if op.mode == REDUCE_SUM:
            total = total.sum(axis=-1, keepdims=True)
        if op.register("OFM_PRECISION") >> 8 & 1 and not (op.mode == AVERAGE and any(kernel.before + kernel.after)):
            scaled = self._scaled(op, total, *_ofm_scale(op))
        else:
            scaled = averages(total, kernel, size, values)
        self._finish(op, memories, ofm, scaled)

    def _elementwise(self, op: Operation, memories: Memories) -> None:
        ifm, ofm = feature_map(op, "IFM", 2), feature_map(op, "OFM", 1)
        shape = (*ofm_size(op), op.register("OFM_DEPTH_M1") + 1)
        first = memories.read(op, ifm, shape).astype(np.int64) - ifm.zero_point
        if op.mode in (LRELU, ABS, CLZ):
            if op.mode == CLZ:
                values = leading_zeros(first)
            elif op.mode == ABS:
                values = self._scaled(op, np.abs(first), *_ofm_scale(op))
            else:
                values = np.where(first >= 0, first, self._scaled(op, first, *_ofm_scale(op)))
            self._finish(op, memories, ofm, values)
            return
        # The second operand less its zero point, in a shape that broadcasts
        broadcast, precision = op.register("IFM2_BROADCAST"), op.register("IFM2_PRECISION")
        if broadcast >> 7 & 1:
            zero_point, scalar = op.register("IFM2_ZERO_POINT"), op.register("IFM2_SCALAR")
            if precision & 1:
                zero_point, scalar = signed(zero_point, 16), signed(scalar, 16)
            second = np.full((1, 1, 1, 1), scalar - zero_point, np.int64)
        else:
            ifm2 = feature_map(op, "IFM2", 2)
            height, width, depth = (1 if broadcast >> bit & 1 else n for bit, n in enumerate(shape))
            second = memories.read(op, ifm2, (height, width, depth)).astype(np.int64) - ifm2.zero_point
        if op.register("IFM2_BROADCAST") >> 6 & 1:
            first, second = second, first
        self._finish(op, memories, ofm, self._binary(op, first, second, ifm.dtype.itemsize))

    def _binary(self, op: Operation, first: Array, second: Array, width: int) -> Array:
        if op.mode == MUL:
            scale, places = _ofm_scale(op)
            return self._scaled(op, first * second, 1 if width == 4 else scale, places)
        if op.mode in (ADD, SUB):
            return self._sum(op, first, second, width)
        if op.mode == MIN:
            return np.minimum(first, second)
        if op.mode == MAXIMUM:
            return np.maximum(first, second)
        if op.mode == SHL:
            return np.asarray((first << np.clip(second, 0, 62)).astype(np.int32), np.int64)
        if op.mode == SHR:
            return shift(first, np.clip(second, 0, 62), self._rounding(op, "OFM"))
        raise IntegrityError(f"{op.title}: {self.stream.title} has no element-wise operation {op.mode}")

    def _sum(self, op: Operation, first: Array, second: Array, width: int) -> Array:
        """Returns the scaled sum or difference: one operand or both are scaled before it."""
        scaled = op.register("IFM_PRECISION") >> 8 & 3
        rounding = self._rounding(op, "IFM")
        a, b = op.register("IFM_SCALE"), op.register("IFM2_SCALE") & 0xFFFFFFFF
        if scaled:
            up = 20 if width == 1 else 15
            left, right = (1, 0) if scaled == 2 else (0, 1)
            operands = [first, second]
            scale, places = a & 0xFFFFFFFF, a >> 32 & 63
            operands[left] = rescale(operands[left] << up, scale, places + up, rounding)
            operands[right] = operands[right] << (up - 1)
            first, second = operands
        else:
            first, second = first * (a & 0xFFFFFFFF), second * b
        total = first - second if op.mode == SUB else first + second
        return self._scaled(op, total, *_ofm_scale(op))

    def _scaled(self, op: Operation, values: Array, scale: Array | int, places: Array | int) -> Array:
        return rescale(values, scale, places, self._rounding(op, "OFM"))

    @staticmethod
    def _rounding(op: Operation, name: str) -> Rounding:
        return ROUNDINGS[op.register(f"{name}_PRECISION") >> 14]

    def _finish(self, op: Operation, memories: Memories, ofm: FeatureMap, values: Array) -> None:
        """Adds the zero point, clips, looks up the table and stores the output."""
        function = op.register("ACTIVATION")
        values = values + ofm.zero_point
        kind = ofm.dtype.kind
        low, high = op.register("ACTIVATION_MIN"), op.register("ACTIVATION_MAX")
        if kind == "i":
            low, high = signed(low, 16), signed(high, 16)
        table, force = function & 0xFFF, function >> 12 & 3
        if table in (TANH, SIGMOID):
            values = curve(curve_table(), values, table == TANH)
        if ofm.dtype.itemsize < 4 or force:
            bits = 8 if force else 8 * ofm.dtype.itemsize
            limits = np.iinfo(f"{kind}{bits // 8}")
            values = np.clip(values, max(low, limits.min), min(high, limits.max))
        if table >= TABLE:
            values = self._looked_up(op, memories, values, table - TABLE, ofm)
        memories.write(
            op, ofm, np.broadcast_to(values, (len(values), *ofm_size(op), values.shape[3])).astype(ofm.dtype)
        )

    def _looked_up(self, op: Operation, memories: Memories, values: Array, slot: int, ofm: FeatureMap) -> Array:
        """Returns what the table of a slot gives: 256 entries, or 512 with a slope each for 16 bits."""
        start = len(memories.tables) - TABLE_BYTES + slot * 256
        size = 2048 if ofm.dtype.itemsize == 2 else 256 * ofm.dtype.itemsize
        table = memories.tables[start : start + size]
        if len(table) < size:
            raise IntegrityError(f"{op.title}: its table is outside of the memory of tables")
        if memories.watcher is not None:
            memories.watcher.use_table(op, start, size)
        if ofm.dtype.itemsize == 2:
            return interpolate(table.view(np.int32), values)
        return np.asarray(table.view(ofm.dtype)[values + (128 if ofm.dtype.kind == "i" else 0)])


@dataclass(frozen=True)
class KernelDepths:
    """A kernel and how many channels go in and out."""

    kernel: Kernel
    ifm: int
    ofm: int
    depthwise: bool


def work(op: Operation) -> int:
    """Returns about how much an operation computes or moves, before anything is computed."""
    if op.kind == "dma":
        return op.registers.get("DMA0_SIZE0", 1) * op.registers.get("DMA0_SIZE1", 1) * STEP_WORK + op.address(
            "DMA0_LEN"
        )
    height, width = ofm_size(op)
    size = height * width * (op.register("OFM_DEPTH_M1") + 1)
    if op.kind == "elementwise":
        return size
    elements = (op.register("KERNEL_HEIGHT_M1") + 1) * (op.register("KERNEL_WIDTH_M1") + 1)
    depth = op.register("IFM_DEPTH_M1") + 1
    deep = depth if op.kind == "conv" or (op.kind == "pool" and op.register("OFM_DEPTH_M1") == 0) else 1
    return size * elements * deep + elements * STEP_WORK


def ofm_size(op: Operation) -> tuple[int, int]:
    return op.register("OFM_HEIGHT_M1") + 1, op.register("OFM_WIDTH_M1") + 1


def _ofm_scale(op: Operation) -> tuple[int, int]:
    value = op.register("OFM_SCALE")
    return value & 0xFFFFFFFF, value >> 32 & 63

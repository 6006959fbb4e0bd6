"""The operations of the U85: those of the U55 with other fields, and chaining, resizing, matrices, gathering."""

from __future__ import annotations

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u import weights85
from anynpu.runtime.ethos_u.arithmetic import Rounding, leading_zeros, rescale
from anynpu.runtime.ethos_u.curves import curve, interpolate
from anynpu.runtime.ethos_u.elementwise85 import NOT, combined
from anynpu.runtime.ethos_u.memory import FeatureMap, Memories, dtype_of, feature_map, signed
from anynpu.runtime.ethos_u.operations import (
    INDEXED,
    LINE,
    Filters,
    KernelDepths,
    Machine,
    ofm_size,
)
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.runtime.ethos_u.windows import Kernel, averages, check_depth, kernel_of, padded, taps, window_sums
from anynpu.tensors import Array

MAX, AVERAGE, REDUCE_SUM, SUM, NONE, MIN, ARGMAX_X, ARGMAX_Y = range(8)
MUL, ADD, SUB, MINIMUM, MAXIMUM, LRELU, ABS, CLZ, SHR, SHL, LSR, DIV = range(12)
BILINEAR, REPLICATE, NEAREST = range(3)
UNARY = (LRELU, ABS, CLZ, NOT)
CHAINED, UNUSED = 2, 3
KEEP, FROM_IFM2 = 1, 2
SCALAR = 8
FAR = 1 << 48
TRANSPOSED = {0: (0, 1, 2, 3), 1: (0, 2, 1, 3), 2: (0, 1, 3, 2), 3: (0, 2, 3, 1), 6: (0, 3, 1, 2), 7: (0, 3, 2, 1)}
STREAMS = {128: 1, 256: 1, 512: 2, 1024: 4, 2048: 4}
MICRO_BLOCKS = (1, 2, 4, 4, 8, 16)
"""Positions of the output that are computed at a time, as ACC_FORMAT names them."""
TABLES = {1: ("u1", 256), 4: ("i1", 256), 5: ("i2", 256), 7: ("i4", 256), 8: ("i4", 512), 9: ("i4", 512)}
CURVES = (10, 11)
ROUNDINGS = (
    Rounding.DOUBLE,
    Rounding.NATURAL,
    Rounding.DOUBLE,
    Rounding.AWAY,
    Rounding.TO_ZERO,
    Rounding.DOWN,
    Rounding.NATURAL,
    Rounding.NATURAL,
)


class Machine85(Machine):
    """Executes streams for the U85."""

    ignores_channel_stride = False

    @property
    def table_bytes(self) -> int:
        return 2048

    def _dma(self, op: Operation, memories: Memories) -> None:
        source, target = op.register("DMA0_SRC_REGION"), op.register("DMA0_DST_REGION")
        length = op.address("DMA0_LEN")
        if memories.watcher is not None and target >> 8 & 1:
            for name in ("DMA0_DST", "DMA0_LEN"):
                memories.watcher.aligned(op, name, op.address(name), LINE)
        dimensions, gathers, scatters = source >> 9 & 3, source >> INDEXED & 1, target >> INDEXED & 1
        rows = op.register("DMA0_SIZE0") if dimensions or gathers or scatters else 1
        planes = op.register("DMA0_SIZE1") if dimensions == 2 else 1
        steps = {
            (side, axis): op.stride(f"DMA0_{side}_STRIDE{axis}") if dimensions > axis or (axis == 0 and indexed) else 0
            for side, indexed in (("SRC", gathers), ("DST", scatters))
            for axis in (0, 1)
        }
        skip = op.address("DMA0_IDX_SKIP1") if dimensions == 2 and (gathers or scatters) else 0
        index = op.address("DMA0_IDX") if gathers or scatters else 0
        for plane in range(planes):
            for row in range(rows):
                start = op.address("DMA0_SRC") + plane * steps["SRC", 1]
                end = op.address("DMA0_DST") + plane * steps["DST", 1]
                if gathers or scatters:
                    # Each sample has its own index at this address.
                    at = index + (plane * rows + row) * 4 + plane * skip
                    raw = memories.bytes(op, op.register("DMA0_IDX_REGION") & 7, at, 4, "DMA0_IDX")
                    chosen = np.ascontiguousarray(raw).view(np.int32)[:, 0].astype(np.int64)
                    if chosen.min() < 0 or chosen.max() > op.address("DMA0_IDX_MAX"):
                        words = f"its index {int(chosen.max())} is outside of what it chooses from"
                        raise IntegrityError(f"{op.title}: {words}")
                    starts = start + (chosen if gathers else np.array([row])) * steps["SRC", 0]
                    ends = end + (chosen if scatters else np.array([row])) * steps["DST", 0]
                    self._copy_each(op, memories, (source, starts), (target, ends), length)
                else:
                    start, end = start + row * steps["SRC", 0], end + row * steps["DST", 0]
                    self.copy(op, memories, source, start, target, end, length)

    def _copy_each(
        self,
        op: Operation,
        memories: Memories,
        source: tuple[int, Array],
        target: tuple[int, Array],
        length: int,
    ) -> None:
        """Copies bytes whose place is another for each sample."""
        starts, ends = np.broadcast_arrays(source[1], target[1])
        if len(set(starts.tolist())) == 1 and len(set(ends.tolist())) == 1:
            self.copy(op, memories, source[0], int(starts[0]), target[0], int(ends[0]), length)
            return
        for sample, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            self.copy(op, memories, source[0], start, target[0], end, length, slice(sample, sample + 1))

    def _resize(self, op: Operation, memories: Memories) -> None:
        """Samples the input at places between its elements; the sums have 16 bits below the point."""
        ifm, (height, width) = feature_map(op, "IFM", 2), ofm_size(op)
        size = (op.register("KERNEL_HEIGHT_M1") + 1, op.register("KERNEL_WIDTH_M1") + 1)
        depth = op.register("IFM_DEPTH_M1") + 1
        check_depth(op, depth)
        values = self._read(op, memories, ifm, (*size, depth))
        rows, row_parts, row_whole = _places(op, "Y", height)
        cols, col_parts, col_whole = _places(op, "X", width)
        if op.mode != BILINEAR:
            nearest = op.mode == NEAREST
            rows = np.clip(rows + (nearest & (2 * row_parts >= row_whole)), 0, size[0] - 1)
            cols = np.clip(cols + (nearest & (2 * col_parts >= col_whole)), 0, size[1] - 1)
            total = values[:, rows][:, :, cols]
        else:
            total = np.zeros((1, height, width, 1), np.int64)
            for down, row_weight in ((0, row_whole - row_parts), (1, row_parts)):
                for across, col_weight in ((0, col_whole - col_parts), (1, col_parts)):
                    corner = values[:, np.clip(rows + down, 0, size[0] - 1)][
                        :, :, np.clip(cols + across, 0, size[1] - 1)
                    ]
                    total = total + corner * (row_weight[:, None, None] * col_weight[:, None])
        self._output(op, memories, total << 16, None)

    def _operand(self, op: Operation, memories: Memories, name: str, shape: tuple[int, ...]) -> Array:
        """Returns an operand of an element-wise operation less its zero point, in a shape that broadcasts."""
        broadcast, precision = op.registers.get(f"{name}_BROADCAST", 0), op.register(f"{name}_PRECISION")
        zero_point = op.registers.get(f"{name}_ZERO_POINT", 0)
        if precision & 1:
            zero_point = signed(zero_point, 16)
        if broadcast & SCALAR:
            value = op.register("OP_SCALAR") & 0xFFFFFFFF
            return np.full((1, 1, 1, 1), (signed(value, 32) if precision & 1 else value) - zero_point, np.int64)
        if precision >> 14 == CHAINED:
            return self._chained(op, memories, name) - zero_point
        size = tuple(1 if broadcast >> bit & 1 else n for bit, n in enumerate(shape))
        return self._read(op, memories, feature_map(op, name, 2), size)

    def _chained(self, op: Operation, memories: Memories, name: str) -> Array:
        try:
            return memories.chains[op.register(f"{name}_REGION")]
        except KeyError:
            raise IntegrityError(f"{op.title}: nothing was chained to it") from None

    @staticmethod
    def _read(op: Operation, memories: Memories, fm: FeatureMap, size: tuple[int, ...]) -> Array:
        return memories.read(op, fm, size).astype(np.int64) - fm.zero_point  # type: ignore[arg-type]  # three

    def _windowed(
        self, op: Operation, memories: Memories, ifm: FeatureMap, kernel: Kernel, size: tuple[int, int], depth: int
    ) -> Array:
        if op.register("IFM_PRECISION") >> 14 == CHAINED:
            return padded(op, self._chained(op, memories, "IFM") - ifm.zero_point, kernel, size, 0)
        return super()._windowed(op, memories, ifm, kernel, size, depth)

    def _convolution(self, op: Operation, memories: Memories, depthwise: bool) -> None:
        ifm, kernel = feature_map(op, "IFM", 2), kernel_of(op)
        size, depth, ifm_depth = ofm_size(op), op.register("OFM_DEPTH_M1") + 1, op.register("IFM_DEPTH_M1") + 1
        values = self._windowed(op, memories, ifm, kernel, size, ifm_depth)
        if op.kind == "conv" and op.mode & 1:
            second = feature_map(op, "IFM2", 2)
            matrix = self._read(op, memories, second, (1, depth, ifm_depth))
            (_, _, seen), *_ = taps(values, kernel, size)
            # Either side may be stored, and is then the same for every sample.
            samples = max(len(seen), len(matrix))
            left, right = (np.broadcast_to(each, (samples, *each.shape[1:])) for each in (seen, matrix[:, 0]))
            total = np.einsum("nhwc,noc->nhwo", left.astype(np.int64), right)
            self._output(op, memories, self._accumulated(op, memories, total), None)
            return
        filters = self.filters_of(op, memories, KernelDepths(kernel, ifm_depth, depth, depthwise), ifm)
        total = self.sums(values, filters, kernel, size, depthwise, ifm.dtype.itemsize)
        if not _keeps(op):  # the bias is added with the scale, where the sums leave
            total = total + filters.bias
        self._output(op, memories, self._accumulated(op, memories, total), filters)

    def _accumulated(self, op: Operation, memories: Memories, total: Array) -> Array:
        """Returns the sums with what the accumulator held before."""
        source = op.register("ACC_FORMAT") >> 4 & 3
        if source == KEEP:
            if memories.accumulator is None:
                raise IntegrityError(f"{op.title}: it adds to an accumulator that nothing filled")
            return total + memories.accumulator
        if source == FROM_IFM2:
            shape = (*ofm_size(op), op.register("OFM_DEPTH_M1") + 1)
            return total + self._read(op, memories, feature_map(op, "IFM2", 2), shape)
        return total

    def _raw_filters(self, op: Operation, memories: Memories) -> tuple[bytes, ...]:
        """Returns the weights of each stream, then the scales."""
        if op.kind == "conv" and op.mode & 1:
            return ()
        streams = 1 if op.register("WEIGHT_FORMAT") & 1 else STREAMS[self.stream.macs]
        raw = []
        # Two registers of the second core of a U65 are those of the third stream here.
        for name in ("WEIGHT", "WEIGHT1", "SCALE1", "WEIGHT3")[:streams]:
            length = op.address(f"{name}_LENGTH")
            start = op.address(f"{name}_BASE") if length else 0
            if memories.watcher is not None:
                memories.watcher.aligned(op, f"{name}_BASE", start, LINE)
            raw.append(memories.bytes(op, op.register("WEIGHT_REGION") & 7, start, length, name)[0].tobytes())
        scales = memories.bytes(
            op, op.register("SCALE_REGION") & 7, op.address("SCALE_BASE"), op.address("SCALE_LENGTH"), "SCALE"
        )
        return (*raw, scales[0].tobytes())

    def compressed(self, op: Operation, raw: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return () if op.registers.get("WEIGHT_FORMAT", 0) & 1 else tuple(filter(None, raw[:-1]))

    def decode_filters(self, op: Operation, raw: tuple[bytes, ...], depths: KernelDepths, ifm: FeatureMap) -> Filters:
        kernel, form = depths.kernel, op.register("WEIGHT_FORMAT")
        micro = self.stream.macs // 8 // MICRO_BLOCKS[min(op.register("ACC_FORMAT") >> 8 & 7, 5)]
        part_kernel, sparse, bits = (
            kernel.part_kernel and not depths.depthwise,
            bool(form >> 4 & 1),
            8 * ifm.dtype.itemsize,
        )
        order = weights85.Order85(
            *kernel.size,
            ifm_depth=depths.ifm,
            ofm_depth=depths.ofm,
            depthwise=depths.depthwise,
            part_kernel=part_kernel,
            sparse=sparse,
            ofm_block=op.register("OFM_BLK_DEPTH_M1") + 1,
            ifm_block=weights85.ifm_block(depths.depthwise, part_kernel, sparse, bits, self.stream.macs, micro),
            micro_depth=micro,
            ifm_bits=bits,
            stride=kernel.stride,
            dilation=kernel.dilation,
            macs=self.stream.macs,
            streams=STREAMS[self.stream.macs],
        )
        if form & 1:
            streams = weights85.split_fast(weights85.decode_fast(raw[0], op.title), order)
        else:
            decoded = iter(self._decoder.decode(self.compressed(op, raw), [op.title] * len(self.compressed(op, raw))))
            streams = [next(decoded) if stream else np.zeros(0, np.int16) for stream in raw[:-1]]
        weights = weights85.arrange(streams, order, op.title)
        wide = bool(op.register("ACC_FORMAT") & 3)
        return Filters(raw, weights, *weights85.scales(raw[-1], depths.ofm, wide, op.title))

    def _pool(self, op: Operation, memories: Memories) -> None:
        ifm, kernel, size = feature_map(op, "IFM", 2), kernel_of(op), ofm_size(op)
        depth = op.register(f"{'OFM' if op.mode == NONE else 'IFM'}_DEPTH_M1") + 1
        check_depth(op, 1 if op.mode == REDUCE_SUM else depth)
        if op.mode == NONE:
            total = self._accumulated(op, memories, np.zeros((1, *size, depth), np.int64))
        elif op.mode in (MAX, MIN):
            sign = -1 if op.mode == MIN else 1
            if op.register("IFM_PRECISION") >> 14 == CHAINED:
                values = self._chained(op, memories, "IFM") - ifm.zero_point
            else:
                values = self._read(op, memories, ifm, (*kernel.ifm_size(size), depth))
            seen = (v for _, _, v in taps(padded(op, sign * values, kernel, size, -FAR), kernel, size))
            largest = next(seen).copy()
            for values in seen:
                np.maximum(largest, values, out=largest)
            total = sign * largest
        elif op.mode in (AVERAGE, REDUCE_SUM, SUM):
            values = self._windowed(op, memories, ifm, kernel, size, depth).astype(np.int64)
            total = window_sums(values, kernel, size)
            if op.mode == REDUCE_SUM:
                total = total.sum(axis=-1, keepdims=True)
            if op.mode == AVERAGE:
                total = averages(total, kernel, size, values)
            total = self._accumulated(op, memories, total)
        else:  # the position of the largest value within the window, above 16 bits that the scale drops
            values = self._read(op, memories, ifm, (*kernel.ifm_size(size), depth))
            window = np.stack([v for _, _, v in taps(padded(op, values, kernel, size, -FAR), kernel, size)])
            total = np.asarray(window.argmax(axis=0), np.int64) << 16
        self._output(op, memories, total, None)

    def _elementwise(self, op: Operation, memories: Memories) -> None:
        shape = (*ofm_size(op), op.register("OFM_DEPTH_M1") + 1)
        first = self._operand(op, memories, "IFM", shape)
        if op.mode == LRELU:
            scaled = np.where(
                first >= 0, self._scaled_operand(op, "IFM", first), self._scaled_operand(op, "IFM2", first)
            )
        elif op.mode in UNARY:
            first = self._scaled_operand(op, "IFM", first)
            scaled = np.abs(first) if op.mode == ABS else leading_zeros(first) if op.mode == CLZ else ~first
        else:
            second = self._operand(op, memories, "IFM2", shape)
            first, second = self._scaled_operand(op, "IFM", first), self._scaled_operand(op, "IFM2", second)
            scaled = combined(op, first, second, _ofm_scale(op)[2])
        self._output(op, memories, scaled, None)

    @staticmethod
    def _scaled_operand(op: Operation, name: str, values: Array) -> Array:
        register = op.register(f"{name}_SCALE")
        scale, fields = register & 0x7FFFFFFF, register >> 32
        places, up = fields & 63, fields >> 6 & 31
        rounding = Rounding.NATURAL if fields >> 13 & 1 else Rounding.DOUBLE
        if scale == 1 and places == 0:
            return values
        return rescale(values << up, scale, places + up, rounding)

    def _output(self, op: Operation, memories: Memories, total: Array, filters: Filters | None) -> None:
        """Scales, adds the zero point, clips, looks up the table, and stores, chains or keeps the result."""
        precision = op.register("OFM_PRECISION")
        if _keeps(op):
            memories.accumulator = total
            return
        scale, places, rounding = _ofm_scale(op)
        if op.kind == "elementwise" and op.mode == MUL and op.register("IFM_PRECISION") >> 2 & 3 == 2:
            scale = 1  # a product of 32-bit numbers is shifted, not scaled
        if filters is not None and not precision >> 8 & 1:
            values = rescale(total, filters.scale, filters.shift, rounding)
        else:
            values = rescale(total, scale, places, rounding)
        dtype = dtype_of(precision, 1)
        zero_point = op.register("OFM_ZERO_POINT")
        values = values + (signed(zero_point, 16) if precision & 1 else zero_point)
        values = self._activated(op, memories, values, dtype)
        shape = (len(values), *ofm_size(op), values.shape[3])
        values = np.broadcast_to(values, shape)
        if precision >> 14 == CHAINED:
            memories.chains[op.register("OFM_REGION")] = values.astype(dtype).astype(np.int64)
            return
        if reverse := precision >> 9 & 3:
            values = np.flip(values, reverse)
        values = values.transpose(TRANSPOSED.get(precision >> 11 & 7, (0, 1, 2, 3)))
        memories.write(op, feature_map(op, "OFM", 1), values.astype(dtype))

    def _activated(self, op: Operation, memories: Memories, values: Array, dtype: np.dtype[np.generic]) -> Array:
        register = op.register("ACTIVATION")
        function, slot = register & 31, register >> 5 & 7
        if function in CURVES:
            if memories.watcher is not None:
                memories.watcher.use_table(op, 0, 2048)
            return curve(memories.tables[:2048].view(np.int32), values, function == CURVES[0])
        if not register >> 12 & 1:
            low, high = op.register("ACTIVATION_MIN"), op.register("ACTIVATION_MAX")
            if op.register("OFM_PRECISION") & 1:
                low, high = signed(low, 16), signed(high, 16)
            values = np.clip(values, low, high)
        if function == 0:
            if dtype.itemsize < 4 and not register >> 12 & 1:  # without clipping the low bits are stored
                limits = np.iinfo(dtype)  # type: ignore[type-var]  # it is an integer
                values = np.clip(values, limits.min, limits.max)
            return values
        kind, entries = TABLES.get(function, ("i4", 512))
        size = np.dtype(kind).itemsize * entries
        raw = memories.tables[slot * size : (slot + 1) * size]
        if len(raw) < size:
            raise IntegrityError(f"{op.title}: its table is outside of the memory of tables")
        if memories.watcher is not None:
            memories.watcher.use_table(op, slot * size, size)
        table = raw.view(kind)
        if entries == 256:
            return np.asarray(table[np.clip(values, 0, 255) if function == 1 else np.clip(values, -128, 127) + 128])
        return interpolate(table, np.clip(values, -32768, 32767))


def _keeps(op: Operation) -> bool:
    """Tells whether the sums stay in the accumulator, for the next operation."""
    return bool(op.register("ACC_FORMAT") >> 6 & 1) or op.register("OFM_PRECISION") >> 14 == UNUSED


def _places(op: Operation, axis: str, count: int) -> tuple[Array, Array, int]:
    """Returns the element before each place that a resize looks at, how far behind it the place is, and out of what."""
    whole = op.register(f"RESIZE_{axis}_SCALE_N_M1") + 1
    register = op.register(f"RESIZE_{axis}")
    step = (register >> 32 & 15) * whole + (register & 0x7FF)
    places = np.arange(count) * step + signed(op.register(f"RESIZE_{axis}_OFFSET"), 12)
    return places // whole, places % whole, whole


def _ofm_scale(op: Operation) -> tuple[int, int, Rounding]:
    register = op.register("OFM_SCALE")
    fields = register >> 32
    return register & 0x7FFFFFFF, fields & 63, ROUNDINGS[fields >> 13 & 7]

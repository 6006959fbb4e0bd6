"""Scales and integers: one scale for each tensor and each layer's weights, bound together by a power of two.

    scale_out = scale_in * scale_weight * 128 / 2**shift

The scale of the weights is free, so the scale of the output may be any number; what it costs is that the largest weight
does not fall on the largest integer. Of all pairs (scale_out, shift) the one with the smallest expected error is taken:
rounding of the output, rounding and clipping of the weights weighed by what flows through them, and rounding and
clipping of the bias, which has eight bits in steps of 128 * scale_in * scale_weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anynpu.errors import Finding, Unsupported
from anynpu.quantize.ranges import Range, RangeCollector
from anynpu.runtime.ai8x import INPUT
from anynpu.targets.ai8x.blocks import Block, Blocks
from anynpu.targets.ai8x.options import Ai8xOptions
from anynpu.tensors import Array

Floats = NDArray[np.float64]
# Where Laplace's distribution is best cut, in units of its scale, by bits.
LAPLACE = {1: 1.86, 2: 2.83, 4: 5.03, 8: 9.89}
STEPS = 8
COARSE = 0.3
"""The minimum share of the largest weight that integers of fewer than eight bits reach."""
MOMENT_SAMPLES = 64
SHIFTS = range(-15, 16)


@dataclass(frozen=True)
class Statistics:
    """What the calibration samples show: the range of each tensor, and per channel its mean and mean square."""

    range: Mapping[str, Range]
    mean: Mapping[str, Floats]
    square: Mapping[str, Floats]
    fixed: Mapping[str, Range] = field(default_factory=dict)
    """The ranges that a file states: the scales of these tensors are not searched."""
    entry: tuple[float, int] | None = None
    """The stated scale and zero point of the input."""

    def peak(self, tensor: str) -> float:
        """The largest size of a tensor's values."""
        limits = self.range[tensor]
        return max(-limits.min, limits.max, 2.0**-60)


@dataclass(frozen=True)
class Quantised:
    """The integers of a layer and what its results stand for; `rest` is a bias that the processor is to add."""

    weight: NDArray[np.int64] | None
    bias: NDArray[np.int64] | None
    shift: int
    scale: float
    rest: Floats | None = None
    error: float = 0.0
    """The expected mean square of what rounding adds to its results."""


@dataclass(frozen=True)
class Integers:
    """The whole network in integers; `centre` is the real number that an input of zero stands for."""

    layers: list[Quantised]
    scale: float
    centre: float


def observe(
    blocks: Blocks,
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    samples: Sequence[Mapping[str, Array]],
    method: str,
    progress: Callable[[int, int], None],
) -> Statistics:
    """Returns the statistics of every tensor that a layer makes, over the samples."""
    collector = RangeCollector(method, bits=8, symmetric=True)
    # Copies stand for a tensor that another layer has made before.
    makers = {blocks.tensor_of(n): n for n in reversed(range(INPUT, len(blocks.blocks)))}
    names = blocks.tensors()
    relus = {n: blocks.blocks[m] for n, m in makers.items() if m != INPUT and blocks.blocks[m].activation == "relu"}
    sums: dict[str, list[Floats]] = {name: [] for name in names}
    for step in range(len(samples) * collector.passes):
        number = step % len(samples)
        progress(step, len(samples) * collector.passes)
        values = run(samples[number])
        # Where a window came before the activation, the graph has the sums only.
        tensors = {n: np.clip(values[n], 0, relus[n].ceiling) if n in relus else values[n] for n in names}
        if step >= len(samples):
            collector.observe_values(tensors)
            continue
        collector.observe_limits(tensors, number)
        if number < MOMENT_SAMPLES:
            for name, value in tensors.items():
                flat = np.asarray(value, np.float64).reshape(value.shape[1], -1)
                sums[name].append(np.stack([flat.mean(axis=1), (flat**2).mean(axis=1)]))
    moments = {name: np.mean(parts, axis=0) for name, parts in sums.items()}
    ranges = collector.ranges(whole={blocks.blocks[-1].tensor})
    return Statistics(ranges, {n: m[0] for n, m in moments.items()}, {n: m[1] for n, m in moments.items()})


def quantise(
    blocks: Blocks, seen: Statistics, options: Ai8xOptions, last_width: int, biased: int, bits: Sequence[int]
) -> Integers:
    """Returns the integers of every layer, whose weights have this many bits; `biased` is how many outputs of a layer
    may have a bias."""
    tied = _tied(blocks, seen)
    users = [blocks.blocks[n] for n in blocks.users(INPUT)]
    # The centre is zero where padding puts zeros next to the input, or a sum binds its scale.
    if INPUT in tied or any(block.weight is None or max(block.pad) for block in users):
        scale, centre = tied.get(INPUT, seen.peak(blocks.tensor) / 127), 0.0
    else:
        limits = seen.range[blocks.tensor]
        scale = max((limits.max - limits.min) / 255, 2.0**-60)
        centre = (round(limits.min / scale) + 128) * scale
        if seen.entry is not None:
            scale, centre = seen.entry[0], -seen.entry[1] * seen.entry[0]
    scales, layers = {INPUT: scale}, list[Quantised]()
    last = len(blocks.blocks) - 1
    for number, block in enumerate(blocks.blocks):
        (source, *_), incoming = block.sources, scales[block.sources[0]]
        if block.weight is None:
            layer = Quantised(None, None, 0, incoming)
        elif (
            block.sum
            and tied.get(number, incoming) == incoming
            and bits[number] >= 2
            and (block.ceiling is None or incoming * 127 <= block.ceiling * 1.0001)
        ):  # the sum is handed on as it is, which is exact
            weight = (block.weight * 2 ** (bits[number] - 2)).astype(np.int64)
            layer = Quantised(weight, np.zeros(len(weight), np.int64), 9 - bits[number], incoming)
        else:
            lost = _cut_off(blocks, block, incoming, options)
            tensor, middle = blocks.tensor_of(source), centre if source == INPUT else 0.0
            search = _Search(block, incoming, options, bits[number])
            search.expect(seen.mean[tensor], seen.square[tensor], lost, middle)
            if last_width == 32 and number == last:
                layer = search.wide(block.output[0] > biased)
            else:
                offset = abs(blocks.offset) if number == last else 0.0
                layer = search.narrow(_outputs(block, seen, tied.get(number), offset))
        scales[number] = layer.scale
        layers.append(layer)
    return Integers(layers, scale, centre)


def shares(blocks: Blocks, seen: Statistics, integers: Integers) -> list[float]:
    """Returns the expected error of every layer as a share of its result."""
    pairs = zip(blocks.blocks, integers.layers, strict=True)
    return [layer.error / max(float(seen.square[block.tensor].mean()), 2.0**-60) for block, layer in pairs]


def _cut_off(blocks: Blocks, block: Block, scale: float, options: Ai8xOptions) -> float:
    """Returns what cutting off the mean of a window takes, on the average, from data that are never negative."""
    (source, *_), pool = block.sources, block.pool
    while source != INPUT and blocks.blocks[source].operation == "passthrough":
        source = blocks.blocks[source].sources[0]
    if pool is None or pool.kind == "max" or source == INPUT or blocks.blocks[source].activation == "none":
        return 0.0
    count = pool.size[0] * pool.size[1]
    rounded = options.avg_pool_rounding and block.operation != "conv1d"
    return 0.0 if rounded else 0.5 * (1 - 1 / count) * scale


def _tied(blocks: Blocks, seen: Statistics) -> dict[int, float]:
    """Returns the scales of results that a sum, or a layer without weights, binds to one another."""
    leader = {n: n for n in range(INPUT, len(blocks.blocks))}

    def lead(number: int) -> int:
        return number if leader[number] == number else lead(leader[number])

    for number, block in enumerate(blocks.blocks):
        if block.weight is None:
            for source in block.sources:
                leader[lead(source)] = lead(number)
        for source in block.sources[1:]:
            leader[lead(source)] = lead(block.sources[0])
    groups: dict[int, list[int]] = {}
    for number in leader:
        groups.setdefault(lead(number), []).append(number)
    sums = [block for block in blocks.blocks if len(block.sources) > 1]
    scales = dict[int, float]()
    for root in {lead(block.sources[0]) for block in sums}:
        tensors = [blocks.tensor_of(n) for n in groups[root]]
        tensors += [block.sum or block.tensor for block in sums if lead(block.sources[0]) == root]
        scales |= dict.fromkeys(groups[root], max(seen.peak(tensor) for tensor in tensors) / 127)
    return scales


def _outputs(block: Block, seen: Statistics, tied: float | None, offset: float) -> list[float]:
    """Returns the scales that the output may have."""
    if tied is not None:
        return [tied]
    peak = seen.peak(block.tensor)
    if block.tensor in seen.fixed:
        return [peak / 127]
    if offset:
        # A constant sum behind the activation is exact where it is a whole number of steps.
        largest = int(offset * 127 / peak)
        if largest < 1:
            words = f"The constant {offset:g} is less than one step of the output; add it on the processor."
            raise Unsupported("the constant sum at the end is not exact", [Finding("sum", words, block.name)])
        return [offset / n for n in sorted({max(1, int(largest / 2 ** (k / STEPS))) for k in range(STEPS)})]
    if block.ceiling is not None:
        peak = min(peak, block.ceiling)
    scales = [peak / 127 * 2 ** (k / STEPS) for k in range(STEPS)]
    return [s for s in scales if block.ceiling is None or s <= block.ceiling / 127 * 1.0001]


class _Search:
    """Tries scales for one layer and keeps the one with the smallest expected error."""

    def __init__(self, block: Block, scale: float, options: Ai8xOptions, bits: int) -> None:
        assert block.weight is not None and block.bias is not None
        self.block, self.weight, self.bias, self.incoming = block, block.weight, block.bias, scale
        self.name, self.bits, self.options = block.name, bits, options
        self.edge = max(1, 2 ** (self.bits - 1) - 1)
        self.largest = float(np.abs(self.weight).max()) or 1.0
        # The smallest and the largest scale of the weights that the way of clipping allows.
        size, largest = np.abs(self.weight), self.largest
        rows = size.reshape(len(size), -1).max(axis=1)
        # Two bits, or fewer than eight where they differ by layer, are worth more clipping.
        coarse = self.bits < 8 if self.options.weight_bits else self.bits == 2
        share = min(self.options.q_scale, COARSE) if coarse else self.options.q_scale
        cuts = {
            "best": largest * share,
            "max": largest,
            "avg": float(rows.mean()) or largest,
            "scale": largest * self.options.q_scale,
            "laplace": min(largest, LAPLACE[self.bits] * float(size.mean())) or largest,
        }
        least = cuts[self.options.clip_method] / self.edge
        self.least, self.most = least, 64 * least

    def expect(self, mean: Floats, square: Floats, lost: float, centre: float) -> None:
        """Takes what goes into the layer, per channel; the bias is to make up for its centre and for what is lost."""
        # A channel that is zero throughout loses nothing when its mean is cut off.
        each = np.where(mean > lost, lost, 0.0) + centre
        centres = self.weight * _per_input(self.block, each)
        self.bias = self.bias + centres.reshape(len(centres), -1).sum(axis=1)
        self.mean = _per_input(self.block, mean - each)
        self.square = _per_input(self.block, square - 2 * each * mean + each**2)

    def narrow(self, outputs: list[float]) -> Quantised:
        """Returns the best layer with eight-bit results."""
        tried = []
        for scale in outputs:
            for shift in SHIFTS:
                step = scale * 2.0**shift / (128 * self.incoming)
                if self.least * 0.9999 <= step <= self.most:
                    tried.append((self._erased(step), self._error(step) + scale**2 / 12, scale, shift, step))
        if not tried:
            words = "No shift from -15 to 15 brings the weights and the output into eight bits."
            raise Unsupported("the layer's scales are out of reach", [Finding("output_shift", words, self.name)])
        _, error, scale, shift, step = min(tried)
        weight, bias = self._integers(step)
        return Quantised(weight, bias, shift, scale, error=error)

    def wide(self, bare: bool) -> Quantised:
        """Returns the best layer whose results are the sums themselves; `bare` leaves the bias to the processor."""
        wanted = self.bias
        if bare:
            self.bias = np.zeros_like(wanted)
        steps = [self.least * 2 ** (k / STEPS) for k in range(6 * STEPS)]
        step = min(steps, key=lambda step: (self._erased(step), self._error(step)))
        weight, bias = self._integers(step)
        if not bare:
            return Quantised(weight, bias, 0, step * self.incoming, error=self._error(step))
        lost = ((self.weight - weight * step) * self.mean).reshape(len(weight), -1).sum(axis=1)
        return Quantised(weight, np.zeros_like(bias), 0, step * self.incoming, wanted + lost, self._error(step))

    def _erased(self, step: float) -> bool:
        """Tells whether a step leaves no weight: by its error it may be best, but nothing gets through such a layer."""
        return 2 * self.largest <= step

    def _integers(self, step: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        low = -(2 ** (self.bits - 1))
        weight = np.clip(np.rint(self.weight / step), low, 2 ** (self.bits - 1) - 1)
        # What rounding the weights takes from the mean of a channel, the bias gives back.
        lost = ((self.weight - weight * step) * self.mean).reshape(len(weight), -1).sum(axis=1)
        bias = np.clip(np.rint((self.bias + lost) / (128 * self.incoming * step)), -128, 127)
        return weight.astype(np.int64), bias.astype(np.int64)

    def _error(self, step: float) -> float:
        weight, bias = self._integers(step)
        off = self.weight - weight * step
        lost = (off * self.mean).reshape(len(weight), -1).sum(axis=1)
        spread = (off**2 * np.maximum(self.square - self.mean**2, 0)).reshape(len(weight), -1).sum(axis=1)
        shifted = self.bias + lost - bias * (128 * self.incoming * step)
        return float(np.mean(spread + shifted**2))


def _per_input(block: Block, values: Floats) -> Floats:
    """Returns a figure per input channel in the shape of the weights."""
    assert block.weight is not None
    if block.operation == "linear":
        return np.repeat(values, block.weight.shape[1] // len(values))[None, :]
    if block.groups > 1:
        return values[:, None, None, None]
    return values[None, :, None, None]

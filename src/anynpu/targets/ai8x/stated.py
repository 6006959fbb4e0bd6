"""The quantisation of a network for the MAX7800x as its record, and one that the user states."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from anynpu.quantize.fixed import FOLLOWING, Stated, form_of, read_stated
from anynpu.quantize.ranges import Range
from anynpu.records.quantisation import OperatorForm, Origin, Quantisation, TensorForm
from anynpu.runtime.ai8x import INPUT
from anynpu.targets.ai8x.blocks import Blocks
from anynpu.targets.ai8x.scales import Integers, Statistics
from anynpu.tensors import Quantization

WEIGHTS, BIASES = "/weights", "/biases"


def quantisation_of(
    blocks: Blocks, integers: Integers, widths: Sequence[int], stated: Mapping[str, Range], last_width: int
) -> Quantisation:
    """Returns how every tensor of a network is stored, by the names of the float model; weights and biases by those of
    their layer's result. `stated` are the ranges that a file states."""
    origin: Origin = "stated" if blocks.tensor in stated else "measured"
    entry = Quantization((integers.scale,), (-round(integers.centre / integers.scale),))
    tensors = {blocks.tensor: form_of("int8", entry, stated.get(blocks.tensor), origin)}
    operators: dict[str, OperatorForm] = {}
    scales = {INPUT: integers.scale}
    for number, (block, layer) in enumerate(zip(blocks.blocks, integers.layers, strict=True)):
        incoming, scales[number] = scales[block.sources[0]], layer.scale
        last = number == len(blocks.blocks) - 1
        wide = last and last_width == 32
        follows = block.weight is None or wide
        origin = "tied" if follows else "stated" if block.tensor in stated else "measured"
        limits = None if follows else stated.get(block.tensor)
        dtype = "int32" if wide else "int8"
        tensors[block.tensor] = form_of(dtype, Quantization((layer.scale,), (0,)), limits, origin)
        operators[block.tensor] = OperatorForm(kind=block.operation, computes="int8")
        if layer.weight is None or block.sum:  # the weights of a sum are ones
            continue
        step = layer.scale / incoming if wide else layer.scale * 2.0**layer.shift / (128 * incoming)
        kind = f"int{widths[number]}"
        tensors[block.key + WEIGHTS] = form_of(kind, Quantization((step,), (0,)), None, "weights")
        tensors[block.key + BIASES] = form_of("int8", Quantization((128 * incoming * step,), (0,)), None, "bias")
    return Quantisation(emitter="ai8x", tensors=tensors, operators=operators)


def stated_in(path: Path | None, blocks: Blocks) -> Stated | None:
    """Returns what a file states, None where there is none; scales of weights follow from those of the results."""
    stated = read_stated(path, "ai8x")
    if stated is None:
        return None
    results = {blocks.tensor, *(block.tensor for block in blocks.blocks)}
    for name, form in stated.quantisation.tensors.items():
        if name in results and form.dtype not in ("", "int8", "int32"):
            raise stated.error(f"{name}.dtype", f"results have 8 bits, not {form.dtype}", "the last layer may have 32")
        if name.endswith(WEIGHTS) and form.dtype and not re.fullmatch("int[1248]", form.dtype):
            raise stated.error(f"{name}.dtype", f"weights have 1, 2, 4 or 8 bits, not {form.dtype}", "")
    return stated


def with_stated(seen: Statistics, blocks: Blocks, stated: Stated | None) -> Statistics:
    """Returns what the samples show, with what a file states of the input and of results in place of it."""
    ranges, entry = dict[str, Range](), None
    for name, form in stated.quantisation.tensors.items() if stated is not None else ():
        if name not in seen.range or form.origin in FOLLOWING:
            continue
        if form.range is not None:
            ranges[name] = Range(*form.range)
        elif form.scale:
            ranges[name] = Range(-127 * form.scale[0], 127 * form.scale[0])
        if form.scale and name == blocks.tensor:
            entry = (form.scale[0], form.zero_point[0])
    return replace(seen, range={**seen.range, **ranges}, fixed=ranges, entry=entry)


def with_bits(widths: Sequence[int], blocks: Blocks, stated: Stated | None) -> tuple[int, ...]:
    """Returns the bits of every layer's weights, with those that a file states."""
    forms = stated.quantisation.tensors if stated is not None else {}
    kinds = [forms.get(block.key + WEIGHTS, TensorForm()).dtype for block in blocks.blocks]
    return tuple(int(kind.removeprefix("int")) if kind else bits for kind, bits in zip(kinds, widths, strict=True))

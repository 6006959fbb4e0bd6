"""Writes operators of other converters in those that our writer has: axes of one, stacks, long sums, wide windows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from anynpu.lowering.graph import Operator, Tensor, int32
from anynpu.lowering.options import Add, Concatenation, Conv2D, Mul, Reducer, Reshape, Split

Tensors = dict[str, Tensor]
Names = tuple[str, ...]


def respelled(kind: str, inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """Returns the operators that compute what one of another converter does, None for any other; constants and tensors
    between them join `tensors`."""
    spell = SPELLINGS.get(kind)
    return None if spell is None else spell(inputs, outputs, settings, tensors)


def _constant(tensors: Tensors, name: str, values: Any) -> str:
    array = int32(values)
    tensors[name] = Tensor(name, array.shape, "int32", array)
    return name


def _reshaped(tensors: Tensors, source: str, result: str) -> Operator:
    shape = tensors[result].shape
    wanted = _constant(tensors, f"{result}/shape", shape)
    return Operator("RESHAPE", (source, wanted), (result,), Reshape(shape))


def axes_of_one(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """SQUEEZE and EXPAND_DIMS are the same values under another shape."""
    return [_reshaped(tensors, inputs[0], outputs[0])]


def reshaped(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """RESHAPE may have its shape as a setting alone."""
    return None if len(inputs) == 2 else axes_of_one(inputs, outputs, settings, tensors)


def stacked(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """PACK joins its inputs along a new axis."""
    shape = tensors[outputs[0]].shape
    axis = settings.axis % len(shape)
    if len(inputs) == 1:
        return [_reshaped(tensors, inputs[0], outputs[0])]
    parts, operators, single = [], [], (*shape[:axis], 1, *shape[axis + 1 :])
    for number, name in enumerate(inputs):
        part = f"{outputs[0]}/part{number}"
        tensors[part] = Tensor(part, single, tensors[name].dtype, None, tensors[name].quantization)
        operators.append(_reshaped(tensors, name, part))
        parts.append(part)
    return [*operators, Operator("CONCATENATION", tuple(parts), outputs, Concatenation(axis=axis))]


def unstacked(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """UNPACK takes its input apart along an axis, which goes."""
    source = tensors[inputs[0]]
    axis = settings.axis % len(source.shape)
    if len(outputs) == 1:
        return [_reshaped(tensors, inputs[0], outputs[0])]
    parts = tuple(f"{name}/part" for name in outputs)
    shape = (*source.shape[:axis], 1, *source.shape[axis + 1 :])
    tensors |= {part: Tensor(part, shape, source.dtype, None, source.quantization) for part in parts}
    where = f"{outputs[0]}/axis"
    tensors[where] = Tensor(where, (), "int32", int32([axis]).reshape(()))
    split = Operator("SPLIT", (where, inputs[0]), parts, Split(len(parts)))
    return [split, *(_reshaped(tensors, part, name) for part, name in zip(parts, outputs, strict=True))]


def pieces(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """SPLIT_V takes its input apart into pieces of several sizes: slices."""
    axis = tensors[inputs[2]].data
    if axis is None:
        return None
    source, place, operators = tensors[inputs[0]], 0, []
    along = int(axis.reshape(-1)[0]) % len(source.shape)
    for name in outputs:
        shape = tensors[name].shape
        begin = _constant(tensors, f"{name}/begin", [place if at == along else 0 for at in range(len(shape))])
        size = _constant(tensors, f"{name}/size", shape)
        operators.append(Operator("SLICE", (inputs[0], begin, size), (name,)))
        place += shape[along]
    return operators


def sum_of_many(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """ADD_N is a chain of sums of two."""
    if len(inputs) == 1:
        return [_reshaped(tensors, inputs[0], outputs[0])]
    operators, total = [], inputs[0]
    for number, name in enumerate(inputs[1:], start=2):
        result = outputs[0] if number == len(inputs) else f"{outputs[0]}/of{number}"
        tensors.setdefault(result, replace(tensors[outputs[0]], name=result))
        operators.append(Operator("ADD", (total, name), (result,), Add()))
        total = result
    return operators


def chosen(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """SELECT chooses by element, or by row where its condition has one axis."""
    condition, shape = tensors[inputs[0]], tensors[outputs[0]].shape
    if len(condition.shape) in (0, len(shape)):
        return [Operator("SELECT_V2", inputs, outputs)]
    rows = f"{outputs[0]}/rows"
    tensors[rows] = replace(condition, name=rows, shape=(*condition.shape, *(1,) * (len(shape) - 1)), data=None)
    return [_reshaped(tensors, inputs[0], rows), Operator("SELECT_V2", (rows, *inputs[1:]), outputs)]


def negative(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """NEG is a product with -1: LiteRT's NEG turns integers around without regard to their zero point."""
    if tensors[inputs[0]].dtype != "float32":
        return None
    minus = f"{outputs[0]}/minus"
    tensors[minus] = Tensor(minus, (), "float32", np.asarray(-1, np.float32))
    return [Operator("MUL", (inputs[0], minus), outputs, Mul())]


def square(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """SQUARE is a product of two of the same."""
    real = tensors[inputs[0]].dtype == "float32"
    return [Operator("MUL", (inputs[0], inputs[0]), outputs, Mul())] if real else None


def unit_length(inputs: Names, outputs: Names, settings: Any, tensors: Tensors) -> list[Operator] | None:
    """L2_NORMALIZATION divides by the root of the sum of squares along the last axis."""
    source, result = tensors[inputs[0]], outputs[0]
    if source.dtype != "float32" or getattr(settings, "fusedActivationFunction", None):
        return None
    axis = _constant(tensors, f"{result}/axis", [len(source.shape) - 1])
    small = (*source.shape[:-1], 1)
    shapes = {"square": source.shape, "mean": small, "sum": small, "kept": small, "inverse": small}
    square, mean, total, kept, inverse = (f"{result}/{name}" for name in shapes)
    for name, shape in shapes.items():
        tensors[f"{result}/{name}"] = Tensor(f"{result}/{name}", shape)
    numbers = {"count": source.shape[-1], "least": L2_LEAST**2}
    for name, number in numbers.items():
        tensors[f"{result}/{name}"] = Tensor(f"{result}/{name}", (), "float32", np.asarray(number, np.float32))
    return [
        Operator("MUL", (inputs[0], inputs[0]), (square,), Mul()),
        Operator("MEAN", (square, axis), (mean,), Reducer(keep_dims=True)),
        Operator("MUL", (mean, f"{result}/count"), (total,), Mul()),
        Operator("MAXIMUM", (total, f"{result}/least"), (kept,)),
        Operator("RSQRT", (kept,), (inverse,)),
        Operator("MUL", (inputs[0], inverse), outputs, Mul()),
    ]


def wide_windows(operators: Sequence[Operator], tensors: Tensors, outputs: Collection[str]) -> list[Operator]:
    """Returns convolutions between SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND as what they are: with wider windows."""
    makers = {name: operator for operator in operators for name in operator.outputs}
    readers: dict[str, list[Operator]] = {}
    for operator in operators:
        for name in operator.inputs:
            readers.setdefault(name, []).append(operator)
    changed: dict[str, list[Operator]] = {}
    gone: set[str] = set()
    for last in (operator for operator in operators if operator.kind == "BATCH_TO_SPACE_ND"):
        conv = makers.get(last.inputs[0])
        first = makers.get(conv.inputs[0]) if conv is not None and isinstance(conv.options, Conv2D) else None
        if conv is None or first is None or first.kind != "SPACE_TO_BATCH_ND":
            continue
        inner, constants = (
            (*first.outputs, *conv.outputs),
            [tensors[n].data for n in (*first.inputs[1:], *last.inputs[1:])],
        )
        if any(len(readers[name]) > 1 or name in outputs for name in inner) or any(each is None for each in constants):
            continue
        written = widened(first, conv, last, [np.asarray(each) for each in constants], tensors)
        if written is not None:
            changed[last.outputs[0]] = written
            gone |= {*inner}
    kept = (operator for operator in operators if not gone & {*operator.outputs})
    return [each for operator in kept for each in changed.get(operator.outputs[0], [operator])]


def widened(
    first: Operator, conv: Operator, last: Operator, constants: list[np.ndarray], tensors: Tensors
) -> list[Operator] | None:
    """Returns one convolution for the three operators, behind a PAD where TFLite's own padding is another."""
    block, pads, back, crops = constants
    settings, source = conv.options, first.inputs[0]
    assert isinstance(settings, Conv2D)
    edges = pads - crops
    strides = (settings.stride_h, settings.stride_w, settings.dilation_h_factor, settings.dilation_w_factor)
    plain = settings.padding == "VALID" and strides == (1, 1, 1, 1) and tensors[source].dtype == "float32"
    if not plain or block.shape != (2,) or not np.array_equal(block, back) or edges.min() < 0:
        return None
    reach = (np.asarray(tensors[conv.inputs[1]].shape[1:3]) - 1) * block
    wide = replace(settings, dilation_h_factor=int(block[0]), dilation_w_factor=int(block[1]))
    if np.array_equal(edges, np.stack([reach // 2, reach - reach // 2], axis=1)):
        return [
            replace(
                conv, inputs=(source, *conv.inputs[1:]), outputs=last.outputs, options=replace(wide, padding="SAME")
            )
        ]
    padded, shape = f"{last.outputs[0]}/padded", np.add(tensors[source].shape, (0, *edges.sum(axis=1), 0))
    tensors[padded] = Tensor(padded, tuple(int(size) for size in shape))
    around = _constant(tensors, f"{padded}/edges", [[0, 0], *edges.tolist(), [0, 0]])
    pad = Operator("PAD", (source, around), (padded,))
    return [pad, replace(conv, inputs=(padded, *conv.inputs[1:]), outputs=last.outputs, options=wide)]


L2_LEAST = 1e-6
"""The shortest length that LiteRT's L2_NORMALIZATION divides by."""
SPELLINGS: dict[str, Callable[[Names, Names, Any, Tensors], list[Operator] | None]] = {
    "SQUEEZE": axes_of_one,
    "EXPAND_DIMS": axes_of_one,
    "RESHAPE": reshaped,
    "PACK": stacked,
    "UNPACK": unstacked,
    "SPLIT_V": pieces,
    "ADD_N": sum_of_many,
    "SELECT": chosen,
    "NEG": negative,
    "SQUARE": square,
    "L2_NORMALIZATION": unit_length,
}

"""Writes operators of other converters in those that our writer has: axes of one, stacks, pieces of several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anynpu.lowering.graph import Operator, Tensor, int32
from anynpu.lowering.options import Concatenation, Reshape, Split

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


SPELLINGS: dict[str, Callable[[Names, Names, Any, Tensors], list[Operator] | None]] = {
    "SQUEEZE": axes_of_one,
    "EXPAND_DIMS": axes_of_one,
    "RESHAPE": reshaped,
    "PACK": stacked,
    "UNPACK": unstacked,
    "SPLIT_V": pieces,
}

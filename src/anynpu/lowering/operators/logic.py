"""Comparisons, logic, and choices by condition."""

from __future__ import annotations

import numpy as np

from anynpu.lowering.lower import Lowering, plain, unmasked
from anynpu.lowering.operators.arithmetic import common_axes
from anynpu.lowering.options import Add, Cast, Mul
from anynpu.lowering.table import Node, Refused, operator

_KINDS = {
    "Equal": "EQUAL",
    "Less": "LESS",
    "Greater": "GREATER",
    "LessOrEqual": "LESS_EQUAL",
    "GreaterOrEqual": "GREATER_EQUAL",
    "And": "LOGICAL_AND",
    "Or": "LOGICAL_OR",
}


@operator("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or")
def compare(at: Lowering, node: Node) -> None:
    """The TFLite operator of the same name, which gives truth values."""
    shape = at.shape(node.output)
    axes = common_axes(at, node.inputs, len(shape))
    tensors = [at.operand(name, axes) for name in node.inputs]
    stored = tuple(shape[axis] for axis in axes)
    at.give(node.output, at.emit(_KINDS[node.op], tensors, stored, stem=node.output, dtype="bool"), axes)


@operator("Xor")
def exclusive(at: Lowering, node: Node) -> None:
    """One of two truth values, and not both: no microcontroller has NOT_EQUAL of them."""
    shape = at.shape(node.output)
    axes = common_axes(at, node.inputs, len(shape))
    tensors = [at.operand(name, axes) for name in node.inputs]
    stored = tuple(shape[axis] for axis in axes)
    one = at.emit("LOGICAL_OR", tensors, stored, stem=node.output, dtype="bool")
    both = at.emit("LOGICAL_AND", tensors, stored, stem=node.output, dtype="bool")
    other = at.emit("LOGICAL_NOT", (both,), stored, stem=node.output, dtype="bool")
    at.give(node.output, at.emit("LOGICAL_AND", (one, other), stored, stem=node.output, dtype="bool"), axes)


@operator("Not")
def negation(at: Lowering, node: Node) -> None:
    """LOGICAL_NOT."""
    axes = at.axes(node.input(0))
    tensor = at.stored(node.input(0), axes)
    shape = at.tensors[tensor].shape
    at.give(node.output, at.emit("LOGICAL_NOT", (tensor,), shape, stem=node.output, dtype="bool"), axes)


@operator("IsNaN", "IsInf")
def guard(at: Lowering, node: Node) -> None:
    """False: integers hold neither, and a guard against them in floating point guards nothing here."""
    if node.output in at.results:
        raise Refused("integers hold neither infinities nor NaN")
    at.constants[node.output] = np.zeros(at.shape(node.output), bool)


@operator("Where")
def where(at: Lowering, node: Node) -> None:
    """SELECT_V2; MUL and ADD where the condition is constant or numbers are whole; LOGICAL_AND and _OR of truths."""
    condition = at.constant(node.input(0))
    if condition is None:
        _select(at, node)
        return
    chosen, other = node.input(1), node.input(2)
    mask = np.asarray(condition, bool)
    if mask.all() or not mask.any():
        # The one operand that is chosen everywhere
        name = chosen if mask.all() else other
        shape = at.shape(node.output)
        array = at.constant(name)
        if array is not None:
            at.constants[node.output] = np.broadcast_to(array, shape)
        elif at.shape(name) == shape:
            at.views[node.output] = at.views[name]
        else:
            _masked(at, node, name, np.ones(shape, bool), np.zeros(()))
    elif at.constant(other) is not None:
        _masked(at, node, chosen, mask, at.constants[other])
    elif at.constant(chosen) is not None:
        _masked(at, node, other, ~mask, at.constants[chosen])
    else:
        _select(at, node)


def _select(at: Lowering, node: Node) -> None:
    shape = at.shape(node.output)
    axes = plain(len(shape))
    condition, chosen, other = (at.operand(name, axes) for name in node.inputs)
    dtype = at.tensors[chosen].dtype
    if dtype not in ("bool", "int32"):
        at.give(node.output, at.emit("SELECT_V2", (condition, chosen, other), shape, stem=node.output, dtype=dtype))
        return
    # TFLite-Micro chooses between real numbers alone: what is not chosen is made zero, and the rest added.
    size = at.tensors[condition].shape
    sides = [condition, at.emit("LOGICAL_NOT", (condition,), size, stem=f"{node.output}/not", dtype="bool")]
    kinds = ("LOGICAL_AND", "LOGICAL_OR") if dtype == "bool" else ("MUL", "ADD")
    if dtype == "int32":
        sides = [at.emit("CAST", (side,), size, Cast("bool", "int32"), side, dtype="int32") for side in sides]
    options = (None, None) if dtype == "bool" else (Mul(), Add())
    parts = []
    for side, value in zip(sides, (chosen, other), strict=True):
        whole = np.broadcast_shapes(size, at.tensors[value].shape)
        parts.append(at.emit(kinds[0], (side, value), whole, options[0], f"{node.output}/part", dtype=dtype))
    at.give(node.output, at.emit(kinds[1], parts, shape, options[1], node.output, dtype=dtype))


def _masked(at: Lowering, node: Node, name: str, mask: np.ndarray, other: np.ndarray) -> None:
    """Gives a tensor where the mask is set and constants elsewhere."""
    shape = at.shape(node.output)
    axes = common_axes(at, [name], len(shape))
    stored = tuple(shape[axis] for axis in axes)
    rest = np.where(mask, 0.0, unmasked(np.nan_to_num(other.astype(np.float64)))).astype(np.float32)
    tensor = at.operand(name, axes)
    dtype = at.tensors[tensor].dtype
    if dtype != "float32":
        tensor = at.emit("CAST", (tensor,), at.tensors[tensor].shape, Cast(dtype, "float32"), dtype="float32")

    def ordered(array: np.ndarray, stem: str) -> str:
        whole = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
        return at.store(np.transpose(whole, axes), f"{node.output}/{stem}")

    tensor = at.emit("MUL", (tensor, ordered(mask.astype(np.float32), "mask")), stored, Mul(), node.output)
    if np.any(rest):
        tensor = at.emit("ADD", (tensor, ordered(rest, "rest")), stored, Add(), node.output)
    if dtype != "float32":
        tensor = at.emit("CAST", (tensor,), stored, Cast("float32", dtype), node.output, dtype=dtype)
    at.give(node.output, tensor, axes)

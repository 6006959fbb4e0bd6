"""Terms: what a tensor is made of, free of names, order and spelling; equal digests mean equal computations.

The builders here bring what they build into one form: views merge and move behind elementwise operators, transposes
compose, products are flat, biases and units find their place.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]
# A product of shared products could double with every step; beyond this it stays nested.
_MAX_FACTORS = 32


@dataclass(frozen=True, eq=False)
class Term:
    """An operator on terms, an input, or a constant; `shape` is None where it is not static."""

    op: str
    inputs: tuple[Term, ...]
    attributes: tuple[tuple[str, object], ...]
    shape: Shape | None
    dtype: str
    value: np.ndarray | None
    digest: str

    @property
    def settings(self) -> dict[str, object]:
        """The attributes by name."""
        return dict(self.attributes)


def make(op: str, inputs: Iterable[Term], shape: Shape | None, dtype: str, **attributes: object) -> Term:
    """Returns the term of an operator as it stands."""
    parts = tuple(inputs)
    ordered = tuple(sorted(attributes.items()))
    digest = _digest(op, [part.digest for part in parts], ordered, shape, dtype)
    return Term(op, parts, ordered, shape, dtype, None, digest)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def const(array: np.ndarray) -> Term:
    """Returns the term of a constant; negative zero counts as zero."""
    value = np.asarray(array)
    if value.dtype.kind == "f":
        value = value + value.dtype.type(0)
    content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if value.dtype.kind == "O":
        content = _digest(value.tolist())
    digest = _digest("Constant", content, value.shape, value.dtype.name)
    return Term("Constant", (), (), tuple(value.shape), value.dtype.name, value, digest)


def is_uniform(term: Term, number: float) -> bool:
    """Returns whether a term is a constant that holds nothing but `number`."""
    return term.value is not None and term.value.dtype.kind in "fiu" and bool(np.all(term.value == number))


def is_scalar(term: Term) -> bool:
    """Returns whether a term is a constant of one element."""
    return term.value is not None and term.value.size == 1


def trim(term: Term) -> Term:
    """Returns a constant without the leading axes of size 1 that broadcasting adds anyway."""
    if term.value is None:
        return term
    shape = term.value.shape
    while shape and shape[0] == 1:
        shape = shape[1:]
    return const(term.value.reshape(shape))


def reshape(term: Term, shape: Shape | None) -> Term:
    """Returns the same elements in another shape."""
    if shape is None:
        return make("Reshape", [term], None, term.dtype)
    if term.shape == shape:
        return term
    if term.value is not None:
        return const(term.value.reshape(shape))
    if term.op == "Reshape" and term.inputs[0].shape is not None:
        return reshape(term.inputs[0], shape)
    return make("Reshape", [term], shape, term.dtype)


def transpose(term: Term, order: Sequence[int]) -> Term:
    """Returns the term with its axes in another order."""
    places = tuple(order)
    if places == tuple(range(len(places))):
        return term
    if term.value is not None:
        return const(term.value.transpose(places))
    if term.op == "Transpose":
        inner = term.settings["order"]
        assert isinstance(inner, tuple)
        return transpose(term.inputs[0], [inner[place] for place in places])
    shape = None if term.shape is None else tuple(term.shape[place] for place in places)
    return make("Transpose", [term], shape, term.dtype, order=places)


def unary(op: str, term: Term, dtype: str, **attributes: object) -> Term:
    """Returns an elementwise operator, with any view of its input moved behind it."""
    if term.op == "Reshape" and term.shape is not None and term.inputs[0].shape is not None:
        return reshape(unary(op, term.inputs[0], dtype, **attributes), term.shape)
    return make(op, [term], term.shape, dtype, **attributes)


def elementwise(op: str, terms: Sequence[Term], shape: Shape | None, dtype: str, *, commutes: bool = False) -> Term:
    """Returns a broadcasting operator; the operands of one that commutes are sorted."""
    parts = [trim(term) for term in terms]
    # The one view among operands that are otherwise single numbers moves behind the operator.
    larger = [part for part in parts if not is_scalar(part)]
    if len(larger) == 1 and larger[0].op == "Reshape" and larger[0].shape == shape:
        source = larger[0].inputs[0]
        if source.shape is not None:
            inner = [source if part is larger[0] else part for part in parts]
            return reshape(elementwise(op, inner, source.shape, dtype, commutes=commutes), shape)
    if commutes:
        parts.sort(key=lambda part: part.digest)
    return make(op, parts, shape, dtype)


def add(left: Term, right: Term, shape: Shape | None, dtype: str) -> Term:
    """Returns a sum; constants become the bias of a convolution without one."""
    if left.value is not None:
        left, right = right, left
    right = trim(right)
    if right.value is not None:
        if is_uniform(right, 0) and left.shape == shape:
            return left
        biased = _with_bias(left, right, shape)
        if biased is not None:
            return biased
    return elementwise("Add", [left, right], shape, dtype, commutes=True)


def _with_bias(term: Term, bias: Term, shape: Shape | None) -> Term | None:
    assert bias.value is not None
    if not term.shape or term.shape != shape or bias.shape is None:
        return None
    if term.op in ("Conv", "ConvTranspose") and len(term.inputs) == 2:
        channels = term.shape[1]
        if bias.value.size == channels and bias.shape == (channels,) + (1,) * (len(shape) - 2):
            return make(
                term.op, [*term.inputs, const(bias.value.reshape(channels))], shape, term.dtype, **term.settings
            )
    if term.op == "Reshape" and bias.shape == (shape[-1],):
        rows = term.inputs[0]
        if rows.op == "MatMul" and rows.shape is not None and rows.shape[-1] == shape[-1]:
            return reshape(add(rows, bias, rows.shape, rows.dtype), shape)
    return None


def multiply(terms: Iterable[Term], shape: Shape | None, dtype: str) -> Term:
    """Returns a product as one flat operator, without its ones."""
    parts: list[Term] = []
    for term in terms:
        parts += term.inputs if term.op == "Mul" and term.dtype == dtype else [trim(term)]
    if len(parts) > _MAX_FACTORS:
        return elementwise("Mul", list(terms), shape, dtype, commutes=True)
    others = [part for part in parts if not is_uniform(part, 1)]
    if len(others) < len(parts):
        shapes = [part.shape for part in others if part.shape is not None]
        known = others and len(shapes) == len(others)
        if (np.broadcast_shapes(*shapes) if known else None) == shape:
            parts = others
    if len(parts) == 1 and parts[0].shape == shape:
        return parts[0]
    return elementwise("Mul", parts, shape, dtype, commutes=True)


def matmul(left: Term, right: Term, shape: Shape | None, dtype: str) -> Term:
    """Returns a matrix product; rows against one constant matrix are counted through, whatever axes they came in."""
    rank = 0 if left.shape is None else len(left.shape)
    if right.value is not None and right.value.ndim == 2 and rank > 2 and left.shape and shape is not None:
        rows = math.prod(left.shape[:-1])
        flat = reshape(left, (rows, left.shape[-1]))
        return reshape(make("MatMul", [flat, right], (rows, right.value.shape[1]), dtype), shape)
    return make("MatMul", [left, right], shape, dtype)


def slice_of(term: Term, starts: Sequence[int], steps: Sequence[int], shape: Shape) -> Term:
    """Returns a part of a tensor, given where each axis starts and how it steps; slices of slices merge."""
    steps = [1 if size <= 1 else step for step, size in zip(steps, shape, strict=True)]
    if term.shape == shape and all(step == 1 for step in steps):
        return term
    if term.op == "Slice":
        outer, stride = term.settings["starts"], term.settings["steps"]
        assert isinstance(outer, tuple) and isinstance(stride, tuple)
        merged = [a + s * b for a, s, b in zip(outer, stride, starts, strict=True)]
        return slice_of(term.inputs[0], merged, [a * b for a, b in zip(stride, steps, strict=True)], shape)
    columns = _columns(term, starts, steps, shape)
    if columns is not None:
        return columns
    return make("Slice", [term], shape, term.dtype, starts=tuple(starts), steps=tuple(steps))


def _columns(term: Term, starts: Sequence[int], steps: Sequence[int], shape: Shape) -> Term | None:
    """Returns a slice of the columns of a dense layer as the layer with fewer columns: query, key and value split."""
    rows = term.inputs[0] if term.op == "Reshape" else term
    last = None if term.shape is None or rows.shape is None or not shape else term.shape[-1]
    if last is None or rows.shape is None or rows.shape[-1] != last or term.shape is None:
        return None
    if shape[:-1] != term.shape[:-1] or steps[-1] < 1 or any(steps[axis] != 1 for axis in range(len(shape) - 1)):
        return None
    chosen = slice(starts[-1], starts[-1] + (shape[-1] - 1) * steps[-1] + 1, steps[-1])
    narrow = _narrow(rows, chosen, (*rows.shape[:-1], shape[-1]))
    return None if narrow is None else reshape(narrow, shape)


def _narrow(rows: Term, chosen: slice, shape: Shape) -> Term | None:
    if rows.op == "MatMul":
        weight = rows.inputs[1].value
        if weight is None or weight.ndim != 2:
            return None
        return make("MatMul", [rows.inputs[0], const(weight[:, chosen])], shape, rows.dtype)
    biases = [part for part in rows.inputs if part.value is not None and part.value.ndim == 1]
    layers = [part for part in rows.inputs if part.op == "MatMul"]
    if rows.op != "Add" or len(biases) != 1 or len(layers) != 1 or biases[0].value is None:
        return None
    layer = _narrow(layers[0], chosen, shape)
    return None if layer is None else add(layer, const(biases[0].value[chosen]), shape, rows.dtype)

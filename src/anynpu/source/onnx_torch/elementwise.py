"""Arithmetic, comparison and logic, element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from anynpu.source.onnx_torch.late import torch
from anynpu.source.onnx_torch.table import Node, Refused, operator
from anynpu.source.onnx_torch.types import torch_dtype

if TYPE_CHECKING:
    from torch import Tensor


@operator("Add")
def add(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Sum of two tensors with broadcasting."""
    return torch.add(a, b)


@operator("Sub")
def sub(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Difference of two tensors with broadcasting."""
    return torch.sub(a, b)


@operator("Mul")
def mul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Product of two tensors with broadcasting."""
    return torch.mul(a, b)


@operator("Div")
def div(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Quotient of two tensors; integers are divided towards zero."""
    if node.value(0).dtype.is_floating_point:
        return torch.div(a, b)
    return torch.div(a, b, rounding_mode="trunc")


@operator("Mod")
def mod(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Remainder; fmod=1 takes the sign of the dividend, fmod=0 (integers) that of the divisor."""
    return torch.fmod(a, b) if node.get("fmod", 0) else torch.remainder(a, b)


@operator("Pow")
def power(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Power; a constant exponent with one element becomes a number. The result has the type of the base."""
    dtype = node.value(0).dtype
    if not node.is_constant(1) or node.array(1).size != 1 or node.rank(1) > node.rank(0):
        return torch.pow(a, b).to(dtype)
    exponent = node.number(1)
    if float(exponent).is_integer():
        exponent = int(exponent)
    elif not dtype.is_floating_point:
        raise Refused("Pow of an integer tensor with a fractional exponent has no exact equivalent in torch")
    return torch.pow(a, exponent)


@operator("Sum")
def variadic_sum(node: Node, *tensors: Tensor) -> Tensor:
    """Sum of any number of tensors with broadcasting."""
    return _fold(torch.add, tensors)


@operator("Mean")
def variadic_mean(node: Node, *tensors: Tensor) -> Tensor:
    """Mean of any number of tensors with broadcasting."""
    return torch.div(_fold(torch.add, tensors), len(tensors))


@operator("Min")
def minimum(node: Node, *tensors: Tensor) -> Tensor:
    """Smallest of any number of tensors with broadcasting."""
    return _fold(torch.minimum, tensors)


@operator("Max")
def maximum(node: Node, *tensors: Tensor) -> Tensor:
    """Largest of any number of tensors with broadcasting."""
    return _fold(torch.maximum, tensors)


def _fold(combine: Callable[[Tensor, Tensor], Tensor], tensors: tuple[Tensor, ...]) -> Tensor:
    return functools.reduce(combine, tensors)


@operator("Sqrt")
def sqrt(node: Node, x: Tensor) -> Tensor:
    """Square root."""
    return torch.sqrt(x)


@operator("Exp")
def exp(node: Node, x: Tensor) -> Tensor:
    """Exponential."""
    return torch.exp(x)


@operator("Log")
def log(node: Node, x: Tensor) -> Tensor:
    """Natural logarithm."""
    return torch.log(x)


@operator("Neg")
def neg(node: Node, x: Tensor) -> Tensor:
    """Negation."""
    return torch.neg(x)


@operator("Abs")
def absolute(node: Node, x: Tensor) -> Tensor:
    """Absolute value."""
    return torch.abs(x)


@operator("Reciprocal")
def reciprocal(node: Node, x: Tensor) -> Tensor:
    """One divided by the tensor."""
    return torch.reciprocal(x)


@operator("Floor")
def floor(node: Node, x: Tensor) -> Tensor:
    """Largest integer not above each element."""
    return torch.floor(x)


@operator("Ceil")
def ceil(node: Node, x: Tensor) -> Tensor:
    """Smallest integer not below each element."""
    return torch.ceil(x)


@operator("Round")
def rounded(node: Node, x: Tensor) -> Tensor:
    """Nearest integer, halves to the even one."""
    return torch.round(x)


@operator("Sign")
def sign(node: Node, x: Tensor) -> Tensor:
    """Sign of each element: -1, 0 or 1."""
    return torch.sign(x)


@operator("Sin")
def sin(node: Node, x: Tensor) -> Tensor:
    """Sine."""
    return torch.sin(x)


@operator("Cos")
def cos(node: Node, x: Tensor) -> Tensor:
    """Cosine."""
    return torch.cos(x)


@operator("Erf")
def erf(node: Node, x: Tensor) -> Tensor:
    """Error function; the Erf form of GELU is recognised and imported as one GELU."""
    return torch.erf(x)


@operator("Equal")
def equal(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Whether two tensors are equal, with broadcasting."""
    return torch.eq(a, b)


@operator("Greater")
def greater(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Whether the first is greater."""
    return torch.gt(a, b)


@operator("GreaterOrEqual")
def greater_or_equal(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Whether the first is greater or equal."""
    return torch.ge(a, b)


@operator("Less")
def less(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Whether the first is less."""
    return torch.lt(a, b)


@operator("LessOrEqual")
def less_or_equal(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Whether the first is less or equal."""
    return torch.le(a, b)


@operator("And")
def logical_and(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Logical and."""
    return torch.logical_and(a, b)


@operator("Or")
def logical_or(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Logical or."""
    return torch.logical_or(a, b)


@operator("Xor")
def logical_xor(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Logical exclusive or."""
    return torch.logical_xor(a, b)


@operator("Not")
def logical_not(node: Node, x: Tensor) -> Tensor:
    """Logical negation."""
    return torch.logical_not(x)


@operator("Where")
def where(node: Node, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Elements of the first tensor where the condition holds, of the second elsewhere."""
    return torch.where(condition, a, b)


@operator("Cast")
def cast(node: Node, x: Tensor) -> Tensor:
    """Another element type; strings, bfloat16 and 8-bit floats are refused."""
    return x.to(torch_dtype(node.get("to")))


@operator("CastLike")
def cast_like(node: Node, x: Tensor, like: Tensor) -> Tensor:
    """The element type of the second input."""
    return x.to(node.value(1).dtype)

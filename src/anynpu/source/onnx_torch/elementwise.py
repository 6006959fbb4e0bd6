"""Arithmetic, comparison and logic, element by element."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, Refused, operator, same
from anynpu.source.onnx_torch.types import torch_dtype


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


@operator("Cast")
def cast(node: Node, x: Tensor) -> Tensor:
    """Another element type; strings, bfloat16 and 8-bit floats are refused."""
    return x.to(torch_dtype(node.get("to")))


@operator("CastLike")
def cast_like(node: Node, x: Tensor, like: Tensor) -> Tensor:
    """The element type of the second input."""
    return x.to(node.value(1).dtype)


same("Add", torch.add, "Sum of two tensors with broadcasting.")
same("Sub", torch.sub, "Difference of two tensors with broadcasting.")
same("Mul", torch.mul, "Product of two tensors with broadcasting.")
same("Sqrt", torch.sqrt, "Square root.")
same("Exp", torch.exp, "Exponential.")
same("Log", torch.log, "Natural logarithm.")
same("Neg", torch.neg, "Negation.")
same("Abs", torch.abs, "Absolute value.")
same("Reciprocal", torch.reciprocal, "One divided by the tensor.")
same("Floor", torch.floor, "Largest integer not above each element.")
same("Ceil", torch.ceil, "Smallest integer not below each element.")
same("Round", torch.round, "Nearest integer, halves to the even one.")
same("Sign", torch.sign, "Sign of each element: -1, 0 or 1.")
same("Sin", torch.sin, "Sine.")
same("Cos", torch.cos, "Cosine.")
same("Erf", torch.erf, "Error function; the Erf form of GELU is recognised and imported as one GELU.")
same("Equal", torch.eq, "Whether two tensors are equal, with broadcasting.")
same("Greater", torch.gt, "Whether the first is greater.")
same("GreaterOrEqual", torch.ge, "Whether the first is greater or equal.")
same("Less", torch.lt, "Whether the first is less.")
same("LessOrEqual", torch.le, "Whether the first is less or equal.")
same("And", torch.logical_and, "Logical and.")
same("Or", torch.logical_or, "Logical or.")
same("Xor", torch.logical_xor, "Logical exclusive or.")
same("Not", torch.logical_not, "Logical negation.")
same("Where", torch.where, "Elements of the first tensor where the condition holds, of the second elsewhere.")

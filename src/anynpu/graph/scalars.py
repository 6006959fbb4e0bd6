"""Functions of one number: ONNX nodes that compute element by element from one tensor and stored numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from anynpu.tensors import Array

if TYPE_CHECKING:
    import onnx

Number = Callable[..., Array]
_ERF = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Array) -> Array:
    """Returns 1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def erf(x: Array) -> Array:
    """Returns the error function."""
    return np.asarray(_ERF(x))


def gelu(x: Array) -> Array:
    """Returns x times the share of a normal distribution below x."""
    return np.asarray(0.5 * x * (1 + erf(x / math.sqrt(2))))


def gelu_tanh(x: Array) -> Array:
    """Returns the approximation of GELU that is written with tanh."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


Attributes = Mapping[str, Any]


def _clip(attributes: Attributes, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    minimum = low if low is not None else attributes.get("min", -np.inf)
    maximum = high if high is not None else attributes.get("max", np.inf)
    return np.asarray(np.minimum(np.maximum(x, minimum), maximum))


def _plain(function: Number) -> Number:
    return lambda _, *operands: function(*operands)


_FUNCTIONS: dict[str, Number] = {
    "Add": _plain(np.add),
    "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply),
    "Div": _plain(np.divide),
    "Pow": _plain(np.power),
    "Max": _plain(lambda *operands: functools.reduce(np.maximum, operands)),
    "Min": _plain(lambda *operands: functools.reduce(np.minimum, operands)),
    "Erf": _plain(erf),
    "Tanh": _plain(np.tanh),
    "Sigmoid": _plain(sigmoid),
    "Exp": _plain(np.exp),
    "Log": _plain(np.log),
    "Neg": _plain(np.negative),
    "Sqrt": _plain(np.sqrt),
    "Abs": _plain(np.abs),
    "Relu": _plain(lambda x: np.maximum(x, 0.0)),
    "Reciprocal": _plain(lambda x: 1.0 / x),
    "Softplus": _plain(lambda x: np.logaddexp(x, 0.0)),
    "Identity": _plain(lambda x: x),
    "Clip": _clip,
    "Gelu": lambda attributes, x: gelu_tanh(x) if attributes.get("approximate") == b"tanh" else gelu(x),
    "HardSigmoid": lambda attributes, x: np.clip(
        attributes.get("alpha", 0.2) * x + attributes.get("beta", 0.5), 0.0, 1.0
    ),
    "LeakyRelu": lambda attributes, x: np.where(x > 0, x, attributes.get("alpha", 0.01) * x),
    "HardSwish": _plain(lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0)),
}


def reads_numbers(proto: onnx.NodeProto) -> bool:
    """Tells whether a node computes element by element by a function that is known here."""
    return proto.op_type in _FUNCTIONS and proto.domain in ("", "ai.onnx") and len(proto.output) == 1


def value_of(proto: onnx.NodeProto, values: Mapping[str, Array], dtype: type[np.floating[Any]] = np.float64) -> Array:
    """Returns what a node gives for the values of its operands, as numbers of a type."""
    from onnx.helper import get_attribute_value

    operands = [values[name] if name else None for name in proto.input]
    attributes = {item.name: get_attribute_value(item) for item in proto.attribute}
    with np.errstate(all="ignore"):
        return np.asarray(_FUNCTIONS[proto.op_type](attributes, *operands), dtype)

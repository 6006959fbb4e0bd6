"""What operators compute element by element, and runs of them that `tables.py` writes as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from anynpu.graph.scalars import gelu, gelu_tanh, sigmoid
from anynpu.lowering.graph import Operator
from anynpu.lowering.options import Gelu, LeakyRelu, Options
from anynpu.tensors import Array

Kernel = Callable[..., Array]


def _gelu(operator: Operator, x: Array) -> Array:
    if isinstance(operator.options, Gelu) and operator.options.approximate:
        return gelu_tanh(x)
    return gelu(x)


def _leaky(operator: Operator, x: Array) -> Array:
    alpha = operator.options.alpha if isinstance(operator.options, LeakyRelu) else 0.0
    return np.where(x > 0, x, alpha * x)


def _plain(function: Kernel) -> Kernel:
    return lambda _, *operands: function(*operands)


KERNELS: dict[str, Kernel] = {
    "ADD": _plain(np.add),
    "SUB": _plain(np.subtract),
    "MUL": _plain(np.multiply),
    "DIV": _plain(np.divide),
    "POW": _plain(np.power),
    "MAXIMUM": _plain(np.maximum),
    "MINIMUM": _plain(np.minimum),
    "RELU": _plain(lambda x: np.maximum(x, 0.0)),
    "RELU6": _plain(lambda x: np.clip(x, 0.0, 6.0)),
    "LEAKY_RELU": _leaky,
    "LOGISTIC": _plain(sigmoid),
    "TANH": _plain(np.tanh),
    "HARD_SWISH": _plain(lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0)),
    "GELU": _gelu,
    "EXP": _plain(np.exp),
    "LOG": _plain(lambda x: np.log(np.maximum(x, 1e-12))),
    "SQRT": _plain(lambda x: np.sqrt(np.maximum(x, 0.0))),
    "RSQRT": _plain(lambda x: 1 / np.sqrt(np.maximum(x, 1e-24))),
    "ABS": _plain(np.abs),
    "SIN": _plain(np.sin),
    "COS": _plain(np.cos),
    "FLOOR": _plain(np.floor),
    "CEIL": _plain(np.ceil),
    "ROUND": _plain(np.rint),
    "SIGN": _plain(np.sign),
    "FLOOR_MOD": _plain(np.mod),
    "ATAN2": _plain(np.arctan2),
}
_FUSED: dict[str, Callable[[Array], Array]] = {
    "NONE": lambda x: x,
    "RELU": lambda x: np.maximum(x, 0.0),
    "RELU6": lambda x: np.clip(x, 0.0, 6.0),
    "RELU_N1_TO_1": lambda x: np.clip(x, -1.0, 1.0),
}
# LiteRT has no 8-bit kernel for the first; TFLite-Micro has none for the others either.
ALWAYS = frozenset(("SIN", "COS", "FLOOR", "CEIL", "ROUND", "SIGN", "POW", "FLOOR_MOD", "ATAN2"))
ON_MICRO = ALWAYS | {"EXP", "LOG", "SQRT", "GELU", "DIV"}


def kernel_of(operator: Operator) -> Kernel | None:
    """Returns what an operator computes element by element from its inputs, None where it does something else."""
    kernel, fused = KERNELS.get(operator.kind), _FUSED.get(operator.activation)
    if kernel is None or fused is None:
        return None
    return lambda *operands: fused(kernel(operator, *operands))


@dataclass(frozen=True)
class Function(Options):
    """What a FUNCTION computes: operators in their order, the numbers they read, and the tensor they start from."""

    operators: tuple[Operator, ...]
    numbers: Mapping[str, float]
    source: str

    def __call__(self, x: Array) -> Array:
        """Returns the function's values."""
        values: dict[str, Array] = {name: np.asarray(number) for name, number in self.numbers.items()}
        values[self.source] = np.asarray(x, np.float64)
        result = values[self.source]
        with np.errstate(all="ignore"):
            for operator in self.operators:
                kernel = kernel_of(operator)
                assert kernel is not None
                result = values[operator.outputs[0]] = kernel(*(values[name] for name in operator.inputs))
        return np.asarray(np.nan_to_num(result, nan=0.0, posinf=1e30, neginf=-1e30))

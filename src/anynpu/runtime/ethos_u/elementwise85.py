"""What the element-wise operations of the U85 make of two operands."""

from __future__ import annotations

import numpy as np

from anynpu.errors import IntegrityError
from anynpu.runtime.ethos_u.arithmetic import Rounding, shift
from anynpu.runtime.ethos_u.stream import Operation
from anynpu.tensors import Array

EQUAL, NOT_EQUAL, GREATER_EQUAL, GREATER, AND, OR, XOR, NOT, AND_NOT = 16, 17, 18, 19, 33, 34, 35, 36, 42
COMPARISONS = (EQUAL, NOT_EQUAL, GREATER_EQUAL, GREATER)
"""True is all ones: Vela takes it for a mask, and a smallest value for "all"."""


def combined(op: Operation, first: Array, second: Array, rounding: Rounding) -> Array:
    """Returns what an operation makes of two scaled operands."""
    match op.mode:
        case 0:
            return first * second
        case 1:
            return first + second
        case 2:
            return first - second
        case 3:
            return np.minimum(first, second)
        case 4:
            return np.maximum(first, second)
        case 8:
            return shift(first, np.clip(second, 0, 62), rounding)
        case 9:
            return np.asarray((first << np.clip(second, 0, 62)).astype(np.int32), np.int64)
        case 10:
            return np.asarray((first & 0xFFFFFFFF) >> np.clip(second, 0, 62), np.int64)
        case 11:
            safe = np.where(second == 0, 1, second)
            return np.where(second == 0, 0, np.sign(first) * np.sign(safe) * (np.abs(first) // np.abs(safe)))
    functions = {
        EQUAL: np.equal,
        NOT_EQUAL: np.not_equal,
        GREATER_EQUAL: np.greater_equal,
        GREATER: np.greater,
        AND: np.bitwise_and,
        OR: np.bitwise_or,
        XOR: np.bitwise_xor,
    }
    if op.mode == AND_NOT:
        return first & ~second
    if op.mode not in functions:
        raise IntegrityError(f"{op.title}: the U85 has no element-wise operation {op.mode}")
    result = np.asarray(functions[op.mode](first, second), np.int64)
    return -result if op.mode in COMPARISONS else result

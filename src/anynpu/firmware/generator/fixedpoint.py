"""Integer arithmetic exactly as TensorFlow Lite Micro rounds it: everything here is a Python int, bit for bit."""

from __future__ import annotations

import math

import numpy as np

from anynpu.firmware.generator.layer import require

INT32_MAX = (1 << 31) - 1
INT32_MIN = -(1 << 31)
RANGES = {"int8": (-128, 127), "int16": (-32768, 32767), "uint8": (0, 255), "int32": (INT32_MIN, INT32_MAX)}
RELU, RELU_N1_TO_1, RELU6 = 1, 2, 3


def round_away(value: float) -> int:
    """Returns the nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value)) if abs(value) < 2**52 else int(value)


def quantize_multiplier(factor: float) -> tuple[int, int]:
    """Returns (multiplier, shift) with factor = multiplier * 2^(shift - 31); what is too small becomes zero."""
    if factor == 0.0:
        return 0, 0
    fraction, shift = math.frexp(factor)
    fixed = round_away(fraction * (1 << 31))
    if fixed == 1 << 31:
        fixed //= 2
        shift += 1
    # What TFLite-Micro makes of a longer shift depends on the processor.
    require(shift <= 31, "has scales that are too far apart")
    return (0, 0) if shift < -31 else (fixed, shift)


def wrap(value: int) -> int:
    """Returns a value as 32-bit arithmetic keeps it."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def high_product(a: int, b: int) -> int:
    """Returns the product of two Q0.31 numbers, rounded and saturated."""
    return INT32_MAX if a == b == INT32_MIN else (a * b + (1 << 30)) >> 31


def divide_power(value: int, exponent: int) -> int:
    """Returns value / 2^exponent, halves away from zero."""
    mask = (1 << exponent) - 1
    return (value >> exponent) + ((value & mask) > (mask >> 1) + (value < 0))


def shift_left(value: int, bits: int) -> int:
    """Returns value * 2^bits, saturated."""
    return max(INT32_MIN, min(INT32_MAX, value << bits))


def multiply(value: int, multiplier: int, shift: int) -> int:
    """Returns value * multiplier * 2^(shift - 31), rounded twice."""
    return divide_power(high_product(wrap(value << max(shift, 0)), multiplier), max(-shift, 0))


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def activation_range(dtype: str, activation: int, scale: float, zero_point: int) -> tuple[int, int]:
    """Returns the stored values between which a fused activation keeps the output."""
    low, high = RANGES[dtype]

    def stored(real: float) -> int:
        return zero_point + round_away(float(np.float32(real) / np.float32(scale)))

    if activation in (RELU, RELU6):
        low = max(low, stored(0.0))
    elif activation == RELU_N1_TO_1:
        low, high = max(low, stored(-1.0)), min(high, stored(1.0))
    if activation == RELU6:
        high = min(high, stored(6.0))
    return low, high


def exp_negative(value: int, integer_bits: int) -> int:
    """Returns exp of a number up to zero in Q(integer_bits), as Q0.31."""
    if value == 0:
        return INT32_MAX
    fraction_bits = 31 - integer_bits
    quarter = 1 << (fraction_bits - 2)
    below = (value & (quarter - 1)) - quarter
    # Exp of a Q0.31 number from -1/4 to 0, by its series around -1/8.
    x = shift_left(below, integer_bits) + (1 << 28)
    x2 = high_product(x, x)
    x3 = high_product(x2, x)
    x4 = high_product(x2, x2)
    tail = divide_power(high_product(divide_power(x4, 2) + x3, 715827883) + x2, 1)
    result = 1895147668 + high_product(1895147668, x + tail)
    remainder = below - value
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for exponent, factor in enumerate(factors, start=-2):
        if integer_bits > exponent and remainder & (1 << (fraction_bits + exponent)):
            result = high_product(result, factor)
    return result


def reciprocal(value: int) -> int:
    """Returns 1 / (1 + value) for a Q0.31 number, by three steps of Newton's method."""
    return shift_left(_newton(value), 1)


def _newton(value: int) -> int:
    half = (value + INT32_MAX + 1) // 2
    estimate = 1515870810 + high_product(half, -1010580540)
    for _ in range(3):
        rest = (1 << 29) - high_product(half, estimate)
        estimate += shift_left(high_product(estimate, rest), 2)
    return estimate


def logistic(value: int, integer_bits: int) -> int:
    """Returns the logistic function of a Q(integer_bits) number, as Q0.31."""
    if value == 0:
        return 1 << 30
    positive = reciprocal(exp_negative(-abs(value), integer_bits))
    return positive if value > 0 else INT32_MAX - positive


def tanh(value: int, integer_bits: int) -> int:
    """Returns the hyperbolic tangent of a Q(integer_bits) number, as Q0.31."""
    if value == 0:
        return 0
    # The doubled argument has one integer bit more and the same raw value.
    x = exp_negative(-abs(value), integer_bits + 1)
    magnitude = shift_left(_newton(x) - (1 << 29), 2)
    return magnitude if value > 0 else -magnitude


def inverse_root(value: int) -> tuple[int, int]:
    """Returns (multiplier, shift) of 1 / sqrt(value), by five steps of Newton's method with three integer bits."""
    if value <= 1:
        return INT32_MAX, 0
    shift = 11
    while value >= 1 << 29:
        value //= 4
        shift += 1
    pairs = (32 - value.bit_length() - 1) // 2 - 1
    shift -= pairs
    x, halved = 1 << 28, divide_power((value << (2 * pairs)) >> 1, 1)
    for _ in range(5):
        cube = shift_left(high_product(high_product(x, x), x), 6)
        x = shift_left(high_product((1 << 28) + (1 << 27), x) - high_product(halved, cube), 3)
    root = high_product(x, 1518500250)
    # The interpreter multiplies by 2^-shift.
    return (wrap(root << -shift), 0) if shift < 0 else (root, -shift)

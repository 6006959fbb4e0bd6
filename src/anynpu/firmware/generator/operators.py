"""Which emitter makes which operator."""

from __future__ import annotations

from anynpu.firmware.generator import binary, convolution, movement, pooling, reduction, softmax
from anynpu.firmware.generator.layer import Emitter

EMITTERS: dict[str, Emitter] = {
    "ADD": binary.add,
    "AVERAGE_POOL_2D": pooling.average_pool_2d,
    "CONV_2D": convolution.conv_2d,
    "DEPTHWISE_CONV_2D": convolution.depthwise_conv_2d,
    "EXPAND_DIMS": movement.alias,
    "FULLY_CONNECTED": convolution.fully_connected,
    "MAXIMUM": binary.maximum,
    "MAX_POOL_2D": pooling.max_pool_2d,
    "MEAN": reduction.mean,
    "MINIMUM": binary.minimum,
    "MUL": binary.mul,
    "REDUCE_MAX": reduction.reduce_max,
    "REDUCE_MIN": reduction.reduce_min,
    "RESHAPE": movement.alias,
    "SOFTMAX": softmax.softmax,
    "SQUARED_DIFFERENCE": binary.squared_difference,
    "SQUEEZE": movement.alias,
    "STRIDED_SLICE": movement.strided_slice,
    "SUB": binary.sub,
    "SUM": reduction.sum_,
}

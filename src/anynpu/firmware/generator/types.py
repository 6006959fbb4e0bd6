"""TFLite types as C types."""

from __future__ import annotations

from anynpu.firmware.generator.graph import zero_of
from anynpu.targets.flatbuffer import TfliteTensor

C_TYPES = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float32": "float",
    "bool": "uint8_t",
}
SUFFIX = {"int8": "s8", "int16": "s16"}
BYTES = {"int8": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8, "float32": 4, "bool": 1}


def same_quantization(a: TfliteTensor, b: TfliteTensor) -> bool:
    """Whether stored values of both tensors mean the same real numbers, to the tolerance of TensorFlow Lite Micro."""
    if not a.scale or not b.scale:
        return not a.scale and not b.scale
    return abs(a.scale[0] - b.scale[0]) <= 1e-6 and zero_of(a) == zero_of(b)

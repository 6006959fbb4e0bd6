"""ONNX element types and their torch counterparts."""

from __future__ import annotations

import torch
from onnx import TensorProto

from anynpu.source.onnx_torch.table import Refused

DTYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.INT8: torch.int8,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.UINT8: torch.uint8,
    TensorProto.BOOL: torch.bool,
}


def torch_dtype(element_type: int) -> torch.dtype:
    """Returns the torch type of an ONNX element type."""
    if element_type not in DTYPES:
        raise Refused(f"element type {TensorProto.DataType.Name(element_type)} is not supported")
    return DTYPES[element_type]

"""ONNX element types and their torch counterparts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto

from anynpu.source.onnx_torch.table import Refused

if TYPE_CHECKING:
    import torch

NAMES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.INT8: "int8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8",
    TensorProto.BOOL: "bool",
}


def torch_dtype(element_type: int) -> torch.dtype:
    """Returns the torch type of an ONNX element type."""
    import torch

    if element_type not in NAMES:
        name = TensorProto.DataType.Name(element_type)
        raise Refused(f"element type {name} is not supported")
    dtype: torch.dtype = getattr(torch, NAMES[element_type])
    return dtype

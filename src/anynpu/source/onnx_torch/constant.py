"""Constants and shapes as values: all of them are folded while the model is imported."""

from __future__ import annotations

import math

import numpy as np
from onnx import numpy_helper
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, Refused, operator
from anynpu.source.onnx_torch.types import torch_dtype
from anynpu.source.torch_arrays import to_tensor


@operator("Constant")
def constant(node: Node) -> Tensor:
    """A stored tensor or number; strings and sparse tensors are refused."""
    if "value" in node.attributes:
        return tensor(numpy_helper.to_array(node.get("value")))
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        for attribute in (name, f"{name}s"):
            if attribute in node.attributes:
                return tensor(np.asarray(node.get(attribute), dtype))
    raise Refused("Constant of strings or sparse values is not supported")


@operator("ConstantOfShape")
def constant_of_shape(node: Node, shape: Tensor) -> Tensor:
    """One value repeated to a constant shape."""
    value = numpy_helper.to_array(node.get("value")) if "value" in node.attributes else np.zeros(1, np.float32)
    return tensor(np.full(node.ints(0), value.reshape(-1)[0]))


@operator("Shape")
def shape_of(node: Node, x: Tensor) -> Tensor:
    """The shape, known while importing."""
    return tensor(np.asarray(node.shape()[node.get("start", 0) : node.get("end", None)], np.int64))


@operator("Size")
def size_of(node: Node, x: Tensor) -> Tensor:
    """The number of elements, known while importing."""
    return tensor(np.asarray(math.prod(node.shape()), np.int64))


@operator("Range")
def range_of(node: Node, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """Numbers from a constant start to a constant limit by a constant step."""
    first, last, step = (node.number(at) for at in range(3))
    return tensor(np.arange(first, last, step).astype(node.array(0).dtype))


@operator("EyeLike")
def eye_like(node: Node, x: Tensor) -> Tensor:
    """A matrix with ones on one diagonal and the shape of the input."""
    rows, columns = node.shape()
    dtype = torch_dtype(node.get("dtype")) if "dtype" in node.attributes else node.value(0).dtype
    return tensor(np.eye(rows, columns, int(node.get("k", 0)))).to(dtype)


def tensor(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
    """Returns a torch tensor with its own copy of the contents."""
    try:
        return to_tensor(np.array(array))
    except TypeError as error:
        raise Refused(f"element type {array.dtype} is not supported") from error

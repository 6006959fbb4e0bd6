"""Arrays as tensors and back, also where torch was built for another numpy than the one that is installed."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from anynpu.tensors import Array

if TYPE_CHECKING:
    from torch import Tensor


def to_tensor(array: Array) -> Tensor:
    """Returns a tensor with the values of an array, in its memory where possible; TypeError for a type torch lacks."""
    import torch

    own = np.ascontiguousarray(array).reshape(np.shape(array))  # numbers without axes stay so
    try:
        return torch.from_numpy(own)
    except RuntimeError:  # "Numpy is not available": torch 2.2 and older beside numpy 2
        dtype = getattr(torch, own.dtype.name, None)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"torch has no type {own.dtype.name}") from None
        tensor = torch.empty(own.shape, dtype=dtype)
        ctypes.memmove(tensor.data_ptr(), own.ctypes.data, own.nbytes)
        return tensor


def to_array(tensor: Tensor) -> Array:
    """Returns an array that holds a copy of a tensor on any device."""
    values = tensor.detach().cpu().contiguous()
    try:
        return np.array(values.numpy())
    except RuntimeError:  # as above
        array = np.empty(tuple(values.shape), np.dtype(str(values.dtype).removeprefix("torch.")))
        ctypes.memmove(array.ctypes.data, values.data_ptr(), array.nbytes)
        return array

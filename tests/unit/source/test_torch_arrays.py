"""Arrays become tensors and tensors arrays, with and without the bridge between torch and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anynpu.source.torch_arrays import to_array, to_tensor

TYPES = ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64")
SHAPES = ((), (0, 3), (5,), (2, 3, 4))


@pytest.fixture(params=["as installed", "without the bridge"])
def bridge(request, monkeypatch):
    """Torch as it is, and as torch 2.1.2 answers where numpy 2 is installed."""
    if request.param == "without the bridge":

        def refuse(*arguments, **options):
            raise RuntimeError("Numpy is not available")

        monkeypatch.setattr(torch, "from_numpy", refuse)
        monkeypatch.setattr(torch.Tensor, "numpy", refuse)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_shape_and_type_are_kept_both_ways(bridge, name, shape):
    array = np.random.default_rng(0).integers(0, 9, shape).astype(name)
    tensor = to_tensor(array)
    assert (tuple(tensor.shape), tensor.dtype, tensor.tolist()) == (shape, getattr(torch, name), array.tolist())
    back = to_array(tensor)
    assert (back.shape, back.dtype, back.tolist()) == (shape, array.dtype, array.tolist())


def test_what_lies_otherwise_in_memory_is_read_in_its_order(bridge):
    array = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    tensor = to_tensor(array)
    assert tensor.tolist() == array.tolist()
    assert to_array(tensor.permute(1, 2, 0)).tolist() == array.transpose(1, 2, 0).tolist()


def test_an_array_stays_as_it_is_when_the_tensor_it_came_from_changes(bridge):
    tensor = torch.zeros(3, requires_grad=True)
    array = to_array(tensor)
    with torch.no_grad():
        tensor += 1
    assert array.tolist() == [0, 0, 0]


@pytest.mark.parametrize("values", [np.array(["a"]), np.array([1], np.longdouble)], ids=["text", "long double"])
def test_a_type_that_torch_lacks_is_a_type_error(bridge, values):
    with pytest.raises(TypeError):
        to_tensor(values)

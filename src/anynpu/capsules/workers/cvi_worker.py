"""Runs .cvimodel and .bmodel files on the simulators inside TPU-MLIR's package; Python 3.10 runs this file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

Arrays = dict[str, "np.ndarray[Any, Any]"]


class Tensor(TypedDict):
    """A tensor as the runtime has it."""

    name: str
    dtype: str
    shape: list[int]
    scale: float
    zero_point: int


@dataclass
class Opened:
    """The model that is open; `steps` says that it takes the shapes of its inputs with every run."""

    model: Any = None
    net: Any = None
    steps: bool = False


_opened = Opened()


def open_model(path: str) -> dict[str, list[Tensor]]:
    """Loads a model and returns its tensors: name, type, shape, scale and zero point as the runtime counts them."""
    package = importlib.util.find_spec("tpu_mlir")
    if package is None or package.origin is None:
        raise ImportError("there is no package tpu_mlir")
    sys.path.insert(0, str(Path(package.origin).parent / "python"))
    if path.endswith(".cvimodel"):
        runtime = importlib.import_module("pyruntime_cvi")
        model = net = runtime.Model(path, output_all_tensors=False)
    else:
        runtime = importlib.import_module("pyruntime_bm")
        model = runtime.Model(path, 0, "")
        net = model.Net(model.networks[0])
    _opened.model, _opened.net, _opened.steps = model, net, path.endswith(".bmodel")
    return {"inputs": [_described(t) for t in net.inputs], "outputs": [_described(t) for t in net.outputs]}


def _described(tensor: Any) -> Tensor:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.data.shape),
        "scale": float(tensor.qscale),
        "zero_point": int(tensor.qzero_point),
    }


def run(arrays: Arrays) -> tuple[None, Arrays]:
    """Runs the model once on stored values and returns stored values."""
    net = _opened.net
    for tensor in net.inputs:
        tensor.data[...] = arrays[tensor.name].reshape(tensor.data.shape)
    if _opened.steps:
        net.forward_dynamic([list(tensor.data.shape) for tensor in net.inputs])
    else:
        net.forward()
    return None, {tensor.name: np.array(tensor.data) for tensor in net.outputs}

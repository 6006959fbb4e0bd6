"""Runs .cvimodel and .bmodel files on the simulators inside TPU-MLIR's package; Python 3.10 runs this file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

_held: dict[str, Any] = {}


def open_model(path: str) -> dict[str, Any]:
    """Loads a model and returns its tensors: name, type, shape, scale and zero point as the runtime counts them."""
    found = importlib.util.find_spec("tpu_mlir")
    if found is None or found.origin is None:
        raise ImportError("there is no package tpu_mlir")
    sys.path.insert(0, str(Path(found.origin).parent / "python"))
    if path.endswith(".cvimodel"):
        runtime = importlib.import_module("pyruntime_cvi")
        model = net = runtime.Model(path, output_all_tensors=False)
    else:
        runtime = importlib.import_module("pyruntime_bm")
        model = runtime.Model(path, 0, "")
        net = model.Net(model.networks[0])
    _held.update(model=model, net=net, steps=path.endswith(".bmodel"))
    return {"inputs": [_told(t) for t in net.inputs], "outputs": [_told(t) for t in net.outputs]}


def _told(tensor: Any) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.data.shape),
        "scale": float(tensor.qscale),
        "zero_point": int(tensor.qzero_point),
    }


def run(arrays: dict[str, Any]) -> tuple[None, dict[str, Any]]:
    """Runs the model once on stored values and returns stored values."""
    net = _held["net"]
    for tensor in net.inputs:
        tensor.data[...] = arrays[tensor.name].reshape(tensor.data.shape)
    if _held["steps"]:
        net.forward_dynamic([list(tensor.data.shape) for tensor in net.inputs])
    else:
        net.forward()
    return None, {tensor.name: np.array(tensor.data) for tensor in net.outputs}

"""Runs a model in onnxruntime on seeded random inputs, for checks of the graph itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto

from anynpu.errors import IntegrityError, Unsupported, first_line
from anynpu.foreign import ONNX_RUNTIME
from anynpu.graph.shapes import dtype_of, inputs_of, shape_of
from anynpu.runtime.ort import open_session
from anynpu.tensors import DTYPES


class Session:
    """One onnxruntime session on the CPU, without onnxruntime's own rewriting of the graph."""

    def __init__(self, model: ModelProto) -> None:
        # The graph itself is under test: ORT's fusions would hide what a rewrite did.
        self._session = open_session(model.SerializeToString(), threads=1, plain=True, quiet=True)

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the outputs for one set of inputs."""
        try:
            return [np.asarray(value) for value in self._session.run(None, dict(feeds))]
        except ONNX_RUNTIME as error:
            raise IntegrityError(f"the model does not run in onnxruntime: {first_line(error)}") from error


def random_feeds(model: ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Returns one seeded random array for each input; dynamic dimensions are 1."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in inputs_of(model):
        shape = tuple(dim if isinstance(dim, int) else 1 for dim in shape_of(value))
        dtype = dtype_of(value)
        if dtype.startswith("float"):
            feeds[value.name] = rng.standard_normal(shape).astype(dtype)
        elif dtype in ("int32", "int64", "bool"):
            # Integers are mostly indices (token ids, positions): 0 and 1 are valid in any table worth having.
            feeds[value.name] = rng.integers(0, 2, shape).astype(dtype)
        elif dtype in DTYPES:
            limits = np.iinfo(dtype)
            feeds[value.name] = rng.integers(limits.min, int(limits.max) + 1, shape, dtype=np.dtype(dtype).type)
        else:
            raise Unsupported(f"input '{value.name}' has type {dtype}, which no random input can be made of")
    return feeds

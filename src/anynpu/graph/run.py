"""Runs a model in onnxruntime on seeded random inputs, for checks of the graph itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto

from anynpu.errors import IntegrityError, Unsupported, first_line
from anynpu.graph.shapes import dtype_of, inputs_of, shape_of


class Session:
    """One onnxruntime session on the CPU, without onnxruntime's own rewriting of the graph."""

    def __init__(self, model: ModelProto) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        # The graph itself is under test: ORT's fusions would hide what a rewrite did.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            data = model.SerializeToString()
            self._session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has its own exception types, none public
            raise IntegrityError(f"onnxruntime does not accept the model: {first_line(error)}") from error

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the outputs for one set of inputs."""
        try:
            return [np.asarray(value) for value in self._session.run(None, dict(feeds))]
        except Exception as error:
            raise IntegrityError(f"the model does not run in onnxruntime: {first_line(error)}") from error


def random_feeds(model: ModelProto, seed: int) -> dict[str, np.ndarray]:
    """Returns one seeded random array for each input; dynamic dimensions are 1."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in inputs_of(model):
        shape = tuple(dim if isinstance(dim, int) else 1 for dim in shape_of(value))
        feeds[value.name] = _random(rng, value.name, dtype_of(value), shape)
    return feeds


def _random(rng: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    if dtype in ("int32", "int64"):
        # These are mostly indices (token ids, positions): 0 and 1 are valid in any table worth having.
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, int(limits.max) + 1, shape, dtype=np.dtype(dtype).type)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    raise Unsupported(f"input '{name}' has type {dtype}, which no random input can be made of")

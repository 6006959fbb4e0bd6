"""Two ONNX models executed side by side: on how many samples, on which, and in what they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto

from anynpu.errors import Unsupported
from anynpu.graph.agreement import Feeds, difference
from anynpu.graph.cost import cost
from anynpu.graph.run import Session, random_feeds
from anynpu.graph.shapes import shape_of
from anynpu.tensors import Array

MAX_SAMPLES = 256
MIN_SAMPLES = 8
# What a proof may cost: about half a second of a core for the arithmetic, as much for the calls, and this much memory.
MAX_MACS, MAX_CALLS, MAX_BYTES = 5_000_000_000, 20_000, 256 << 20
_SCALES = (1.0, 1.0, 0.01, 10.0, 0.1)


def proof_count(model: ModelProto, available: int, effort: int = 1) -> int:
    """Returns how many of the samples a proof runs: all up to 256, fewer where the model is large."""
    try:
        counted = cost(model)
        macs, calls = counted.macs, len(counted.nodes)
    except Unsupported:  # shapes that depend on values cannot be counted
        macs, calls = 0, len(model.graph.node)
    sizes = [[dim for dim in shape_of(value) if isinstance(dim, int)] for value in model.graph.output]
    nbytes = 8 * 2 * sum(int(np.prod(dims, dtype=np.int64)) for dims in sizes)
    affordable = min(MAX_MACS // max(macs, 1), MAX_CALLS // max(calls, 1), MAX_BYTES // max(nbytes, 1))
    return int(min(available, MAX_SAMPLES, max(MIN_SAMPLES, effort * affordable)))


def random_probes(model: ModelProto) -> list[dict[str, Array]]:
    """Returns inputs that try a model without samples: normal numbers of many scales, zeros, numbers from 0 to 1."""
    probes: list[dict[str, Array]] = []
    for seed, scale in enumerate(_SCALES):
        feeds = random_feeds(model, seed)
        probes.append({name: _scaled(array, scale) for name, array in feeds.items()})
    moved = random_feeds(model, len(_SCALES))
    probes += [
        {name: _scaled(array, 0.0) for name, array in moved.items()},
        {name: np.abs(np.tanh(array)) if array.dtype.kind == "f" else array for name, array in moved.items()},
        {name: -np.abs(array) if array.dtype.kind == "f" else array for name, array in moved.items()},
    ]
    return probes


def _scaled(array: Array, scale: float) -> Array:
    return (array * scale).astype(array.dtype) if array.dtype.kind == "f" else array


def executed(feeds: Sequence[Feeds]) -> Callable[[ModelProto, ModelProto], str]:
    """Returns a function that executes two ONNX models on `feeds` and says in which output they differ, or nothing."""

    def compare(original: ModelProto, changed: ModelProto) -> str:
        names = [value.name for value in original.graph.output]
        return difference(names, Session(original).run, lambda: Session(changed).run, feeds)

    return compare

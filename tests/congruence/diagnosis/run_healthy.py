"""Counts the diagnoses that healthy nets get: random nets of ten families, quantised as a default build does it.

PYTHONPATH=tests/kit python tests/congruence/diagnosis/run_healthy.py --count 50
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from families import FAMILIES, random_net
from sick import Samples, diagnosed, ours


def nets(first: int, count: int, files: list[Path]) -> Iterator[tuple[str, onnx.ModelProto, Samples]]:
    """Yields random nets by seed, and the models of files."""
    for seed in range(first, first + count):
        net, data = random_net(seed)
        yield f"{seed:4} {FAMILIES[seed % len(FAMILIES)].__name__}", net.model(data), data
    for path in files:
        model = onnx.load(path)
        draw = np.random.default_rng(0)
        shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        data = {name: draw.normal(size=(8, *shape[1:])).astype(np.float32) for name, shape in shapes.items()}
        yield path.parent.name, model, data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("files", nargs="*", type=Path)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    count = wrong = 0
    for name, model, data in nets(asked.first, asked.count, asked.files):
        with tempfile.TemporaryDirectory() as folder:
            found = diagnosed(model, data, Path(folder), quantise=ours)
        count, wrong = count + 1, wrong + (not found.healthy)
        causes = "; ".join(f"{each.cause} at {each.tensor}: {each.evidence}" for each in found.causes)
        state = "healthy" if found.healthy else "SICK"
        print(f"{name:24} {found.sqnr_db:6.1f} dB {state} {causes} {'; '.join(found.notes)}", flush=True)
    print(f"{count} healthy nets, {wrong} with a diagnosis")


if __name__ == "__main__":
    main()

"""Seconds per sample of the Ethos-U twin beside TFLite-Micro, on this host.

    OPENBLAS_NUM_THREADS=1 python bench/ethos_u.py ethos-u55-128 FOLDER/*.tflite

The twin takes all samples at once, TFLite-Micro one after the other; both in CPU seconds, so that other work on the
machine does not count. Every value is compared: a bench of wrong results is none.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests" / "kit"))

from compiled import compile_model, micro, samples

from anynpu.runtime.ethos_u.model import read_model
from anynpu.runtime.ethos_u.twin import Twin

SAMPLES = 32


def measure(model: Path, chip: str, count: int = SAMPLES) -> str:
    """Returns one row: operations, seconds per sample of both, and whether all values agree."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = read_model(compile_model(model, chip, Path(folder)))
        inputs = samples(compiled, count)
        twin = Twin(compiled)
        twin.run_batch([value[:1] for value in inputs])  # decodes the weights
        start = time.process_time()
        got = twin.run_batch(inputs)
        middle = time.process_time()
        wanted = micro(model, inputs, len(got))
        end = time.process_time()
    differing = sum(int((g.reshape(w.shape) != w).sum()) for g, w in zip(got, wanted, strict=True))
    values = sum(w.size for w in wanted)
    operations = sum(len(call.stream.operations) for call in compiled.calls if hasattr(call, "stream"))
    ours, theirs = 1000 * (middle - start) / count, 1000 * (end - middle) / count
    return f"{model.stem[:32]:<32} {operations:>6} {ours:>9.2f} {theirs:>9.2f} {differing:>8} of {values}"


def main() -> None:
    chip, *models = sys.argv[1:]
    print(f"{chip}, {SAMPLES} samples, CPU milliseconds per sample on one core; numpy {np.__version__}")
    print(f"{'model':<32} {'ops':>6} {'twin':>9} {'TFLM':>9} differing")
    for model in models:
        print(measure(Path(model), chip), flush=True)


if __name__ == "__main__":
    main()

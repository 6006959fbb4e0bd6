"""What training recovers on zoo models: `python bench/training.py MODEL... [--bits 4] [--chip tflite]`.

Each model is built without training, trained by the float model alone, and trained with labels, on the same 2048
samples of the calibration stream, and scored on 1000 test samples. Prints one row of a Markdown table a model.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

import anynpu
from anynpu.source import zoo

TAUGHT, TESTED = 2048, 1000


def scored(name: str, data: Path, test: Path, **how: object) -> tuple[float, float]:
    """Returns the metric of the float model and of the build, or raises."""
    built = anynpu.build(f"zoo:{name}", data=str(data), test=str(test), min_sqnr=0.0, max_drop=100.0, **how)  # type: ignore[arg-type]
    (chip,) = built.require().record.chips
    assert chip.verification is not None
    assert chip.verification.score is not None and chip.verification.score_float is not None
    return chip.verification.score_float, chip.verification.score


def row(name: str, chip: str, bits: int) -> str:
    """Returns the figures of one model."""
    card = zoo.card(name)
    taught, tested = zoo.samples(name, "calibration", TAUGHT), zoo.samples(name, "test", TESTED)
    with tempfile.TemporaryDirectory() as folder:
        plain, labelled, test = (Path(folder, f"{part}.npz") for part in ("plain", "labelled", "test"))
        np.savez(plain, **{card.input_name: taught.inputs[card.input_name]})
        np.savez(labelled, labels=taught.labels, **{card.input_name: taught.inputs[card.input_name]})
        np.savez(test, labels=tested.labels, **{card.input_name: tested.inputs[card.input_name]})
        how = {"chips": chip, "metric": card.metric, "limit": TAUGHT, "option": {"weight_bits": bits}}
        real, before = scored(name, plain, test, **how)
        started, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        _, alone = scored(name, plain, test, qat=True, **how)
        wall, cpu = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
        _, with_labels = scored(name, labelled, test, qat=True, **how)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    cells = [f"{share:.1%}" for share in (real, before, alone, with_labels)]
    return " | ".join(["", name, chip, str(bits), *cells, f"{cpu:.0f} s ({wall:.0f} s)", f"{peak:.0f} MiB", ""]).strip()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("models", nargs="+", choices=zoo.names())
    parser.add_argument("--bits", type=int, default=4, choices=(4, 8))
    parser.add_argument("--chip", default="tflite")
    asked = parser.parse_args()
    print("| model | chip | weight bits | float | untrained | label-free | with labels | CPU (wall) | memory |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in asked.models:
        print(row(name, asked.chip, asked.bits), flush=True)


if __name__ == "__main__":
    main()

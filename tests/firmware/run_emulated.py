"""Random graphs on emulated Cortex-M4 and Cortex-M55: every tensor is TensorFlow Lite Micro's, and no choice of kernels
takes more instructions than plain C.

    PYTHONPATH=tests/kit python tests/firmware/run_emulated.py FOLDER [COUNT [SECONDS]]

COUNT graphs (2,000 by default) as plain C, with the kernels that the cost model chooses, and with those of the core's
extension wherever there is one. What came of each batch is a line of FOLDER/graphs.jsonl; a run that was interrupted,
or stopped after SECONDS, goes on where it stopped. The status is 1 if a tensor differs or a choice is worse than plain
C, 3 if batches are left.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from many import Known, known, run_together
from random_graphs import draw

from anynpu.firmware.generator.variants import PLAIN, Core

COUNT, BATCH, VECTORS = 2_000, 40, 4
CORES = {
    "cortex-m4": {"plain": PLAIN, "chosen": Core(("dsp",)), "dsp": Core(("dsp",), forced=True)},
    "cortex-m55": {"plain": PLAIN, "chosen": Core(("dsp", "mve")), "mve": Core(("mve",), forced=True)},
}
NOISE = 80
"""Instructions: the clock of an emulated board counts in steps of up to 40."""


def outcome_of(first: int, folder: Path, seen: dict[str, set[str]]) -> dict[str, Any]:
    """Returns what came of the graphs of one batch on every core; all kernels that were `seen` are one library."""
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    graphs: dict[int, Known] = {}
    kinds: dict[int, list[str]] = {}
    for seed in range(first, first + BATCH):
        model, kinds[seed] = draw(seed, work / f"{seed}.tflite")
        graphs[seed] = known(model, VECTORS)
    tensors = sum(len(graph.tensors[0]) for graph in graphs.values()) * VECTORS
    row: dict[str, Any] = {"first": first, "graphs": BATCH, "tensors": tensors, "wrong": [], "worse": []}
    row |= {"layers": {}, "kernels": {}}
    for chip, cores in CORES.items():
        cases = [(graph, core) for graph in graphs.values() for core in cores.values()]
        outcomes = run_together(cases, chip, work / chip, folder / "objects", seen[chip])
        row["kernels"][chip] = sorted({name for outcome in outcomes for name in outcome.made.kernels})
        seen[chip].update(row["kernels"][chip])
        each = iter(outcomes)
        for seed in graphs:
            counts = {}
            for name in cores:
                outcome = next(each)
                counts[name] = outcome.instructions
                if outcome.bad:
                    row["wrong"].append([seed, chip, name, outcome.bad, outcome.first, kinds[seed]])
                if name == "chosen":
                    for layer in outcome.made.layers:
                        key = f"{chip} {layer.variant}"
                        row["layers"][key] = row["layers"].get(key, 0) + 1
            if counts["chosen"] > counts["plain"] + NOISE:
                row["worse"].append([seed, chip, counts, kinds[seed]])
    return row


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    count = int(sys.argv[2]) if len(sys.argv) > 2 else COUNT
    stop = time.monotonic() + float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
    log = folder / "graphs.jsonl"
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    rows = {row["first"]: row for row in map(json.loads, lines)}
    left = [first for first in range(0, count, BATCH) if first not in rows]
    # The kernels of all batches so far are one library on each core, which is compiled once.
    seen = {chip: {name for row in rows.values() for name in row["kernels"][chip]} for chip in CORES}
    with log.open("a", encoding="utf-8") as sink:
        while left and time.monotonic() < stop:
            first = left.pop(0)
            rows[first] = outcome_of(first, folder, seen)
            sink.write(json.dumps(rows[first]) + "\n")
            sink.flush()
            print(f"{count - BATCH * len(left):,} of {count:,}", flush=True)
    layers: dict[str, int] = {}
    for row in rows.values():
        for key, number in row["layers"].items():
            layers[key] = layers.get(key, 0) + number
    print(f"{sum(r['graphs'] for r in rows.values()):,} graphs, {sum(r['tensors'] for r in rows.values()):,} tensors")
    print("layers as chosen: " + ", ".join(f"{key} {number:,}" for key, number in sorted(layers.items())))
    findings = [(key, *each) for row in rows.values() for key in ("wrong", "worse") for each in row[key]]
    for finding in findings:
        print(*finding)
    return 1 if findings else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())

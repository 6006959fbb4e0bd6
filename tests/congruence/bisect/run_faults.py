"""Plants a fault in each of many random nets and counts how often `anynpu bisect` ends in the guilty operator.

PYTHONPATH=tests/kit python tests/congruence/bisect/run_faults.py --count 50
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import tempfile
from pathlib import Path

import numpy as np
import onnx
from faults import Case, case

from anynpu.pipeline.bisect.run import Asked, bisect
from anynpu.records.bisect import BisectRecord


def searched(one: Case, folder: Path) -> BisectRecord:
    """Returns what a search finds in a case."""
    onnx.save(one.floating, folder / "float.onnx")
    onnx.save(one.faulty, folder / "int8.onnx")
    np.savez(folder / "data.npz", **one.data)
    asked = Asked(str(folder / "float.onnx"), str(folder / "int8.onnx"), str(folder / "data.npz"), tolerance="20")
    with contextlib.redirect_stdout(io.StringIO()):  # what a parent process would hear of
        return bisect(asked)


def verdict(one: Case, record: BisectRecord) -> str:
    """Returns "exact" where the one operator is named, "within" where it is in the sub-model, "missed" otherwise."""
    first = record.operators[0].tensor if record.operators else ""
    if one.fault.operator in [each.name for each in record.operators if each.tensor == first]:
        return "exact"
    return "within" if one.fault.operator in [each.name for each in record.operators] else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    tally: dict[str, int] = {}
    seed, done, runs, most = asked.first, 0, 0, 0
    while done < asked.count:
        one = case(seed)
        seed += 1
        if one is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            record = searched(one, Path(folder))
        found, bound = verdict(one, record), 3 + math.ceil(math.log2(record.cuts))
        tally[found] = tally.get(found, 0) + 1
        done, runs, most = done + 1, runs + record.executed_runs, max(most, record.executed_runs - bound)
        named = record.guilty.name if record.guilty else "-"
        print(
            f"{seed - 1:4} {found:7} {record.executed_runs:2} runs of {record.cuts:3} cuts (log bound {bound}), "
            f"sub-model {len(record.operators)}: {named}; planted at {one.fault.operator}: {one.fault.what} "
            f"({one.healthy_db:.1f} -> {one.faulty_db:.1f} dB)",
            flush=True,
        )
    print(
        f"{done} nets (of {seed - asked.first} seeds): {tally}; {runs / done:.1f} runs each, {most:+} against the bound"
    )


if __name__ == "__main__":
    main()

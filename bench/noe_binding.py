"""Measures what our binding of libnoe adds to the same loop in C and writes bench/results/noe_binding.json.

Both run the fake library of anynpu.testing, in turns: a launch of the C loop, then as many inferences of a session,
again and again. Every turn gives a median; the record has the medians of those. Small: 308 bytes in, 512 out. Large:
1.2 MB in, 1.4 MB out; there the difference is told beside the time that one copy of each tensor takes.

    noe_binding.py [--realtime]     --realtime: both with a real-time priority, so that a busy machine does not disturb
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from anynpu.measure import host
from anynpu.runtime.noe.cix import read_cix
from anynpu.runtime.noe.session import NoeSession
from anynpu.tensors import TensorSpec
from anynpu.testing import noe

RESULTS = Path(__file__).parent / "results"
LIMIT_US = 60.0
DEFAULT = "isolated"
MODES = {"isolated": True, "in process": False}


Figures = tuple[float, float]
"""Microseconds of one inference: the median on the wall clock, and the mean of CPU time in all processes."""


def c_loop(program: list[str], runs: int) -> Figures:
    """Returns the figures of a launch of the C loop."""
    lines = subprocess.run([*program, str(runs)], check=True, capture_output=True, text=True).stdout.split()
    *took, cpu = map(int, lines)
    return statistics.median(took[runs // 10 :]) / 1e3, cpu / runs / 1e3


def cpu_ns(worker: int | None) -> int:
    """Returns the CPU time of this process and of the one that holds the library."""
    theirs = Path(f"/proc/{worker}/schedstat").read_text().split()[0] if worker else 0
    return time.process_time_ns() + int(theirs)


def session_loop(session: NoeSession, inputs: dict, runs: int, worker: int | None) -> Figures:
    """Returns the figures of inferences through a session."""
    took, began_cpu = [], cpu_ns(worker)
    for _ in range(runs):
        began = time.perf_counter_ns()
        session.run(inputs)
        took.append(time.perf_counter_ns() - began)
    return statistics.median(took[runs // 10 :]) / 1e3, (cpu_ns(worker) - began_cpu) / runs / 1e3


def copies(spec_in: TensorSpec, spec_out: TensorSpec) -> Figures:
    """Returns the figures of copying input and output once, the output into memory of its own."""
    source, kept, result = (np.zeros(n, np.uint8) for n in (spec_in.nbytes, spec_in.nbytes, spec_out.nbytes))
    took, began_cpu = [], cpu_ns(None)
    for _ in range(200):
        began = time.perf_counter_ns()
        kept[...] = source
        result.copy()
        took.append(time.perf_counter_ns() - began)
    return statistics.median(took) / 1e3, (cpu_ns(None) - began_cpu) / 200 / 1e3


def measure(folder: Path, library: Path, loop: Path, name: str, turns: int, runs: int) -> dict:
    """Returns the figures of one model."""
    given, made = (noe.TEXT, noe.EMBEDDING) if name == "small" else (noe.PICTURE, noe.BOXES)
    artifact = noe.model(folder / name, [given], [made], "mix" if name == "small" else "yolo")
    (folder / f"{name}.elf").write_bytes(read_cix(artifact.main).elf)
    program = [str(loop), str(library), str(folder / f"{name}.elf"), str(given.nbytes), str(made.nbytes)]
    inputs = {given.name: (np.arange(given.size) * 13 % 127).astype(given.dtype).reshape(given.shape)}
    found: dict[str, list[Figures]] = {"C": [], **{mode: [] for mode in MODES}, "copies": []}
    sessions = {mode: NoeSession(artifact, isolate=isolate) for mode, isolate in MODES.items()}
    for _ in range(turns):
        found["C"].append(c_loop(program, runs))
        for mode, session in sessions.items():
            worker = session.worker if MODES[mode] else None
            found[mode].append(session_loop(session, inputs, runs, worker))
        found["copies"].append(copies(given, made))
    for session in sessions.values():
        session.close()
    told = {"input_bytes": given.nbytes, "output_bytes": made.nbytes, "turns": turns, "runs_a_turn": runs}
    return told | {clock: table(found, index) for index, clock in enumerate(("wall_us", "cpu_us"))}


def table(found: dict[str, list[Figures]], index: int) -> dict:
    """Returns medians over the turns, ratios and differences, and how many copies of both tensors those are."""
    rows = {key: [figures[index] for figures in values] for key, values in found.items()}
    middle = {key: statistics.median(values) for key, values in rows.items()}
    more = {mode: [a - c for a, c in zip(rows[mode], rows["C"], strict=True)] for mode in MODES}
    return {
        "median": middle,
        "least": {key: min(values) for key, values in rows.items()},
        "ratio_to_c": {mode: middle[mode] / middle["C"] for mode in MODES},
        "more_than_c": {mode: statistics.median(values) for mode, values in more.items()},
        "more_than_c_quartiles": {mode: statistics.quantiles(values, n=4)[::2] for mode, values in more.items()},
        "more_than_c_in_copies": {mode: statistics.median(more[mode]) / middle["copies"] for mode in MODES},
    }


def main() -> int:
    realtime = "--realtime" in sys.argv[1:]
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with tempfile.TemporaryDirectory(prefix="anynpu-") as name:
        folder = Path(name)
        library, loop = noe.build_fake(folder), folder / "noe_loop"
        source = Path(__file__).with_name("noe_loop.c")
        subprocess.run(["cc", "-O2", "-o", str(loop), str(source), "-ldl"], check=True)
        with noe.switches(library):
            small = measure(folder, library, loop, "small", 15, 2000)
            large = measure(folder, library, loop, "large", 15, 100)
    machine = {k: v for k, v in host.describe().items() if k in ("cpu", "cores", "python", "load_1min")}
    found = {"host": machine, "default": DEFAULT, "small": small, "large": large}
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / "noe_binding.json"
    record = json.loads(file.read_text()) if file.exists() else {}
    record["realtime" if realtime else "as it comes"] = found
    file.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    good = small["wall_us"]["more_than_c"][DEFAULT] <= LIMIT_US
    print("within the limit" if good else f"BEYOND THE LIMIT of {LIMIT_US:g} us")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

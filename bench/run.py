"""Measures what users wait for and writes the table to bench/results/.

Times on a shared machine are noisy: every row is the median of several runs made in one go, with its spread, and speed
is claimed as a ratio of two rows of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ANYNPU = [sys.executable, "-m", "anynpu"]
SIX = "cpu,tflm,ethos-u55-128,ethos-u65-256,ethos-u85-256,hxwe2"
RESULTS = Path(__file__).parent / "results"


def timed(argv: list[str], repeat: int, cache: Path | None = None) -> list[float]:
    """Returns the wall seconds of each run; a run that fails stops the benchmark."""
    environment = {**os.environ, **({"ANYNPU_CACHE_DIR": str(cache)} if cache else {})}
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        done = subprocess.run(argv, env=environment, capture_output=True, text=True)
        seconds.append(time.perf_counter() - started)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(argv)} failed:\n{done.stderr[-2000:]}")
    return seconds


def row(what: str, seconds: list[float]) -> dict[str, str | float | int | list[float]]:
    return {
        "what": what,
        "median_s": round(statistics.median(seconds), 3),
        "min_s": round(min(seconds), 3),
        "max_s": round(max(seconds), 3),
        "runs": len(seconds),
        "raw_s": [round(s, 4) for s in seconds],
    }


def start_up(repeat: int) -> list[dict]:
    return [
        row("python -c pass (the floor)", timed([sys.executable, "-c", "pass"], repeat)),
        row("import anynpu", timed([sys.executable, "-c", "import anynpu"], repeat)),
        row("anynpu --help", timed([*ANYNPU, "--help"], repeat)),
        row("anynpu targets", timed([*ANYNPU, "targets"], repeat)),
    ]


def builds(folder: Path, repeat: int) -> list[dict]:
    """One zoo model for six chips: with an empty store, and again with everything in it."""
    command = [*ANYNPU, "build", "-m", "zoo:resnet8", "-t", SIX, "-o", str(folder / "out"), "--overwrite", "-q"]
    cold = timed(command, 1, folder / "cache")
    warm = timed(command, repeat, folder / "cache")
    rows = [row("build zoo:resnet8 for six chips, empty store", cold)]
    return [*rows, row("the same again, every step from the store", warm)]


def stages(folder: Path, models: list[str]) -> list[dict]:
    """Seconds of each stage by model size, from the report of a fresh build for one Ethos-U."""
    rows = []
    for model in models:
        out, cache = folder / model, folder / f"cache-{model}"
        timed([*ANYNPU, "build", "-m", f"zoo:{model}", "-t", "ethos-u55-128", "-o", str(out), "-q"], 1, cache)
        report = json.loads((out / "report.json").read_text())
        cost = report["model"]["estimates"]
        seconds = {t["stage"]: t["seconds"] for t in report["timings"]}
        rows.append({"model": model, "parameters": cost["parameters"], "macs": cost["macs"], **seconds})
    return rows


def markdown(rows: list[dict], columns: list[str]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(str(r.get(c, "-")) for c in columns) + " |" for r in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=["autoencoder", "kws", "resnet8", "vww", "detector", "hello"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fast = start_up(given.repeat)
        built = builds(folder, given.repeat)
        staged = stages(folder, given.models)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    ratio = built[0]["median_s"] / built[1]["median_s"]
    RESULTS.mkdir(exist_ok=True)
    record = {"schema_version": 1, "machine": machine, "start_up": fast, "builds": built, "stages": staged}
    (RESULTS / "bench.json").write_text(json.dumps(record, indent=1) + "\n")
    columns = ["what", "median_s", "min_s", "max_s", "runs"]
    names = ["model", "parameters", "macs", "import", "calibration", "test", "litert", "tflite", "vela", "verify"]
    text = f"# anynpu benchmark\n\n{machine}. Wall seconds; the machine may have been busy.\n\n"
    text += markdown([*fast, *built], columns)
    text += f"\nThe second build takes 1/{ratio:.0f} of the first.\n\nSeconds of each stage, one fresh build each:\n\n"
    text += markdown(staged, names)
    (RESULTS / "bench.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

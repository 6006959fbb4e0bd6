"""Times builds of this version beside those of another one, in turn, and prints the ratio.

    python bench/against.py --before ../other-checkout/.venv/bin/python

Both versions take every turn on the same machine under the same load; the ratio is of the medians, with the smallest
and largest ratio of two neighbouring turns after it. User and system seconds of all child processes are counted too:
they depend less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHIPS = "cpu,tflm,ethos-u55-128"
RESULTS = Path(__file__).parent / "results"


def timed(python: str, model: str, folder: Path) -> tuple[float, float]:
    """Returns the wall and CPU seconds of one build with the cache in `folder`."""
    command = [
        python,
        "-m",
        "anynpu",
        "build",
        "-m",
        model,
        "-t",
        CHIPS,
        "-o",
        str(folder / "out"),
        "--overwrite",
        "-q",
    ]
    environment = {**os.environ, "ANYNPU_CACHE_DIR": str(folder / "cache")}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def turns(pythons: dict[str, str], model: str, count: int, warm: int) -> dict[str, dict[str, list[float]]]:
    """Returns the seconds of every turn by version: `count` cold builds, each followed by `warm` warm ones."""
    kinds = ("cold wall", "cold cpu", "warm wall", "warm cpu")
    rows: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in kinds} for name in pythons}
    for turn in range(count):
        # The first of a pair finds colder file caches: the order changes with every turn.
        for name in sorted(pythons, reverse=bool(turn % 2)):
            with tempfile.TemporaryDirectory() as folder:
                for kind, repeat in (("cold", 1), ("warm", warm)):
                    for _ in range(repeat):
                        wall, cpu = timed(pythons[name], model, Path(folder))
                        rows[name][f"{kind} wall"].append(wall)
                        rows[name][f"{kind} cpu"].append(cpu)
    return rows


def ratios(rows: dict[str, dict[str, list[float]]]) -> list[dict[str, float | str]]:
    """Returns a row for each kind of figure: medians of both versions and their ratio."""
    table = []
    for kind, after in rows["after"].items():
        before = rows["before"][kind]
        pairs = [a / b for a, b in zip(after, before, strict=True)]
        medians = statistics.median(before), statistics.median(after)
        table.append(
            {
                "what": kind,
                "before_s": round(medians[0], 3),
                "after_s": round(medians[1], 3),
                "ratio": round(medians[1] / medians[0], 3),
                "min": round(min(pairs), 3),
                "max": round(max(pairs), 3),
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, help="the Python that has the other version installed")
    parser.add_argument("--model", default="zoo:resnet8")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--warm", type=int, default=3, help="warm builds after each cold one")
    arguments = parser.parse_args()
    rows = turns(
        {"before": arguments.before, "after": sys.executable}, arguments.model, arguments.turns, arguments.warm
    )
    table = ratios(rows)
    RESULTS.mkdir(exist_ok=True)
    record = {"model": arguments.model, "chips": CHIPS, "table": table, "raw_s": rows}
    (RESULTS / "against.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"{arguments.model} for {CHIPS}; {arguments.turns} turns\n")
    for row in table:
        print(
            "{what:10} {before_s:8.3f} s -> {after_s:8.3f} s  ratio {ratio:.3f} ({min:.3f} to {max:.3f})".format(**row)
        )


if __name__ == "__main__":
    main()

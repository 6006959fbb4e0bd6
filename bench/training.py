"""What training recovers on zoo models: `python bench/training.py MODEL... [--chip tflite] [-O weight_bits=4]`.

Each model is built without training, trained by the float model alone, and trained with labels, on the same 4096
samples of the calibration stream, and the file of each build is scored on 2000 test samples. Every figure is one row of
bench/results/training.jsonl, written when it is there: a row that is in that file is not built again without --again,
and an interrupted training goes on after its last epoch. Prints the rows as a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import anynpu
from anynpu.source import zoo

TAUGHT, TESTED = 4096, 2000
RESULTS = Path(__file__).parent / "results"
FILE = RESULTS / "training.jsonl"
KINDS = ("untrained", "label-free", "with labels")


@dataclass(frozen=True)
class Build:
    """One build of a model."""

    model: str
    chip: str
    options: str
    kind: str


@dataclass(frozen=True)
class Row:
    """What a build came to: shares of right answers, and what the build took with all of its child processes."""

    build: Build
    score_float: float
    score: float
    sqnr_db: float
    cpu_s: int
    wall_s: int
    memory_mib: int
    notes: tuple[str, ...]


def sample_file(name: str, stream: str, count: int, labelled: bool) -> Path:
    """Returns a file with samples of a zoo model, which is written once."""
    path = RESULTS / "samples" / f"{name}-{stream}-{count}{'-labelled' if labelled else ''}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        samples, card = zoo.samples(name, stream, count), zoo.card(name)
        labels = {"labels": samples.labels} if labelled else {}
        whole = path.with_name(f"part-{path.name}")
        np.savez(whole, **labels, **{card.input_name: samples.inputs[card.input_name]})
        whole.rename(path)
    return path


def row(build: Build) -> Row:
    """Builds, executes and scores."""
    data = sample_file(build.model, "calibration", TAUGHT, build.kind == "with labels")
    test = sample_file(build.model, "test", TESTED, True)
    started = time.monotonic()
    came = anynpu.build(
        f"zoo:{build.model}",
        build.chip,
        data=str(data),
        test=str(test),
        metric=zoo.card(build.model).metric,
        limit=TAUGHT,
        option=dict(each.split("=", 1) for each in build.options.split()),
        qat=build.kind != "untrained",
        min_sqnr=-100.0,
        max_drop=100.0,
    )
    (chip,) = came.require().record.chips
    proof = chip.verification
    assert proof is not None and proof.score is not None and proof.score_float is not None
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return Row(
        build,
        proof.score_float,
        proof.score,
        proof.sqnr_db or 0.0,
        round(sum(each.ru_utime + each.ru_stime for each in (own, children))),
        round(time.monotonic() - started),
        max(own.ru_maxrss, children.ru_maxrss) // 1024,
        tuple(note for note in came.record.notes if "trained" in note),
    )


def stored() -> dict[Build, Row]:
    """Returns the rows that are there already; the last one of a build counts."""
    lines = FILE.read_text("utf-8").splitlines() if FILE.exists() else []
    rows = [Row(**{**each, "build": Build(**each["build"])}) for each in map(json.loads, lines)]
    return {each.build: each for each in rows}


def table(rows: dict[Build, Row]) -> str:
    """Returns one line of Markdown for each model, chip and options."""
    lines = [
        "| model | chip | options | float | untrained | label-free | with labels | CPU (wall) | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model, chip, options in dict.fromkeys((b.model, b.chip, b.options) for b in rows):
        there = [rows.get(Build(model, chip, options, kind)) for kind in KINDS]
        scores = [f"{each.score:.2%}" if each else "-" for each in there]
        first, last = next(filter(None, there)), [each for each in there if each][-1]
        cost = f"{last.cpu_s} s ({last.wall_s} s) | {last.memory_mib} MiB"
        lines.append(f"| {model} | {chip} | {options} | {first.score_float:.2%} | {' | '.join(scores)} | {cost} |")
    return "\n".join(lines)


def main() -> None:
    """Builds what has no row yet and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="of the zoo; none: print the table")
    parser.add_argument("--chip", default="tflite")
    parser.add_argument("-O", "--option", action="append", default=[], help="as in anynpu build")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--again", action="store_true", help="build rows that are there already")
    asked = parser.parse_args()
    for name in asked.models:
        for kind in asked.kinds:
            build = Build(name, asked.chip, " ".join(asked.option), kind)
            if build in stored() and not asked.again:
                continue
            # A process for each build: its time and memory are its own.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                made = pool.submit(row, build).result()
            FILE.parent.mkdir(parents=True, exist_ok=True)
            with FILE.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(made)) + "\n")
    print(table(stored()))


if __name__ == "__main__":
    main()

"""Measures this tree beside an older one in one run: conversion, quantisation, builds.

    python bench/conversion.py --old OLD/.venv/bin/python resnet8=zoo:resnet8 mobilenetv2=mnv2.onnx:photos.npz ...

A model is NAME=MODEL[:DATA[:CARD]], as `anynpu build -m MODEL --data DATA --task CARD` takes them. `--old` is the
Python of an environment with another version of anynpu, such as the last one that converted by litert-torch and
quantised by ai-edge-quantizer (a601f6b). The two take turns, each with an empty store:

- conversion and quantisation: the steps `litert` and `tflite` of a build for tflite;
- the build for six chips (of the first model), cold and then again with everything in the store;
- with --yolo MODEL:DATA[:CARD] the build of a detector for cpu, tflite and Ethos-U85, by this tree alone.

CPU time and memory are those of all processes of a build: /proc is read every 50 ms, so that a process that lives for
less may be missed. Memory is the proportional set size, in which shared pages count once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "conversion.json"
SIX = "cpu,tflm,ethos-u55-128,ethos-u65-256,ethos-u85-256,hxwe2"
DETECTOR = "cpu,tflite,ethos-u85-256"
CONVERTING = ("litert", "tflite")
EVERY_S, MEMORY_EVERY_S = 0.05, 0.2
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """What something took, over all its processes."""

    cpu_s: float
    wall_s: float
    peak_mib: float


@dataclass(frozen=True)
class Sample:
    """What all processes of a build had used at a moment, and the memory that they held."""

    at: float
    cpu_s: float
    mib: float


@dataclass(frozen=True)
class Stage:
    """A step of a build, with the moments of its begin and end."""

    name: str
    begun: float
    ended: float


@dataclass(frozen=True)
class Model:
    """A model as a build takes it."""

    name: str
    arguments: tuple[str, ...]


class Watch:
    """Follows a process and its descendants, also those that outlive their parents."""

    def __init__(self, root: int) -> None:
        self.samples: list[Sample] = []
        self._family, self._ticks = {root}, dict[tuple[int, str], int]()
        self._mib, self._looked = 0.0, 0.0

    def look(self) -> None:
        """Takes a sample."""
        parents: dict[int, int] = {}
        found: dict[int, tuple[tuple[int, str], int]] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text("ascii", "replace").rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            pid = int(path.parent.name)
            # A number may be given to another process later: with its start it is one of a kind.
            parents[pid], found[pid] = int(fields[1]), ((pid, fields[19]), int(fields[11]) + int(fields[12]))
        self._family &= parents.keys()
        while more := {pid for pid, parent in parents.items() if parent in self._family} - self._family:
            self._family |= more
        self._ticks |= {key: ticks for pid, (key, ticks) in found.items() if pid in self._family}
        now = time.monotonic()
        if now - self._looked >= MEMORY_EVERY_S:
            self._mib, self._looked = sum(map(_mib, self._family)), now
        self.samples.append(Sample(now, sum(self._ticks.values()) / TICKS, self._mib))

    def cost(self, begun: float = 0.0, ended: float = float("inf")) -> Cost:
        """Returns what was used between two moments."""
        within = [s for s in self.samples if begun <= s.at <= ended] or self.samples[-1:]
        before = [s.cpu_s for s in self.samples if s.at < begun] or [0.0]
        after = [s.cpu_s for s in self.samples if s.at > ended] or [within[-1].cpu_s]
        wall = min(ended, self.samples[-1].at) - max(begun, self.samples[0].at)
        return Cost(round(after[0] - before[-1], 2), round(wall, 2), round(max(s.mib for s in within)))


def _mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def followed(python: str, arguments: Sequence[str], folder: Path) -> tuple[Watch, list[Stage]]:
    """Runs `anynpu build` of an environment, and returns what its processes used and when its steps ran."""
    events = folder / "events.jsonl"
    events.unlink(missing_ok=True)
    environment = {**os.environ, "ANYNPU_CACHE_DIR": str(folder / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [python, __file__, "--inside", str(events), "--", "build", *arguments, "-q", "--overwrite"]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [*command, "-o", str(folder / "out")], env=environment, stdout=said, stderr=said, start_new_session=True
        )
        watch, ended = Watch(child.pid), threading.Event()

        def look() -> None:
            while not ended.wait(EVERY_S):
                watch.look()

        looking = threading.Thread(target=look)
        watch.look()
        looking.start()
        try:
            status = child.wait()
        finally:
            ended.set()
            looking.join()
        said.seek(0)
        if status not in (0, 7):  # an accuracy below the gate is a result like others
            raise SystemExit(f"{' '.join(command)} failed ({status}):\n{said.read().decode()[-3000:]}")
    return watch, [Stage(**json.loads(line)) for line in events.read_text("utf-8").splitlines()]


def inside(events: Path, arguments: Sequence[str]) -> None:
    """Runs the command line of the anynpu that is installed here, and writes down when each step ran."""
    from anynpu.cli import main as command
    from anynpu.pipeline.steps import Steps

    run: Callable = Steps.run

    def timed(steps: Steps, chip: str, stage: str, *how: object) -> object:
        begun = time.monotonic()
        result = run(steps, chip, stage, *how)
        with events.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(Stage(stage, begun, time.monotonic()))) + "\n")
        return result

    Steps.run = timed  # type: ignore[method-assign, assignment]
    sys.argv = ["anynpu", *arguments]
    command()


def conversion(python: str, model: Model, folder: Path) -> Cost:
    """Returns what conversion and quantisation of a model take."""
    watch, stages = followed(python, [*model.arguments, "-t", "tflite"], folder)
    costs = [watch.cost(stage.begun, stage.ended) for stage in stages if stage.name in CONVERTING]
    return Cost(
        round(sum(cost.cpu_s for cost in costs), 2),
        round(sum(cost.wall_s for cost in costs), 2),
        max(cost.peak_mib for cost in costs),
    )


def builds(python: str, model: Model, chips: str, folder: Path) -> tuple[Cost, Cost]:
    """Returns what a build takes with an empty store, and again."""
    cold, _ = followed(python, [*model.arguments, "-t", chips], folder)
    warm, _ = followed(python, [*model.arguments, "-t", chips], folder)
    return cold.cost(), warm.cost()


def model_of(text: str) -> Model:
    """Returns the model that NAME=MODEL[:DATA[:CARD]] names."""
    name, _, rest = text.partition("=")
    if rest.startswith("zoo:"):
        return Model(name, ("-m", rest))
    parts = zip(("-m", "--data", "--task"), rest.split(":"), strict=False)
    return Model(name, tuple(word for pair in parts for word in pair))


def median(costs: Sequence[Cost]) -> Cost:
    """Returns the run in the middle by CPU time."""
    return sorted(costs, key=lambda cost: cost.cpu_s)[len(costs) // 2]


def line(what: str, old: Cost | None, new: Cost) -> str:
    """Returns a row of the table."""
    if old is None:
        return f"| {what} | | {new.cpu_s:.1f} | | | {new.wall_s:.1f} | | | {new.peak_mib:.0f} | |"
    pairs = ((old.cpu_s, new.cpu_s), (old.wall_s, new.wall_s), (old.peak_mib, new.peak_mib))
    cells = (f"{a:.4g} | {b:.4g} | {b / max(a, 1e-9):.2f}" for a, b in pairs)
    return f"| {what} | {' | '.join(cells)} |"


HEAD = (
    "| what | CPU s, old | new | ratio | wall s, old | new | ratio | peak MiB, old | new | ratio |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def compared(models: Sequence[Model], old: str, rounds: int, parts: str) -> list[tuple[str, Cost, Cost]]:
    """Returns what each thing takes, in the old tree and in this one, which take turns."""
    pythons, rows = (old, sys.executable), []
    with tempfile.TemporaryDirectory(prefix="anynpu-conversion-") as name:
        for model in models if "c" in parts else ():
            turns = [[conversion(python, model, fresh(Path(name))) for python in pythons] for _ in range(rounds)]
            both = [median(costs) for costs in zip(*turns, strict=True)]
            rows.append((f"conversion and quantisation, {model.name}", *both))
            print(line(*rows[-1]), flush=True)
        for model in models[:1] if "b" in parts else ():
            turns = [[builds(python, model, SIX, fresh(Path(name))) for python in pythons] for _ in range(rounds)]
            for at, what in enumerate(("cold", "warm")):
                both = [median([cost[at] for cost in costs]) for costs in zip(*turns, strict=True)]
                rows.append((f"build for six chips, {what}, {model.name}", *both))
                print(line(*rows[-1]), flush=True)
    return rows


def fresh(folder: Path) -> Path:
    """Returns a new folder in another."""
    return Path(tempfile.mkdtemp(dir=folder))


def main() -> int:
    if "--inside" in sys.argv[1:2]:
        inside(Path(sys.argv[2]), sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=model_of, help="NAME=MODEL[:DATA[:CARD]]")
    parser.add_argument("--old", help="the Python of the environment to compare with")
    parser.add_argument("--rounds", type=int, default=1, help="how often each takes its turn (1)")
    parser.add_argument("--parts", default="cb", help="c: conversion and quantisation, b: builds for six chips (cb)")
    parser.add_argument("--yolo", metavar="MODEL:DATA[:CARD]", help="build this detector for cpu, tflite and U85")
    arguments = parser.parse_args()
    print(*HEAD, sep="\n", flush=True)
    rows: list[tuple[str, Cost | None, Cost]] = []
    if arguments.old:
        rows += compared(arguments.models, arguments.old, arguments.rounds, arguments.parts)
    if arguments.yolo:
        with tempfile.TemporaryDirectory(prefix="anynpu-conversion-") as name:
            costs = builds(sys.executable, model_of(f"yolo={arguments.yolo}"), DETECTOR, Path(name))
        rows += [(f"detector for {DETECTOR}, {what}", None, c) for what, c in zip(("cold", "warm"), costs, strict=True)]
        print(*(line(*row) for row in rows[-2:]), sep="\n", flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(
        json.dumps([[what, old and asdict(old), asdict(new)] for what, old, new in rows]) + "\n", "utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

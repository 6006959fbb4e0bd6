"""One damaged file, one command: each in a forked child of a process that has imported the heavy packages already.

What `tool.call` runs in a fresh Python runs in a fork here, too: it dies, fails and answers in the same way, and ten
thousand cases take minutes instead of hours. Everything else is the command line as it is.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutation_seeds import Seed, reseal
from mutations import damaged

import anynpu
from anynpu import plugins, tool
from anynpu.child import answer_request
from anynpu.errors import AnyNpuError, ToolFailed
from anynpu.records.parts import own_version

SLOW = "checkpoint"
"""A model in Python that does load is exported, which takes seconds: one case in a hundred."""
STATUSES = frozenset(range(9))
SECONDS = 300
"""A command that takes longer hangs; the slowest takes a few."""
ADDRESS_BYTES, RESIDENT_BYTES = 6 << 30, 1536 << 20
"""What a command may ask for and touch beyond what its parent has."""
UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys instead of showing it; tabs and ends of lines are ours."""


@dataclass(frozen=True)
class Case:
    """A damaged file and the command that reads it."""

    number: int
    seed: Seed
    command: tuple[str, ...]
    data: bytes


@dataclass
class Outcome:
    """How a command ended and what it said."""

    status: int
    out: bytes
    err: bytes
    resident: int
    seconds: float

    def complaints(self) -> list[str]:
        """Returns what is wrong with it."""
        found = []
        if self.status not in STATUSES:
            found.append(tool.status_name(self.status))
        for name, data in (("stdout", self.out), ("stderr", self.err)):
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                found.append(f"{name} is not UTF-8: {error}")
                continue
            found += [f"{name} holds {word}" for word in ("Traceback", "internal error") if word in text]
            found += [f"{name} holds {odd[0]!r}" for odd in [UNSEEN.search(text)] if odd]
        told = sum(line.startswith(b"anynpu: ") for line in self.err.splitlines())
        if self.status > 1 and (told > 1 or not (told or self.out)):
            found.append(f"{told} sentences for status {self.status}")
        if self.resident > RESIDENT_BYTES:
            found.append(f"{self.resident >> 20} MiB of memory")
        return found


@dataclass
class Figures:
    """What came of all cases."""

    statuses: dict[str, collections.Counter[int]] = field(
        default_factory=lambda: collections.defaultdict(collections.Counter)
    )
    failures: list[str] = field(default_factory=list)
    sentences: set[bytes] = field(default_factory=set)


def case(number: int, seeds: Sequence[Seed]) -> Case:
    """Returns the case of a number: always the same one."""
    draw = random.Random(number)
    kinds = sorted({seed.kind for seed in seeds} - {SLOW})
    kind = SLOW if number % 100 == 99 else kinds[number % len(kinds)]
    seed = draw.choice([each for each in seeds if each.kind == kind])
    others = [(each.folder / each.file).read_bytes() for each in draw.sample(list(seeds), 3)]
    data = damaged(seed.form, (seed.folder / seed.file).read_bytes(), others, draw)
    return Case(number, seed, draw.choice(seed.commands), data)


def prepare(each: Case, place: Path) -> list[str]:
    """Lays out the folder of a case and returns its command."""
    shutil.copytree(each.seed.folder, place)
    (place / each.seed.file).write_bytes(each.data)
    if each.seed.resealed:
        reseal(place / each.seed.resealed)
    return [part.format(file=each.seed.file) for part in each.command]


def _forked(
    argv: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    timeout_s: float = 600,
    hint: str = "",
    on_line: Callable[[str], None] | None = None,
    **rest: Any,
) -> Any:
    """Stands in for tool.run: our own functions run in a fork, programs as ever."""
    if list(argv[1:4]) != ["-P", "-m", "anynpu.tool"]:
        return REAL_RUN(argv, cwd=cwd, log=log, timeout_s=timeout_s, hint=hint, on_line=on_line, **rest)
    stdin, alive = os.pipe()
    output, sink = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        for source, to in ((stdin, 0), (sink, 1), (sink, 2)):
            os.dup2(source, to)
        os.close(alive), os.close(output), os.close(sink)
        sys.argv = list(argv[3:])
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        try:
            answer_request(argv[4], argv[5])
        finally:
            os._exit(1)
    os.close(stdin), os.close(sink)
    lines = []
    with os.fdopen(output, encoding="utf-8", errors="replace") as stream, log.open("a", encoding="utf-8") as kept:
        for line in stream:
            lines.append(line)
            kept.write(line)
            if on_line is not None:
                on_line(line)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(alive)
    if status != 0:
        message = f"{argv[0]} failed with {tool.status_name(status)}"
        raise ToolFailed(
            message, argv, status, str(log), [line.rstrip("\n") for line in lines[-tool.LAST_LINES :]], hint
        )
    return tool.Completed(tuple(argv), "".join(lines), time.monotonic() - started)


REAL_RUN = tool.run


def _command(arguments: list[str]) -> int:
    if arguments[0] == "!platform":
        from anynpu.platform import read_platform

        try:
            read_platform(Path(arguments[1]))
        except AnyNpuError as error:
            print("anynpu:", error.message.encode("unicode_escape").decode(), file=sys.stderr)
            return error.exit_status
        return 0
    from anynpu.cli.main import main

    return main(arguments)


def _inside(arguments: list[str], place: Path, out: Path, err: Path, environment: Mapping[str, str]) -> None:
    """The child: never returns."""
    status = 71
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        sinks = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) for path in (out, err)]
        for source, to in zip((nothing, *sinks), range(3), strict=True):
            os.dup2(source, to)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_BYTES, used + ADDRESS_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(place)
        os.environ.update(environment)
        tool.run = _forked
        status = _command(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc(file=sys.__stderr__)
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(status)


def run(each: Case, room: Path) -> Outcome:
    """Runs a case in a child and returns how it ended."""
    place, out, err = room / "case", room / "out", room / "err"
    shutil.rmtree(place, ignore_errors=True)
    arguments = prepare(each, place)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _inside(arguments, place, out, err, {"ANYNPU_CACHE_DIR": str(room / "cache"), "ANYNPU_LEDGER": "l.jsonl"})
    done, status, usage = 0, 0, None
    pause = 0.002
    while not done:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if not done:
            if time.monotonic() - started > SECONDS:
                os.killpg(child, signal.SIGKILL)
            time.sleep(pause)
            pause = min(0.05, pause * 1.3)
    code = os.waitstatus_to_exitcode(status)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resident = max(0, usage.ru_maxrss - own) * 1024
    shutil.rmtree(room / "cache", ignore_errors=True)
    return Outcome(code, out.read_bytes(), err.read_bytes(), resident, time.monotonic() - started)


def preload() -> None:
    """Imports what every command would, once."""
    heavy = ("onnx.checker", "onnx.shape_inference", "onnxruntime", "onnx_ir.passes.common", "PIL.Image")
    heavy += ("safetensors.torch", "tokenizers", "torch", "ai_edge_litert.interpreter", "tflite_micro.runtime", "ftfy")
    for name in (*heavy, "regex", "xml.etree.ElementTree", "http.client", "scipy.special"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    PIL = importlib.import_module("PIL.Image")
    PIL.init()
    for found in pkgutil.walk_packages(anynpu.__path__, "anynpu."):
        if not re.search(r"__main__|_worker|\.testing|zoo|bert|\.net$", found.name):
            importlib.import_module(found.name)
    for kind in ("sessions", "targets"):
        for name in plugins.names(kind):
            plugins.load(kind, name)
    for name in plugins.names("platforms"):
        plugins.platform(name)
    own_version()


def run_all(numbers: Sequence[int], seeds: Sequence[Seed], room: Path, told: Any = None) -> Figures:
    """Runs the cases of these numbers."""
    figures = Figures()
    for number in numbers:
        each = case(number, seeds)
        outcome = run(each, room)
        figures.statuses[each.seed.kind][outcome.status] += 1
        figures.sentences.update(line for line in outcome.err.splitlines() if line.startswith(b"anynpu: "))
        bad = outcome.complaints()
        if bad:
            line = " ".join(each.command)
            figures.failures.append(f"case {number}: {each.seed.kind} {each.seed.file}: {line}: {'; '.join(bad)}")
        if told is not None:
            told(each, outcome, bad)
    return figures

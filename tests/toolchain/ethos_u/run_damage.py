"""Mutated streams by the hundred thousand: each ends in an IntegrityError or in values, within bounds.

    PYTHONPATH=tests/kit python tests/toolchain/ethos_u/run_damage.py FOLDER [COUNT]

Compiles small networks for every configuration into FOLDER once, then executes COUNT cases (100,000 by default) in
forked children with a limit on memory, and appends what came of each chunk to FOLDER/progress.jsonl. A run that was
interrupted goes on where it stopped. A case that takes too long, dies or raises anything else is listed and makes the
status 1.
"""

from __future__ import annotations

import collections
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compiled import CHIPS, Refused, compile_model, samples
from random_graphs import draw
from test_damage import changed, network

from anynpu.errors import AnyNpuError
from anynpu.runtime.ethos_u.model import Model, NpuCall, read_model
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.runtime.ethos_u.weights import Decoder

COUNT = 100_000
CHUNK = 500
CASE_SECONDS = 60
MEMORY_BYTES = 4 << 30
GRAPHS = (3, 14, 22, 60, 77, 101)
"""Random graphs that are damaged beside the network of every kind of operator."""


@dataclass(frozen=True)
class Seed:
    """A compiled model that cases damage."""

    name: str
    model: Model
    raw: bytes
    payload: bytes
    inputs: list[np.ndarray]


def compile_seeds(folder: Path) -> list[Path]:
    """Returns the compiled networks, compiling those that are not there."""
    for chip in CHIPS:
        target = folder / chip
        if target.is_dir():
            continue
        target.mkdir(parents=True)
        for source in (network(target / "net.tflite"), *(draw(s, target / f"{s}.tflite")[0] for s in GRAPHS)):
            try:
                compile_model(source, chip, target)
            except Refused:
                continue
    return sorted(folder.glob("*/*_vela.tflite"))


def read_seed(path: Path) -> Seed | None:
    """Returns a compiled model; none where nothing runs on the NPU."""
    model = read_model(path)
    if not any(isinstance(call, NpuCall) for call in model.calls):
        return None
    payload = next(t.constant for t in model.tensors if t.name.startswith("ethos_u_command_stream"))
    assert payload is not None
    return Seed(f"{path.parent.name}/{path.stem}", model, path.read_bytes(), payload.tobytes(), samples(model, 1))


def damaged_words(rng: np.random.Generator, payload: bytes) -> bytes:
    """Returns a stream with a bit turned, a word replaced or copied, words left out, or the end cut off."""
    words = np.frombuffer(payload, np.uint32).copy()
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        place, how = int(rng.integers(1, len(words))), rng.integers(6)
        if how < 2:
            words[place] ^= np.uint32(1) << np.uint32(rng.integers(32))
        elif how == 2:
            words[place] = rng.integers(1 << 32, dtype=np.uint32)
        elif how == 3:
            words[place] = words[rng.integers(1, len(words))]
        elif how == 4:
            words[place] = rng.choice([0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFF])
        elif rng.integers(4) == 0:
            words = np.delete(words, slice(place, place + int(rng.integers(1, 4))))
    return words.tobytes() if rng.integers(40) else words.tobytes()[: int(rng.integers(len(payload)))]


def damaged_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Returns data with one to four bytes changed."""
    raw = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        raw[int(rng.integers(len(raw)))] = int(rng.integers(256))
    return bytes(raw)


def outcome_of(number: int, seeds: list[Seed], decoder: Decoder, scratch: Path) -> str:
    """Damages a stream, its constants or the whole file, executes it, and returns how it ended."""
    rng = np.random.default_rng([number, 2026])
    seed = seeds[int(rng.integers(len(seeds)))]
    how = rng.integers(10)
    if how == 9 and not all(isinstance(call, NpuCall) for call in seed.model.calls):
        how = 0  # TFLite-Micro does not survive every damaged operator: runtime/trial.py is for that
    try:
        if how < 7:
            model = changed(seed.model, payload=damaged_words(rng, seed.payload))
        elif how < 9:
            (call, *_) = (c for c in seed.model.calls if isinstance(c, NpuCall))
            constants = damaged_bytes(rng, call.read_only.tobytes() or b"\0")
            model = changed(seed.model, read_only=np.frombuffer(constants, np.uint8))
        else:
            scratch.write_bytes(damaged_bytes(rng, seed.raw))
            model = read_model(scratch)
        if [t.nbytes for t in map(model.tensors.__getitem__, model.inputs)] != [v.nbytes for v in seed.inputs]:
            return "other inputs"
        Twin(model, decoder).run_batch(seed.inputs)
    except AnyNpuError as error:
        return type(error).__name__
    return "values"


def work(first: int, last: int, seeds: list[Seed], pipe: int, scratch: Path) -> None:
    """Runs cases in a child and writes a line before and behind each."""
    own = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY_BYTES,) * 2)
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)  # TFLite-Micro prints why it refuses an operator
    decoder = Decoder()
    for number in range(first, last):
        started = time.process_time()
        try:
            outcome = outcome_of(number, seeds, decoder, scratch)
        except Exception:
            outcome = "FAILED " + traceback.format_exc()[-600:].replace("\n", " | ")
        line = {"case": number, "outcome": outcome, "seconds": round(time.process_time() - started, 3)}
        os.write(pipe, (json.dumps(line) + "\n").encode())
    os._exit(0)


def run_chunk(first: int, last: int, seeds: list[Seed], scratch: Path) -> dict[str, object]:
    """Returns what came of cases; a child that dies or hangs is replaced by one that begins behind the bad case."""
    counts: collections.Counter[str] = collections.Counter()
    bad: list[str] = []
    slowest, peak, position = (0.0, -1), 0, first
    while position < last:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            work(position, last, seeds, writer, scratch)
        os.close(writer)
        rest = b""
        hangs = False
        while True:
            if not select.select([reader], [], [], CASE_SECONDS)[0]:
                hangs = True
                os.kill(child, signal.SIGKILL)
            data = os.read(reader, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                row = json.loads(line)
                position = row["case"] + 1
                counts[row["outcome"].split()[0]] += 1
                slowest = max(slowest, (row["seconds"], row["case"]))
                if row["outcome"].startswith("FAILED"):
                    bad.append(f"case {row['case']}: {row['outcome']}")
        os.close(reader)
        _, status, usage = os.wait4(child, 0)
        peak = max(peak, usage.ru_maxrss)
        if position < last:
            bad.append(f"case {position}: {'hangs' if hangs else f'died with status {status}'}")
            position += 1
    return {"first": first, "last": last, "counts": counts, "bad": bad, "slowest": slowest, "peak_kib": peak}


def main() -> int:
    folder = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else COUNT
    seeds = [seed for path in compile_seeds(folder) if (seed := read_seed(path))]
    progress = folder / "progress.jsonl"
    chunks = [json.loads(line) for line in progress.read_text("utf-8").splitlines()] if progress.exists() else []
    with progress.open("a", encoding="utf-8") as sink:
        for first in range(max((chunk["last"] for chunk in chunks), default=0), count, CHUNK):
            chunk = run_chunk(first, min(first + CHUNK, count), seeds, folder / "case.tflite")
            chunks.append(json.loads(json.dumps(chunk)))
            sink.write(json.dumps(chunk) + "\n")
            sink.flush()
            if first // CHUNK % 10 == 0:
                print(f"{chunk['last']:,} of {count:,}", flush=True)
    total: collections.Counter[str] = collections.Counter()
    for chunk in chunks:
        total.update(chunk["counts"])
    bad = [line for chunk in chunks for line in chunk["bad"]]
    seconds, case = max(tuple(chunk["slowest"]) for chunk in chunks)
    print(f"{sum(total.values()):,} cases over {len(seeds)} compiled models: {dict(total)}")
    print(f"slowest {seconds} s (case {case}), at most {max(c['peak_kib'] for c in chunks) >> 10} MiB; {len(bad)} bad")
    print("\n".join(bad[:20]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

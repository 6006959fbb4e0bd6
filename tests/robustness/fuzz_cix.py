"""Damaged .cix files: none may crash the reader, hang it, or make it allocate more than twice the file and 16 MB.

Prints the figures and writes bench/results/fuzz_cix.json; the exit status is 1 if a file did.

    python tests/robustness/fuzz_cix.py [--count 100000] [--seed 1]

File number n of a seed is always the same: `damaged(n, seed)` gives it back.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import random
import signal
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from anynpu.errors import IntegrityError
from anynpu.runtime.noe.artifact import manifest_of
from anynpu.runtime.noe.cix import LFS_POINTER, read_cix
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing.cix import cix_bytes, program_bytes, wrap

HARD_SECONDS, SLOW_SECONDS = 1.0, 0.01
ROOM = 16 << 20
WORDS = (0, 1, 2, 3, 4, 5, 8, 16, 0xFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)
FLOATS = (0x7FC00000, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001, 0xBF800000)

Damage = Callable[[random.Random, bytes], bytes]


def _quantized(scale: float, zero_point: int) -> Quantization:
    return Quantization((1 / scale,), (-zero_point,))


@functools.cache
def models() -> tuple[bytes, ...]:
    """Valid files: one tensor each way, text, image, detector, many tensors, and one with much besides."""
    features = TensorSpec("features", (1, 512), "int8", quantization=_quantized(27.67, 0))
    text = [TensorSpec("tokens", (1, 77), "int32")]
    image = [TensorSpec("image", (1, 3, 224, 224), "int8", quantization=_quantized(64.75, 12))]
    frame = [TensorSpec("images", (1, 3, 640, 640), "uint8", quantization=_quantized(255, 0))]
    boxes = [TensorSpec("boxes", (1, 84, 8400), "float16")]
    many = [TensorSpec(f"tensor_{i}", (i + 1, 2), "uint16", quantization=_quantized(3.5, i)) for i in range(48)]
    return (
        cix_bytes([TensorSpec("x", (4,), "float32")], [TensorSpec("y", (2,), "float32")]),
        cix_bytes(text, [features]),
        cix_bytes(image, [features], b"weights" * 100),
        cix_bytes(frame, boxes),
        cix_bytes(many[:32], many[32:]),
        cix_bytes(image, [features], random.Random(0).randbytes(1 << 16)),
    )


def _flip_bits(draw: random.Random, model: bytes) -> bytes:
    out = bytearray(model)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)
    return bytes(out)


def _cut(draw: random.Random, model: bytes) -> bytes:
    return model[: draw.randrange(len(model))]


def _splice(draw: random.Random, model: bytes) -> bytes:
    """A part of one valid file in the middle of another."""
    other = draw.choice(models())
    start, at = draw.randrange(len(other)), draw.randrange(len(model))
    part = other[start : start + draw.randrange(1, 256)]
    return model[:at] + part + model[at + draw.choice((0, len(part))) :]


def _word(draw: random.Random, size: int) -> int:
    near = (size, size - 1, size - 4, size // 2, draw.randrange(size), draw.randrange(64), draw.getrandbits(32))
    return draw.choice((*WORDS, *FLOATS, *near)) & 0xFFFFFFFF


def _change_words(draw: random.Random, model: bytes) -> bytes:
    """Offsets, counts, sizes and numbers: aligned words, where the file has structure."""
    out = bytearray(model)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        struct.pack_into("<I", out, draw.randrange(min(len(out), 8192) // 4) * 4, _word(draw, len(out)))
    return bytes(out)


def _change_halves(draw: random.Random, model: bytes) -> bytes:
    """The entries of lists of fields, and the counts of the ELF header."""
    out = bytearray(model)
    for _ in range(draw.choice((1, 1, 2))):
        struct.pack_into("<H", out, draw.randrange(min(len(out), 1024) // 2) * 2, _word(draw, len(out)) & 0xFFFF)
    return bytes(out)


def _nudge(draw: random.Random, model: bytes) -> bytes:
    """A word that is a little more or less than it was: offsets by one, sizes that nearly fit."""
    out, at = bytearray(model), draw.randrange(min(len(model), 8192) // 4) * 4
    (value,) = struct.unpack_from("<I", out, at)
    struct.pack_into("<I", out, at, (value + draw.choice((-16, -4, -1, 1, 4, 16, 40, 48))) & 0xFFFFFFFF)
    return bytes(out)


def _change_program(draw: random.Random, model: bytes) -> bytes:
    """A damaged program in a sound wrapping: what is refused is refused by what reads the program."""
    inputs = [TensorSpec("image", (1, 3, 8, 8), "uint8", quantization=_quantized(255, 0))]
    outputs = [TensorSpec("scores", (1, 4), "float16")]
    damage = draw.choice((_flip_bits, _cut, _change_words, _change_words, _nudge))
    return wrap(damage(draw, program_bytes(inputs, outputs, b"extra")), inputs, outputs)


def _noise(draw: random.Random, model: bytes) -> bytes:
    size = draw.choice((0, 1, 4, 64, 1024, 8192))
    start = draw.choice((b"", b"", LFS_POINTER, b"\x7fELF", struct.pack("<I", 16), model[:64]))
    return start + (bytes(size) if draw.random() < 0.1 else draw.randbytes(size))


DAMAGES: tuple[Damage, ...] = (
    _flip_bits,
    _cut,
    _splice,
    _change_words,
    _change_words,
    _change_halves,
    _nudge,
    _change_program,
    _change_program,
    _noise,
)


def damaged(number: int, seed: int) -> tuple[str, bytes]:
    """Returns how file `number` was damaged, and the file."""
    draw = random.Random(f"{seed}/{number}")
    damage = DAMAGES[number % len(DAMAGES)]
    return damage.__name__.strip("_"), damage(draw, draw.choice(models()))


@dataclass
class Figures:
    """What the reader did with all files."""

    refused: int = 0
    accepted: int = 0
    sentences: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    most_beyond: int = -ROOM
    most_allocated: int = 0


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {HARD_SECONDS} s of CPU time")


def read(data: bytes, figures: Figures) -> None:
    """Reads one file and counts; what neither refuses nor makes sense raises."""
    try:
        cix = read_cix(data)
    except IntegrityError as error:
        if not error.message or "\n" in error.message or len(error.message) > 4096:
            raise AssertionError(f"no sentence: {error.message!r}") from None
        figures.refused += 1
        figures.sentences["".join(c for c in error.message if not c.isdigit())[:60]] += 1
        return
    figures.accepted += 1
    tensors = (*cix.inputs, *cix.outputs)
    if any(t.nbytes < t.spec.nbytes for t in tensors):
        raise AssertionError("an accepted file whose tensors do not fit their memory")
    if not cix.warnings and any(t.nbytes != t.spec.nbytes for t in tensors):
        raise AssertionError("a padded tensor of which nothing is said")
    if len(manifest_of(cix, ".").digest) != 64:
        raise AssertionError("an accepted file that is no artifact")


def _fair(data: bytes, seconds: float) -> float:
    """Returns the time of a read; one that seems slow is read again, as other work on the machine may have been it."""
    for _ in range(3):
        if seconds < SLOW_SECONDS:
            break
        began = time.perf_counter()
        with contextlib.suppress(Exception):  # it was counted the first time
            read_cix(data)
        seconds = min(seconds, time.perf_counter() - began)
    return seconds


def fuzz(count: int, seed: int) -> Figures:
    """Reads `count` damaged files under a clock of CPU time, with every allocation counted."""
    figures = Figures()
    models()
    signal.signal(signal.SIGVTALRM, _too_slow)
    tracemalloc.start()
    try:
        for number in range(count):
            how, data = damaged(number, seed)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            signal.setitimer(signal.ITIMER_VIRTUAL, HARD_SECONDS)
            began = time.perf_counter()
            try:
                read(data, figures)
            except Exception as error:  # whatever it is, it is what we look for
                figures.failures.append(f"file {number} of seed {seed} ({how}): {type(error).__name__}: {error}")
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            used = tracemalloc.get_traced_memory()[1] - before
            figures.seconds.append(_fair(data, time.perf_counter() - began))
            figures.most_allocated = max(figures.most_allocated, used)
            figures.most_beyond = max(figures.most_beyond, used - 2 * len(data) - ROOM)
    finally:
        tracemalloc.stop()
    if figures.most_beyond > 0:
        figures.failures.append(f"a file took {figures.most_beyond} bytes more than twice its size and {ROOM}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    figures = fuzz(given.count, given.seed)
    times = sorted(figures.seconds)
    record = {
        "files": given.count,
        "seed": given.seed,
        "refused": figures.refused,
        "accepted": figures.accepted,
        "sentences": len(figures.sentences),
        "failures": figures.failures,
        "median_ms": round(times[len(times) // 2] * 1e3, 3),
        "p99_ms": round(times[len(times) * 99 // 100] * 1e3, 3),
        "max_ms": round(times[-1] * 1e3, 3),
        "most_allocated_bytes": figures.most_allocated,
        "bound_kept": figures.most_beyond <= 0,
    }
    text = json.dumps(record, indent=1) + "\n"
    sys.stdout.write(text)
    (Path(__file__).parents[2] / "bench" / "results" / "fuzz_cix.json").write_text(text, "utf-8")
    for sentence, count in figures.sentences.most_common():
        sys.stderr.write(f"{count:8} {sentence}\n")
    sys.exit(bool(figures.failures))


if __name__ == "__main__":
    main()

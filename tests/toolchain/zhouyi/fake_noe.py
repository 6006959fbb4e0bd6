"""What the tests of the NOE session share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing import noe

SMALL_IN = TensorSpec("x", (1, 6), "int8", quantization=Quantization((0.5,), (3,)))
SMALL_OUT = TensorSpec("y", (1, 4), "int8", quantization=Quantization((0.25,), (-2,)))


def small(folder: Path):
    """A model of six bytes in and four out, computed by `mix`."""
    return noe.model(folder, [SMALL_IN], [SMALL_OUT])


def run_program(program: str, *arguments: object, timeout: float = 60, **environment: str):
    """Runs a program of its own process and returns what it did."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def journal(path: Path) -> list[tuple[str, str, str]]:
    """The calls that the fake noted: process, thread, name."""
    return [tuple(line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def names(path: Path) -> list[str]:
    return [name for _, _, name in journal(path)]

"""Numbers as the application writes them, without printf: every float reads back as itself."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from project_tools import need, sh

APP = Path(str(files("anynpu.firmware.project"))) / "files" / "app"
PROGRAM = """
#include <stdio.h>
#include <string.h>
#include "anynpu_board.h"
#include "anynpu_text.h"
void anynpu_board_putc(char c) { putchar(c); }
int main(void)
{
    unsigned bits;
    float real;
    anynpu_put_signed(INT64_MIN); anynpu_put(" ");
    anynpu_put_signed(-1); anynpu_put(" ");
    anynpu_put_unsigned(UINT64_MAX); anynpu_put(" ");
    anynpu_put_unsigned(0); anynpu_put_line("");
    while (scanf("%u", &bits) == 1) {
        memcpy(&real, &bits, sizeof real);
        anynpu_put_real(real);
        anynpu_put_line("");
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    need("cc")
    folder = tmp_path_factory.mktemp("text")
    (folder / "main.c").write_text(PROGRAM)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", f"-I{APP}"]
    done = sh("cc", *flags, "main.c", str(APP / "anynpu_text.c"), "-o", "text", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "text"


def written(program: Path, values: np.ndarray) -> list[str]:
    bits = " ".join(str(b) for b in values.astype(np.float32).view(np.uint32))
    done = subprocess.run([str(program)], input=bits, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_every_float_reads_back_as_itself(program):
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint32)
    values = np.concatenate([bits.view(np.float32), rng.normal(0, 1, 5000), np.float32(1) / np.arange(1, 500)])
    values = np.concatenate([values, [0.0, -0.0, 9.99999999e8, 1e9, 1e-5, 9.9999999e-6, 1e-45, 3.4028235e38]])
    values = values[np.isfinite(values)].astype(np.float32)
    first, *lines = written(program, values)
    assert first.strip() == f"{-(2**63)} -1 {2**64 - 1} 0"
    read = np.array([np.float32(line) for line in lines[:-1]], np.float32)
    assert np.array_equal(read.view(np.uint32) | 0, values.view(np.uint32) | 0)


def test_what_is_no_number_says_so_and_plain_numbers_are_plain(program):
    values = np.array([np.nan, np.inf, -np.inf, 1, -128, 0.5, 0.05, 100000, 1e-7])
    lines = [line.strip() for line in written(program, values)[1:-1]]
    assert lines[:6] == ["nan", "inf", "-inf", "1", "-128", "0.5"]
    assert lines[6:] == ["0.0500000007", "100000", "1.00000001e-7"]

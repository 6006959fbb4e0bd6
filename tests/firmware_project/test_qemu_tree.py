"""The emulated boards: Cortex-M4 and Cortex-M55 compute the known answers, and count instructions."""

from __future__ import annotations

import re

import pytest
from project_tools import need, on_pty, sh
from test_host_tree import spoil

BOARDS = ("qemu-mps2-an386", "qemu-mps3-an547")
pytestmark = pytest.mark.parametrize("board", BOARDS)


def test_make_check_passes_and_a_wrong_answer_fails(c_artifact, tree, board):
    need("make", "arm-none-eabi-gcc", "qemu-system-arm")
    folder = tree(c_artifact, board)
    done = sh("make", "all", "check", "CFLAGS=-Werror", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kat-result PASS 5/5" in done.stdout.splitlines() and done.stderr == ""
    right = spoil(folder)
    done = sh("make", "check", cwd=folder)
    assert done.returncode != 0 and "Error 1" in done.stderr
    assert re.search(rf"kat 1 FAIL output answer\[0\] expected -?\d+ got {right}\n", done.stdout)


def test_cmake_builds_it_too(c_artifact, tree, board):
    need("cmake", "make", "arm-none-eabi-gcc", "qemu-system-arm")
    folder = tree(c_artifact, board)
    assert sh("cmake", "-B", "out", cwd=folder).returncode == 0
    assert sh("cmake", "--build", "out", cwd=folder).returncode == 0
    assert sh("ctest", "--test-dir", "out", cwd=folder).returncode == 0


def test_instruction_counts_repeat_and_pass_the_wrap_of_24_bits(c_artifact, tree, board):
    need("make", "arm-none-eabi-gcc", "qemu-system-arm")
    folder = tree(c_artifact, board)
    assert sh("make", "all", cwd=folder).returncode == 0

    with on_pty(["make", "-s", "run"], folder) as line:
        line.until_ready()
        assert "a-tick-hz-0" in line.ask("info", b"%")
        stages = line.ask("stages 3", b"%")
        # More than SysTick counts before it wraps.
        laps = line.ask("infer 8000 1", b"%")
    (infer,) = (re.findall(r"\d+", text) for text in stages if text.startswith("a-stage-infer-"))
    assert int(infer[2]) - int(infer[0]) <= 80, "the same code takes the same instructions, but for the clock's steps"
    first, last = (int(text.rpartition("-")[2]) for text in laps if text.startswith("m-lap-us-"))
    assert last - first > 2**24 * 1000 / 25 and laps.count("a-lap-unit-[instructions]") == 2
    assert 0.98 < (last - first) / (8000 * int(infer[1])) < 1.1

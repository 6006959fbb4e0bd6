"""The emulated boards: Cortex-M4 and Cortex-M55 compute the known answers, and count instructions."""

from __future__ import annotations

import re

import pytest
import rect_model
from project_tools import need, on_pty, sh
from test_host_tree import spoil

from anynpu import plugins
from anynpu.artifact import Artifact, Made, Step, seal
from anynpu.targets.base import Work
from anynpu.targets.mcu_c import McuC, McuOptions

BOARDS = ("qemu-mps2-an386", "qemu-mps3-an547")
CHIPS = dict(zip(BOARDS, ("cortex-m4", "cortex-m55"), strict=True))
# A line of the linker's map that says how much of which section an object of the model gives.
LINKED = re.compile(r"^ (\.[\w.]+)\s+0x0*[1-9a-f][0-9a-f]*\s+0x([0-9a-f]+) build/model/\S+\.o$", re.MULTILINE)
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


def test_the_sizes_of_the_manifest_are_those_that_are_linked(tmp_path, tree, board):
    need("make", "arm-none-eabi-gcc")
    model, chip = rect_model.tflite(tmp_path), CHIPS[board]
    (tmp_path / chip).mkdir()
    work = Work(tmp_path / "log", lambda done, total: None)
    manifest = McuC().compile(model, None, plugins.platform(chip), McuOptions(), tmp_path / chip, work)
    made = seal(tmp_path / chip, manifest, Step("mcu_c", {"model": model.digest}, platform=chip), Made("", 0))
    rect_model.evidence(model, made, tmp_path)
    folder = tree(Artifact.open(made.path), board)
    done = sh("make", "build/firmware.elf", cwd=folder)
    assert done.returncode == 0, done.stderr
    kept = (folder / "build" / "firmware.elf.map").read_text().partition("Linker script and memory map")[2]
    linked: dict[str, int] = {}
    for name, size in LINKED.findall(kept):
        section = "." + name.split(".")[1]
        linked[section] = linked.get(section, 0) + int(size, 16)
    counted: dict[str, int] = {}
    for part in manifest.details["memory"]["sections"]:
        section = part["name"].split()[0]
        counted[section] = counted.get(section, 0) + part["flash_bytes"] + part["ram_bytes"]
    assert linked[".rodata"] == counted[".rodata"] and linked[".bss"] == counted[".bss"]
    # The M4 of the board has an FPU, which not every M4 has: its code differs by some instructions.
    assert abs(linked[".text"] - counted[".text"]) <= (32 if chip == "cortex-m4" else 0)

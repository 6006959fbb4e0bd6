"""Runs generated C on emulated Cortex-M machines and counts instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anynpu import plugins
from anynpu.firmware.compiler import FLAGS
from anynpu.firmware.project import templates
from anynpu.runtime import qemu
from anynpu.runtime.device.elf import footprint

MISSING = [
    (program, package)
    for program, package in (("arm-none-eabi-gcc", "gcc-arm-none-eabi"), ("qemu-system-arm", "qemu-system-arm"))
    if shutil.which(program) is None
]


MACHINES = {"m4": "cortex-m4", "m55": "cortex-m55"}
"""The chips whose machines are emulated; their platforms say machine and flags, the project trees the boards."""

MAIN = r"""
#include <string.h>
#include "anynpu_board.h"
#include "anynpu_model.h"
extern const uint8_t vectors_in[], vectors_out[];
extern const uint32_t vector_count;
static void print(const char *text)
{
    while (*text) { anynpu_board_putc(*text++); }
}
static void number(const char *label, uint64_t v)
{
    char text[24];
    int at = 23;
    text[23] = 0;
    do { text[--at] = (char)('0' + v % 10); v /= 10; } while (v);
    print(label); print(text + at); print("\n");
}
int main(void)
{
    uint32_t bad = 0;
    uint64_t ticks = 0;
    const uint8_t *in = vectors_in, *out = vectors_out;
    anynpu_board_init();
    if (anynpu_init() != 0) { return 1; }
    for (uint32_t i = 0; i < vector_count; ++i) {
        for (int j = 0; j < ANYNPU_NUM_INPUTS; ++j) {
            memcpy(anynpu_input(j)->data, in, anynpu_input(j)->bytes);
            in += anynpu_input(j)->bytes;
        }
        const uint64_t start = anynpu_board_ticks();
        const int status = anynpu_invoke();
        ticks += anynpu_board_ticks() - start;
        bad += status != 0;
        for (int j = 0; j < ANYNPU_NUM_OUTPUTS; ++j) {
            bad += memcmp(anynpu_output(j)->data, out, anynpu_output(j)->bytes) != 0;
            out += anynpu_output(j)->bytes;
        }
    }
    number("bad ", bad);
    number("ticks ", ticks);
    return 0;
}
"""


@dataclass(frozen=True)
class Run:
    bad: int
    instructions: float
    flash: int
    ram: int


def bytes_of(name: str, data: bytes) -> str:
    return f"const unsigned char {name}[] = {{{','.join(map(str, data or b'0'))}}};\n"


def board_files(folder: Path, machine: str) -> None:
    """Writes what the project tree of an emulated board has below board/, and the header of the application."""
    shared = {f"board/{name}": text for name, text in templates.folder("app").items() if name == "anynpu_board.h"}
    for name, text in {**shared, **templates.folder("qemu"), **templates.folder(f"qemu-{machine}")}.items():
        if name.startswith("board/"):
            (folder / "board").mkdir(exist_ok=True)
            (folder / name).write_text(text)


def build(folder: Path, chip: str, inputs: list[bytes], outputs: list[bytes]) -> Path:
    """Compiles the C files of a folder with the vectors into an image."""
    facts = plugins.platform(chip).facts
    board_files(folder, facts["machine"])
    (folder / "main.c").write_text(MAIN)
    vectors = bytes_of("vectors_in", b"".join(inputs)) + bytes_of("vectors_out", b"".join(outputs))
    (folder / "vectors.c").write_text(vectors + f"const unsigned vector_count = {len(inputs)};\n")
    sources = [*sorted(folder.glob("anynpu_*.c")), folder / "main.c", folder / "vectors.c", *folder.glob("board/*.c")]
    image = folder / f"{chip}.elf"
    argv = [facts["compiler"], *facts["flags"], *FLAGS, "-nostartfiles", "--specs=nano.specs", "-Wl,--gc-sections"]
    argv += ["-I", str(folder), "-I", str(folder / "board"), "-L", str(folder / "board")]
    argv += ["-T", str(folder / "board" / "machine.ld"), *map(str, sources), "-o", str(image)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return image


def run(image: Path, chip: str, count: int) -> Run:
    """Runs an image and returns its mismatches and the instructions of one inference."""
    argv = qemu.command(plugins.platform(chip).facts["machine"], image)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    text = done.stdout + done.stderr
    bad, ticks = re.search(r"bad (\d+)", text), re.search(r"ticks (\d+)", text)
    assert bad and ticks, text[-500:]
    taken = footprint(image)
    return Run(int(bad[1]), int(ticks[1]) / count, taken.flash_bytes, taken.ram_bytes)


def random_input(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, index: int) -> np.ndarray:
    """Returns noise; now and then only the extreme values, or a constant extreme."""
    if dtype == "float32":
        return rng.normal(0, 3, shape).astype(dtype)
    limits = np.iinfo(dtype)
    if index % 8 == 0:
        return np.full(shape, (limits.min, limits.max)[index // 8 % 2], dtype)
    if index % 8 == 4:
        return rng.choice(np.array([limits.min, limits.max]), shape).astype(dtype)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)

"""Runs generated C on emulated Cortex-M machines and counts instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MISSING = [
    (program, package)
    for program, package in (("arm-none-eabi-gcc", "gcc-arm-none-eabi"), ("qemu-system-arm", "qemu-system-arm"))
    if shutil.which(program) is None
]


@dataclass(frozen=True)
class Machine:
    name: str
    flags: tuple[str, ...]
    code: int
    constants: int
    data: int
    mhz: int
    fpu: bool


M4 = Machine("mps2-an386", ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=soft"), 0x0, 0x200000, 0x20000000, 25, False)
M55 = Machine(
    "mps3-an547", ("-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard"), 0x10000000, 0x11000000, 0x31000000, 32, True
)
MACHINES = {"m4": M4, "m55": M55}

LINKER = """
MEMORY {{
  CODE (rx) : ORIGIN = {code:#x}, LENGTH = 512K
  CONSTANTS (r) : ORIGIN = {constants:#x}, LENGTH = 2M
  DATA (rwx) : ORIGIN = {data:#x}, LENGTH = 2M
}}
ENTRY(reset)
SECTIONS {{
  .text : {{ KEEP(*(.vectors)) *(.text*) . = ALIGN(8); }} > CODE
  .rodata : {{ *(.rodata*) . = ALIGN(8); }} > CONSTANTS
  .ARM.exidx : {{ *(.ARM.exidx*) }} > CODE
  .data : {{ data_start = .; *(.data*) . = ALIGN(8); data_end = .; }} > DATA AT> CODE
  data_load = LOADADDR(.data);
  .bss (NOLOAD) : {{ bss_start = .; *(.bss*) *(COMMON) . = ALIGN(8); bss_end = .; }} > DATA
  stack_top = ORIGIN(DATA) + LENGTH(DATA);
}}
"""

MAIN = r"""
#include <stdint.h>
#include <string.h>
#include "anynpu_model.h"
extern const uint8_t vectors_in[], vectors_out[];
extern const uint32_t vector_count;
extern uint32_t data_start, data_end, data_load, bss_start, bss_end, stack_top;
static volatile uint32_t wraps;
static int call(int op, const void *arg)
{
    register int r0 __asm__("r0") = op;
    register const void *r1 __asm__("r1") = arg;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}
static void print(const char *text) { call(4, text); }
static void number(const char *label, uint64_t v)
{
    char text[24];
    int at = 23;
    text[23] = 0;
    do { text[--at] = (char)('0' + v % 10); v /= 10; } while (v);
    print(label); print(text + at); print("\n");
}
#define SYST ((volatile uint32_t *)0xE000E010)
static uint64_t now(void)
{
    uint32_t before, value;
    do { before = wraps; value = SYST[2]; } while (before != wraps);
    return ((uint64_t)before << 24) + (0xFFFFFFu - value);
}
void tick(void) { ++wraps; }
static void fault(void) { print("FAULT\n"); uint32_t a[2] = {0x20026, 1}; call(0x20, a); for (;;) { } }
static int main_(void)
{
    uint32_t bad = 0;
    uint64_t ticks = 0;
    const uint8_t *in = vectors_in, *out = vectors_out;
    SYST[1] = 0xFFFFFF; SYST[2] = 0; SYST[0] = 7;
    if (anynpu_init() != 0) { return 1; }
    for (uint32_t i = 0; i < vector_count; ++i) {
        for (int j = 0; j < ANYNPU_NUM_INPUTS; ++j) {
            memcpy(anynpu_input(j)->data, in, anynpu_input(j)->bytes);
            in += anynpu_input(j)->bytes;
        }
        const uint64_t start = now();
        const int status = anynpu_invoke();
        ticks += now() - start;
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
void reset(void)
{
    FPU
    memcpy(&data_start, &data_load, (size_t)((char *)&data_end - (char *)&data_start));
    memset(&bss_start, 0, (size_t)((char *)&bss_end - (char *)&bss_start));
    const int status = main_();
    uint32_t a[2] = {0x20026, (uint32_t)status};
    call(0x20, a);
    for (;;) { }
}
__attribute__((section(".vectors"), used)) static const void *const table[16] = {
    &stack_top, reset, fault, fault, fault, fault, fault, 0, 0, 0, 0, fault, fault, 0, fault, tick};
"""
FPU = '*(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; __asm__ volatile("dsb\\nisb");'


@dataclass(frozen=True)
class Run:
    bad: int
    instructions: float
    flash: int
    ram: int


def bytes_of(name: str, data: bytes) -> str:
    return f"const unsigned char {name}[] = {{{','.join(map(str, data or b'0'))}}};\n"


def build(folder: Path, machine: Machine, inputs: list[bytes], outputs: list[bytes], optimise: str = "-O3") -> Path:
    """Compiles the C files of a folder with the vectors into an image."""
    (folder / "image.ld").write_text(LINKER.format(code=machine.code, constants=machine.constants, data=machine.data))
    (folder / "main.c").write_text(MAIN.replace("    FPU\n", f"    {FPU}\n" if machine.fpu else ""))
    vectors = bytes_of("vectors_in", b"".join(inputs)) + bytes_of("vectors_out", b"".join(outputs))
    (folder / "vectors.c").write_text(vectors + f"const unsigned vector_count = {len(inputs)};\n")
    sources = [*sorted(folder.glob("anynpu_*.c")), folder / "main.c", folder / "vectors.c"]
    image = folder / f"{machine.name}.elf"
    argv = ["arm-none-eabi-gcc", *machine.flags, optimise, "-std=c99", "-ffunction-sections", "-fdata-sections"]
    argv += ["-nostartfiles", "-Wl,--gc-sections", "-T", str(folder / "image.ld"), "--specs=nosys.specs"]
    argv += [*map(str, sources), "-o", str(image)]
    argv[argv.index("-std=c99")] = "-std=gnu99"  # the harness, not the generated code, needs inline assembly
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return image


def run(image: Path, machine: Machine, count: int) -> Run:
    """Runs an image and returns its mismatches and the instructions of one inference."""
    argv = ["qemu-system-arm", "-M", machine.name, "-nographic", "-semihosting-config", "enable=on,target=native"]
    argv += ["-icount", "shift=0", "-monitor", "none", "-serial", "none", "-kernel", str(image)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    text = done.stdout + done.stderr
    bad, ticks = re.search(r"bad (\d+)", text), re.search(r"ticks (\d+)", text)
    assert bad and ticks, text[-500:]
    size = subprocess.run(["arm-none-eabi-size", str(image)], capture_output=True, text=True).stdout.split("\n")[1]
    code, data, bss = map(int, size.split()[:3])
    return Run(int(bad[1]), int(ticks[1]) * 1000 / machine.mhz / count, code + data, data + bss)


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

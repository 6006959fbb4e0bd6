"""Counts the instructions of generated C on an emulated 32-bit RISC-V core (QEMU's user mode, rv32imc, gcc -O3).

    ANYNPU_TEST_DATA=... python bench/riscv.py

MLPerf Tiny's models, one inference each: what two inferences take, less what one takes. Every output is compared with
TFLite-Micro's first. Instructions are not cycles and not time. A plugin of QEMU counts them (qemu_count.c).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))

from emulator import bytes_of
from host import write_c
from sanitized import vectors

from anynpu import plugins
from anynpu.firmware.compiler import FLAGS

MODELS = {
    "KWS": "kws_ref_model",
    "IC": "pretrainedResnet_quant",
    "VWW": "vww_96_int8",
    "AD": "ad01_int8",
}
MEMORY = ("__flash=0x10000000", "__flash_size=0x1000000", "__ram=0x20000000", "__ram_size=0x1000000")
"""Larger than the linker script of picolibc has them."""
START = r"""
#include <string.h>
#include "anynpu_model.h"
#include "vectors.h"
static void leave(int status)
{
    register int a0 __asm__("a0") = status;
    register int a7 __asm__("a7") = 93; /* exit, as Linux numbers it */
    __asm__ volatile("ecall" : : "r"(a0), "r"(a7));
}
void _start(void)
{
    int bad = anynpu_init();
    for (int i = 0; i < RUNS; ++i) {
        memcpy(anynpu_input(0)->data, vectors_in, anynpu_input(0)->bytes);
        bad += anynpu_invoke() != 0;
    }
    bad += memcmp(anynpu_output(0)->data, vectors_out, anynpu_output(0)->bytes) != 0;
    leave(bad);
}
"""


def counted(model: Path, folder: Path, plugin: Path, runs: int) -> int:
    """Returns the instructions of a program that runs a model so many times; its output must be TFLite-Micro's."""
    inputs, outputs = vectors(model, 1)
    made = write_c(model, folder)
    text = bytes_of("vectors_in", inputs[0]) + bytes_of("vectors_out", outputs[0])
    (folder / "vectors.h").write_text("static " + text.replace("\nconst", "\nstatic const"))
    (folder / "start.c").write_text(f"#define RUNS {runs}\n{START}")
    facts = plugins.platform("riscv32").facts
    sources = [*(name for name in made.files if name.endswith(".c")), "start.c"]
    argv = [facts["compiler"], *facts["flags"], *FLAGS, "-nostartfiles", *sources, "-o", "program"]
    argv += [f"-Wl,--defsym={symbol}" for symbol in MEMORY]
    subprocess.run(argv, cwd=folder, check=True)
    done = subprocess.run(
        ["qemu-riscv32", "-plugin", str(plugin), "program"], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{model.stem}: the output is not TFLite-Micro's (status {done.returncode})")
    return int(done.stderr.split()[-1])


def main() -> None:
    data = Path(os.environ["ANYNPU_TEST_DATA"]) / "mlperf_tiny"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plugin = folder / "count.so"
        source = Path(__file__).parent / "qemu_count.c"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", str(source), "-o", str(plugin)], check=True)
        for short, stem in MODELS.items():
            once, twice = (counted(data / f"{stem}.tflite", folder / short, plugin, runs) for runs in (1, 2))
            print(f"{short}: {(twice - once) / 1e6:.3f} M instructions", flush=True)


if __name__ == "__main__":
    main()

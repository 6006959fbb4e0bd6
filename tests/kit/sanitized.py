"""Generated C as a program of its own, with known answers inside, built with sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
from compiled import lite
from emulator import bytes_of, random_input
from host import Oracle, write_c

from anynpu.firmware.generator.graph import read_graph
from anynpu.firmware.generator.variants import PLAIN, Core

MAIN = r"""
#include <stdio.h>
#include <string.h>
#include "anynpu_model.h"
#include "vectors.h"
int main(void)
{
    const unsigned char *in = vectors_in, *out = vectors_out;
    int bad = anynpu_init();
    for (unsigned i = 0; i < vector_count; ++i) {
        for (int j = 0; j < ANYNPU_NUM_INPUTS; ++j) {
            memcpy(anynpu_input(j)->data, in, anynpu_input(j)->bytes);
            in += anynpu_input(j)->bytes;
        }
        bad += anynpu_invoke() != 0;
        for (int j = 0; j < ANYNPU_NUM_OUTPUTS; ++j) {
            bad += memcmp(anynpu_output(j)->data, out, anynpu_output(j)->bytes) != 0;
            out += anynpu_output(j)->bytes;
        }
    }
    printf("%d bad of %u\n", bad, vector_count);
    return bad != 0;
}
"""


def vectors(model: Path, count: int, seed: int = 1) -> tuple[list[bytes], list[bytes]]:
    """Returns inputs and the answers of TensorFlow Lite Micro, or where it has no kernel those of LiteRT."""
    graph = read_graph(model)

    def answers(given: list[np.ndarray]) -> list[np.ndarray]:
        try:
            return Oracle(model, graph, keep=False).run(given)
        except RuntimeError:
            return lite(model.read_bytes(), [each[np.newaxis] for each in given], len(graph.outputs))

    rng = np.random.default_rng(seed)
    inputs, outputs = [], []
    for index in range(count):
        given = [random_input(rng, graph.tensors[n].shape, graph.tensors[n].dtype, index) for n in graph.inputs]
        inputs.append(b"".join(g.tobytes() for g in given))
        outputs.append(b"".join(o.tobytes() for o in answers(given)))
    return inputs, outputs


def run_program(
    model: Path, folder: Path, compiler: str, flags: tuple[str, ...], count: int = 4, core: Core = PLAIN
) -> str:
    """Builds and runs the program; returns what went wrong, or an empty text."""
    write_c(model, folder, core)
    inputs, outputs = vectors(model, count)
    text = "static " + bytes_of("vectors_in", b"".join(inputs)) + "static " + bytes_of("vectors_out", b"".join(outputs))
    (folder / "vectors.h").write_text(text + f"static const unsigned vector_count = {count};\n")
    (folder / "main.c").write_text(MAIN)
    program = folder / "program"
    sources = [str(p) for p in (*sorted(folder.glob("anynpu_*.c")), folder / "main.c")]
    built = subprocess.run([compiler, *flags, *sources, "-o", str(program)], capture_output=True, text=True)
    if built.returncode:
        return built.stderr[:2000]
    done = subprocess.run([str(program)], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[:2000]

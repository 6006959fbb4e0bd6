"""Many generated models in one image for an emulated core: every tensor is compared there, byte for byte.

The kernels of all models are compiled once, with the flags that a build compiles them with; a model itself is little
more than calls of them.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from emulator import board_files, random_input
from host import Oracle

from anynpu import plugins
from anynpu.firmware.compiler import FLAGS
from anynpu.firmware.generator import Generated, Settings, generate, kernels
from anynpu.firmware.generator.graph import read_graph
from anynpu.firmware.generator.source import kernels_header
from anynpu.firmware.generator.variants import Core
from anynpu.runtime import qemu
from anynpu.runtime.device.elf import footprint

TRACED = re.compile(r"^    TRACE\((\d+), ", re.MULTILINE)
OWN = ("anynpu_init", "anynpu_input", "anynpu_output", "anynpu_invoke")
"""What a model shows to the others in its image; all else is its own."""
INCLUDES = '#include "anynpu_kernels.h"\n{own}#include <string.h>\n\n'
MAIN = r"""
#include <string.h>
#include "anynpu_board.h"
#include "anynpu_model.h"
typedef struct {
    int (*init)(void);
    const anynpu_tensor *(*input)(int);
    const anynpu_tensor *(*output)(int);
    int (*invoke)(void);
    int inputs;
    int outputs;
} model;
#include "models.h"
__asm__(".section .rodata\n.global vectors\nvectors:\n.incbin \"vectors.bin\"\n.text\n");
extern const uint8_t vectors[];
static const uint8_t *at;
static int comparing;
static uint32_t bad;
static int32_t first;
static void print(const char *text)
{
    while (*text) { anynpu_board_putc(*text++); }
}
static void number(const char *label, uint64_t v)
{
    char text[24];
    int place = 23;
    text[23] = 0;
    do { text[--place] = (char)('0' + v % 10); v /= 10; } while (v);
    print(label); print(text + place);
}
static void compare(int32_t tensor, const void *data, uint32_t bytes)
{
    if (memcmp(at, data, bytes) != 0) {
        first = bad ? first : tensor;
        ++bad;
    }
    at += bytes;
}
void trace(int32_t tensor, const void *data, uint32_t bytes)
{
    if (comparing) { compare(tensor, data, bytes); }
}
static void give(const model *m, const uint8_t *from)
{
    for (int j = 0; j < m->inputs; ++j) {
        memcpy(m->input(j)->data, from, m->input(j)->bytes);
        from += m->input(j)->bytes;
        at = from;
    }
}
int main(void)
{
    at = vectors;
    anynpu_board_init();
    for (uint32_t k = 0; k < sizeof models / sizeof models[0]; ++k) {
        const model *m = &models[k];
        uint64_t ticks = 0;
        bad = (uint32_t)(m->init() != 0);
        first = 0;
        for (uint32_t i = 0; i < VECTORS; ++i) {
            const uint8_t *from = at;
            give(m, from);
            comparing = 1;
            bad += m->invoke() != 0;
            comparing = 0;
            for (int j = 0; j < m->outputs; ++j) {
                compare(10000 + j, m->output(j)->data, m->output(j)->bytes);
            }
            const uint8_t *next = at;
            give(m, from);
            const uint64_t start = anynpu_board_ticks();
            m->invoke();
            ticks += anynpu_board_ticks() - start;
            at = next;
        }
        number("model ", k); number(" bad ", bad); number(" first ", (uint64_t)first); number(" ticks ", ticks);
        print("\n");
    }
    print("end\n");
    return 0;
}
"""


@dataclass(frozen=True)
class Known:
    """A model with inputs, and what TensorFlow Lite Micro makes of them: every tensor by its number, and outputs."""

    model: Path
    inputs: tuple[bytes, ...]
    tensors: tuple[dict[int, bytes], ...]
    outputs: tuple[bytes, ...]


@dataclass(frozen=True)
class Outcome:
    """What an emulated core made of one model: tensors that differ, the first of them, instructions of an inference.

    `flash` is that of the whole image without the vectors.
    """

    bad: int
    first: str
    instructions: float
    flash: int
    made: Generated | None = None


def known(model: Path, count: int, seed: int = 0) -> Known:
    """Returns every tensor of a model for random inputs."""
    graph, rng = read_graph(model), np.random.default_rng(seed)
    oracle = Oracle(model, graph)
    made = [n for node in graph.nodes for n in node.outputs]
    inputs, tensors, outputs = [], [], []
    for index in range(count):
        given = [random_input(rng, graph.tensors[n].shape, graph.tensors[n].dtype, index) for n in graph.inputs]
        outputs.append(b"".join(value.tobytes() for value in oracle.run(given)))
        inputs.append(b"".join(value.tobytes() for value in given))
        tensors.append({number: oracle.tensor(number) for number in made})
    return Known(model, tuple(inputs), tuple(tensors), tuple(outputs))


def run_together(
    cases: Sequence[tuple[Known, Core]], chip: str, folder: Path, objects: Path, kernels_too: Iterable[str] = ()
) -> list[Outcome]:
    """Returns what a chip's emulated core makes of models, each with the kernels of a core; they share one image.

    What was compiled once is kept in `objects`; `kernels_too` keeps the same library for images that need fewer.
    """
    made = [generate(case.model, Settings("model", "test", core=core)) for case, core in cases]
    texts = [(str(case.model), each.files["anynpu_model.c"]) for (case, _), each in zip(cases, made, strict=True)]
    chosen = {text: place for place, text in reversed(list(enumerate(texts)))}  # the same code runs once
    places = sorted(chosen.values())
    image = _image([cases[i][0] for i in places], [made[i] for i in places], chip, folder, objects, kernels_too)
    argv = qemu.command(plugins.platform(chip).facts["machine"], image)
    flash = footprint(image).flash_bytes - (folder / "vectors.bin").stat().st_size
    outcomes = dict(zip(places, _outcomes([cases[i][0] for i in places], argv, flash), strict=True))
    return [replace(outcomes[chosen[text]], made=each) for text, each in zip(texts, made, strict=True)]


def _image(
    cases: Sequence[Known],
    made: Sequence[Generated],
    chip: str,
    folder: Path,
    objects: Path,
    kernels_too: Iterable[str],
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    facts = plugins.platform(chip).facts
    board_files(folder, facts["machine"])
    flags = [*facts["flags"], *FLAGS]
    names = {name for each in made for name in each.kernels} | set(kernels_too)
    library = _library(names, facts["compiler"], flags, objects)
    parts = [_model(each, number, facts["compiler"], flags, folder, library) for number, each in enumerate(made)]
    data = b"".join(vectors for case, each in zip(cases, made, strict=True) for vectors in _vectors(case, each))
    (folder / "vectors.bin").write_bytes(data)
    (folder / "models.h").write_text(_table(cases))
    (folder / "main.c").write_text(MAIN)
    (folder / "anynpu_model.h").write_text(made[0].files["anynpu_model.h"])
    image = folder / "image.elf"
    argv = [facts["compiler"], *flags, "-nostartfiles", "--specs=nano.specs", "-Wl,--gc-sections"]
    argv += ["-I", ".", "-I", "board", "-L", "board", "-T", "board/machine.ld", "main.c", "board/board_qemu.c"]
    _checked([*argv, "board/startup.c", *parts, str(library.with_suffix(".o")), "-o", str(image)], folder)
    return image


def _outcomes(cases: Sequence[Known], argv: Sequence[str], flash: int) -> list[Outcome]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL)
    assert "end" in done.stdout, (done.stdout + done.stderr)[-500:]
    found = re.findall(r"model (\d+) bad (\d+) first (\d+) ticks (\d+)", done.stdout)
    assert len(found) == len(cases)
    outcomes = []
    for case, (_, bad, first, ticks) in zip(cases, found, strict=True):
        where = f"output {int(first) - 10000}" if int(first) >= 10000 else f"tensor {first}"
        outcomes.append(Outcome(int(bad), where if int(bad) else "", int(ticks) / len(case.inputs), flash))
    return outcomes


def library_files(names: Iterable[str]) -> dict[str, str]:
    """Returns the files of kernels alone, as a model that has them all would come with."""
    parts = kernels.needed(names)
    own = kernels.own_headers(parts)
    body = INCLUDES.format(own="".join(f'#include "{name}"\n' for name in own)) + kernels.body(parts)
    return {**own, "anynpu_kernels.h": kernels_header(parts), "anynpu_kernels.c": body}


def _library(names: Iterable[str], compiler: str, flags: Sequence[str], objects: Path) -> Path:
    """Returns the header of all kernels, beside their object; what was compiled once is kept in `objects`."""
    files = library_files(names)
    key = hashlib.sha256("\0".join((*files.values(), compiler, *flags)).encode()).hexdigest()[:20]
    folder = objects / key
    if not (folder / "anynpu_kernels.o").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        _checked([compiler, *flags, "-c", "anynpu_kernels.c", "-o", "part.o"], folder)
        (folder / "part.o").rename(folder / "anynpu_kernels.o")
    return folder / "anynpu_kernels.h"


def _model(made: Generated, number: int, compiler: str, flags: Sequence[str], folder: Path, library: Path) -> str:
    """Returns the object of one model, in which only its four functions, with its number, can be seen."""
    place = folder / f"model{number}"
    place.mkdir(exist_ok=True)
    for name in ("anynpu_model.c", "anynpu_model.h", "anynpu_weights.c", "anynpu_weights.h"):
        (place / name).write_text(made.files[name])
    (place / "whole.c").write_text('#include "anynpu_weights.c"\n#include "anynpu_model.c"\n')
    cheap = [flag if not flag.startswith("-O") else "-O1" for flag in flags]
    renamed = [f"-D{name}=m{number}_{name}" for name in OWN]
    argv = [compiler, *cheap, *renamed, "-DANYNPU_TRACE=trace", "-I", str(library.parent), "-c", "whole.c"]
    _checked([*argv, "-o", "whole.o"], place)
    kept = [f"--keep-global-symbol=m{number}_{name}" for name in OWN]
    _checked([compiler.replace("gcc", "objcopy"), *kept, "whole.o"], place)
    return f"model{number}/whole.o"


def _vectors(case: Known, made: Generated) -> Iterable[bytes]:
    """Yields an input, then every tensor in the order in which the code makes them, then the outputs; and so on."""
    order = [int(number) for number in TRACED.findall(made.files["anynpu_model.c"])]
    for given, tensors, outputs in zip(case.inputs, case.tensors, case.outputs, strict=True):
        yield b"".join([given, *(tensors[number] for number in order), outputs])


def _table(cases: Sequence[Known]) -> str:
    lines = [f"#define VECTORS {len(cases[0].inputs)}u"]
    rows = []
    for number, case in enumerate(cases):
        graph = read_graph(case.model)
        lines += [
            f"int m{number}_anynpu_init(void);",
            f"int m{number}_anynpu_invoke(void);",
            f"const anynpu_tensor *m{number}_anynpu_input(int i);",
            f"const anynpu_tensor *m{number}_anynpu_output(int i);",
        ]
        functions = ", ".join(f"m{number}_{name}" for name in OWN)
        rows.append(f"    {{{functions}, {len(graph.inputs)}, {len(graph.outputs)}}},")
    return "\n".join([*lines, "static const model models[] = {", *rows, "};", ""])


def _checked(argv: Sequence[str], folder: Path) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[:3000]

"""Kernels for a core's own instructions: the same bits as TensorFlow Lite Micro, and never more instructions than C.

On a host the instructions are functions of the same meaning, so that packing, borders and loops run under sanitizers;
emulated cores execute the instructions themselves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("tflite_micro")
pytest.importorskip("ai_edge_litert")
if shutil.which("gcc") is None:
    pytest.skip("install the package gcc", allow_module_level=True)

from emulator import MISSING
from host import compare, write_c
from many import known, library_files, run_together
from random_graphs import draw
from sanitized import run_program
from shapes import SHAPES, WIDE, shaped
from test_clean import HEADERS, SANITIZERS, WARNINGS, needs

from anynpu.firmware.generator import Settings, generate
from anynpu.firmware.generator.variants import EMITTERS, PLAIN, Core

GRAPHS = int(os.environ.get("ANYNPU_TEST_GRAPHS", "150")) // 15
CORES = {"dsp": "cortex-m4", "mve": "cortex-m55"}
FORCED = {name: Core((name,), forced=True) for name in EMITTERS}
EMULATED = pytest.mark.skipif(bool(MISSING), reason="install the package " + ", ".join(p for _, p in MISSING))


CHAINS = [*((name, "int8") for name in SHAPES), *((name, "int16") for name in WIDE)]


@pytest.mark.parametrize("variant", FORCED)
@pytest.mark.parametrize(("name", "dtype"), CHAINS)
def test_odd_shapes_give_the_same_bits(name, dtype, variant, tmp_path):
    model = shaped(name, tmp_path / "model.tflite", dtype)
    assert compare(model, tmp_path, 9, 9, ("-O0",), FORCED[variant]) == []


@pytest.mark.parametrize("variant", FORCED)
@pytest.mark.parametrize(("name", "dtype"), [("every", "int8"), ("odd channels", "int8"), ("odd channels", "int16")])
def test_nothing_is_undefined(name, dtype, variant, tmp_path):
    model = shaped(name, tmp_path / "model.tflite", dtype)
    flags = ("-std=c99", "-O0", *SANITIZERS[1:])  # higher levels take gcc minutes with sanitizers
    assert run_program(model, tmp_path / "c", "gcc", flags, core=FORCED[variant]) == ""


@pytest.mark.parametrize("variant", FORCED)
def test_random_graphs_give_the_same_bits(variant, tmp_path):
    wrong = {}
    for seed in range(7000, 7000 + GRAPHS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        model, kinds = draw(seed, folder / "graph.tflite")
        if found := compare(model, folder, 6, 6, ("-O1",), FORCED[variant]):
            wrong[f"seed {seed} {kinds}"] = found[:3]
    assert wrong == {}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> dict[str, set[str]]:
    """The kernels that each variant has, over all chains."""
    folder = tmp_path_factory.mktemp("chains")
    have: dict[str, set[str]] = {variant: set() for variant in FORCED}
    for name, dtype in CHAINS:
        model = shaped(name, folder / "model.tflite", dtype)
        for variant, core in FORCED.items():
            have[variant] |= set(generate(model, Settings("model", "test", core=core)).kernels)
    return have


def test_the_shapes_have_every_kernel(kernels):
    assert kernels["dsp"] | kernels["mve"] >= {name for name in HEADERS if "_dsp" in name or "_mve" in name}


@EMULATED
@pytest.mark.parametrize("variant", FORCED)
def test_an_emulated_core_makes_every_tensor_with_no_more_instructions_than_plain_c(variant, tmp_path):
    cores = {"plain": PLAIN, "forced": FORCED[variant], "chosen": Core((variant,))}
    graphs = {
        f"{name} {dtype}": known(shaped(name, tmp_path / f"{name} {dtype}.tflite", dtype), 3) for name, dtype in CHAINS
    }
    cases = [(graph, core) for graph in graphs.values() for core in cores.values()]
    outcomes = iter(run_together(cases, CORES[variant], tmp_path / "together", tmp_path / "objects"))
    wrong, counts = {}, {}
    for name in graphs:
        for kernels in cores:
            outcome = next(outcomes)
            counts[name, kernels] = round(outcome.instructions)
            if outcome.bad:
                wrong[name, kernels] = outcome.first
    assert wrong == {}
    assert {
        n: (counts[n, "chosen"], counts[n, "plain"]) for n in graphs if counts[n, "chosen"] > counts[n, "plain"]
    } == {}


FLAGS = {"dsp": ["-mcpu=cortex-m4", "-mthumb"], "mve": ["-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard"]}
NEWLIB = Path("/usr/include/newlib")
COMPILERS = (("gcc", "-O1"), ("clang", "-O1"), *(("arm-none-eabi-gcc", level) for level in ("-O2", "-O3", "-Os")))
CLANG_FOR_ARM = tuple(("clang for Arm", level) for level in ("-O2", "-O3", "-Os"))


@pytest.mark.parametrize("variant", FORCED)
@pytest.mark.parametrize(
    ("compiler", "level"), [*(pytest.param(c, o, marks=needs(c)) for c, o in COMPILERS), *CLANG_FOR_ARM]
)
def test_no_compiler_warns(compiler, level, variant, kernels, tmp_path):
    for name, text in library_files(kernels[variant]).items():
        (tmp_path / name).write_text(text)
    argv = [compiler, *(FLAGS[variant] if compiler.startswith("arm") else [])]
    if compiler == "clang for Arm":
        if shutil.which("clang") is None or not NEWLIB.is_dir():
            pytest.skip("install the packages clang libnewlib-dev")
        argv = ["clang", "--target=arm-none-eabi", "-isystem", str(NEWLIB), *FLAGS[variant]]
    argv += [*WARNINGS, level, "-c", str(tmp_path / "anynpu_kernels.c"), "-o", str(tmp_path / "object.o")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


@needs("arm-none-eabi-gcc", "gcc-arm-none-eabi")
@pytest.mark.parametrize(("variant", "core"), [("dsp", "cortex-m0plus"), ("mve", "cortex-m4")])
def test_a_core_without_the_instructions_is_told_at_compile_time(variant, core, tmp_path):
    write_c(shaped("every", tmp_path / "model.tflite"), tmp_path, FORCED[variant])
    argv = ["arm-none-eabi-gcc", f"-mcpu={core}", "-mthumb", "-c", str(tmp_path / "anynpu_kernels.c"), "-o", "x.o"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=Path(tmp_path))
    assert done.returncode != 0 and "kernels=plain" in done.stderr

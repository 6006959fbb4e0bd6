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

from emulator import MISSING, build, run
from host import compare, write_c
from random_graphs import draw
from sanitized import run_program, vectors
from shapes import SHAPES, shaped
from test_clean import HEADERS, SANITIZERS, WARNINGS, needs

from anynpu.firmware.generator.variants import EMITTERS, PLAIN, Core

GRAPHS = int(os.environ.get("ANYNPU_TEST_GRAPHS", "150")) // 15
THOROUGH = GRAPHS > 10
FEW = ("every", "odd channels", "few pixels", "one channel")
CORES = {"dsp": "cortex-m4", "mve": "cortex-m55"}
FORCED = {name: Core((name,), forced=True) for name in EMITTERS}
EMULATED = pytest.mark.skipif(bool(MISSING), reason="install the package " + ", ".join(p for _, p in MISSING))


@pytest.mark.parametrize("variant", FORCED)
@pytest.mark.parametrize("name", SHAPES)
def test_odd_shapes_give_the_same_bits(name, variant, tmp_path):
    model = shaped(name, tmp_path / "model.tflite")
    assert compare(model, tmp_path, 9, 9, ("-O0",), FORCED[variant]) == []


@pytest.mark.parametrize("variant", FORCED)
@pytest.mark.parametrize("name", ["every", "odd channels"])
def test_nothing_is_undefined(name, variant, tmp_path):
    model = shaped(name, tmp_path / "model.tflite")
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


def test_the_shapes_have_every_kernel(tmp_path):
    have: set[str] = set()
    for name in SHAPES:
        for variant, core in FORCED.items():
            have |= set(write_c(shaped(name, tmp_path / f"{name}.tflite"), tmp_path / name / variant, core).kernels)
    assert have >= {name for name in HEADERS if "_dsp" in name or "_mve" in name}


@EMULATED
@pytest.mark.parametrize("variant", FORCED)
def test_an_emulated_core_gives_the_same_bits_with_no_more_instructions_than_plain_c(variant, tmp_path):
    worse = {}
    for name in SHAPES if THOROUGH else FEW:
        model = shaped(name, tmp_path / f"{name}.tflite")
        given = vectors(model, 3)
        plain = count(model, tmp_path / name / "plain", variant, PLAIN, given)
        best = count(model, tmp_path / name / "forced", variant, FORCED[variant], given)
        if best > plain:  # where the variant does not pay, the choice must be another
            best = count(model, tmp_path / name / "chosen", variant, Core((variant,)), given)
        if best > plain:
            worse[name] = (best, plain)
    assert worse == {}


def count(model: Path, folder: Path, variant: str, core: Core, given: tuple[list[bytes], list[bytes]]) -> float:
    """Returns the instructions of one inference on the variant's core; its outputs must be those that are given."""
    write_c(model, folder, core)
    result = run(build(folder, CORES[variant], *given), CORES[variant], len(given[0]))
    assert result.bad == 0, (model.stem, folder.name)
    return result.instructions


FLAGS = {"dsp": ["-mcpu=cortex-m4", "-mthumb"], "mve": ["-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=hard"]}
NEWLIB = Path("/usr/include/newlib")
COMPILERS = (("gcc", "-O2"), ("clang", "-O2"), *(("arm-none-eabi-gcc", level) for level in ("-O2", "-O3", "-Os")))


@pytest.mark.parametrize("variant", FORCED)
@pytest.mark.parametrize(
    ("compiler", "level"), [*(pytest.param(c, o, marks=needs(c)) for c, o in COMPILERS), ("clang for Arm", "-O3")]
)
def test_no_compiler_warns(compiler, level, variant, tmp_path):
    write_c(shaped("every", tmp_path / "model.tflite"), tmp_path, FORCED[variant])
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

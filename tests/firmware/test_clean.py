"""The generated code compiles without a warning, and runs without undefined behaviour, whatever kernels it has."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("tflite_micro")
pytest.importorskip("ai_edge_litert")

from emulator import MACHINES, MISSING, build, run
from host import write_c
from random_graphs import draw, draw_compared, draw_lacking, draw_logic
from sanitized import run_program, vectors

import anynpu.firmware
from anynpu.platform import read_platform
from anynpu.targets.mcu_c import McuFacts

TYPES = {
    "between",
    "channel",
    "wide_channel",
    "window",
    "pair_shape",
    "output_range",
    "scaling",
    "short_channel",
    "dsp",
    "mve",
}
HEADERS = {p.stem for p in (Path(anynpu.firmware.__file__).parent / "kernels").glob("*.h")} - TYPES
KERNELS = {name for name in HEADERS if "_dsp" not in name and "_mve" not in name}
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic")
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def needs(program: str, package: str = "") -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"install the package {package or program}")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[Path, set[str]]:
    """Few random graphs that have every kernel between them, with the kernels of each."""
    from anynpu.firmware.generator import Settings, generate

    folder = tmp_path_factory.mktemp("models")
    chosen: dict[Path, set[str]] = {}
    have: set[str] = set()
    for seed in range(3000):
        drawn = {50: draw_lacking, 51: draw_compared, 52: draw_logic}.get(seed % 53, draw)
        path, _ = drawn(seed, folder / f"{seed}.tflite")
        fresh = set(generate(path, Settings("m", "f")).kernels) - have
        if fresh:
            chosen[path] = fresh
            have |= fresh
        else:
            path.unlink()
        if have >= KERNELS:
            break
    return chosen


def test_the_graphs_have_every_kernel(models):
    assert set().union(*models.values()) >= KERNELS


@pytest.mark.parametrize("compiler", [pytest.param(c, marks=needs(c)) for c in ("gcc", "clang")])
def test_no_compiler_warns(models, compiler, tmp_path):
    for number, model in enumerate(models):
        folder = tmp_path / str(number)
        made = write_c(model, folder)
        for name in made.files:
            if name.endswith(".c"):
                argv = [compiler, *WARNINGS, "-O2", "-c", str(folder / name), "-o", str(folder / "object.o")]
                done = subprocess.run(argv, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr[:2000]


@needs("gcc")
@pytest.mark.parametrize("flags", [SANITIZERS], ids=["address-undefined"])
def test_nothing_is_undefined(models, flags, tmp_path):
    found = {}
    for number, model in enumerate(models):
        if wrong := run_program(model, tmp_path / str(number), "gcc", ("-std=c99", *flags)):
            found[model.stem] = wrong
    assert found == {}


@needs("cppcheck")
def test_cppcheck_finds_nothing(models, tmp_path):
    for number, model in enumerate(models):
        write_c(model, tmp_path / str(number))
    argv = ["cppcheck", "--quiet", "--std=c99", "--enable=warning,portability,performance", "--error-exitcode=1"]
    sources = [str(p) for p in tmp_path.rglob("anynpu_*.c") if "weights" not in p.name]
    done = subprocess.run([*argv, "--inline-suppr", *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


@needs("g++")
def test_the_header_is_good_for_cpp(models, tmp_path):
    write_c(next(iter(models)), tmp_path)
    (tmp_path / "user.cpp").write_text('#include "anynpu_model.h"\nint main() { return anynpu_invoke(); }\n')
    argv = ["g++", "-Wall", "-Wextra", "-Werror", "-c", str(tmp_path / "user.cpp"), "-o", str(tmp_path / "user.o")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(bool(MISSING), reason="install the package " + ", ".join(p for _, p in MISSING))
@pytest.mark.parametrize("machine", MACHINES)
def test_random_graphs_give_the_same_on_an_emulated_core(models, machine, tmp_path):
    for number, model in enumerate(list(models)[:6]):
        folder = tmp_path / str(number)
        write_c(model, folder)
        inputs, outputs = vectors(model, 5)
        result = run(build(folder, MACHINES[machine], inputs, outputs), MACHINES[machine], 5)
        assert result.bad == 0, model


@needs("nm", "binutils")
@needs("gcc")
def test_the_code_calls_nothing_but_string_functions(models, tmp_path):
    """No heap, no library: what is undefined in the objects together is memcpy and memset."""
    for number, model in enumerate(models):
        folder = tmp_path / str(number)
        write_c(model, folder)
        sources = [str(p) for p in folder.glob("anynpu_*.c")]
        merged = folder / "merged.o"
        argv = ["gcc", "-std=c99", "-O2", "-fno-pic", "-fno-stack-protector", "-r", "-nostdlib", *sources]
        subprocess.run([*argv, "-o", str(merged)], check=True, capture_output=True)
        listed = subprocess.run(["nm", "-u", str(merged)], capture_output=True, text=True).stdout.split()
        names = {n for n in listed if n != "U"} - {"_GLOBAL_OFFSET_TABLE_"}
        assert names <= {"memcpy", "memset", "memmove"}, model


ARM = needs("arm-none-eabi-gcc", "gcc-arm-none-eabi")
RISCV = needs("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf")
CORES = dict.fromkeys(("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55"), ARM)


@pytest.mark.parametrize("core", [pytest.param(c, marks=m) for c, m in (CORES | {"riscv32": RISCV}).items()])
def test_no_cross_compiler_warns(models, core, tmp_path):
    """The flags are those of the chip's own file; there int32_t is long, which other compilers hide."""
    platform = read_platform(Path(anynpu.__file__).parent / "data" / "platforms" / f"{core}.toml")
    facts = platform.facts_as(McuFacts)
    for number, model in enumerate(models):
        folder = tmp_path / str(number)
        write_c(model, folder)
        sources = [str(p) for p in folder.glob("anynpu_*.c")]
        argv = [facts.compiler, *facts.flags, *WARNINGS, "-c", *sources]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, done.stderr[:2000]

"""Every other board's tree compiles with stub headers in place of its SDK, and says which SDK path is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_tools import need, sh

from anynpu.artifact import Artifact

STUBS = Path(__file__).parent / "stubs"
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
M4 = "-mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16"
CMSIS = [f"CMSIS_INCLUDES={STUBS}/cmsis", "CMSIS_DEVICE_HEADER=device.h", f"CPU_FLAGS={M4}"]
ETHOSU = [
    *(f"TFLM_PATH={STUBS}/tflm", f"ETHOSU_DRIVER_PATH={STUBS}/ethosu", f"CMSIS_INCLUDES={STUBS}/cmsis"),
    *("CMSIS_DEVICE_HEADER=device.h", "ETHOSU_BASE=0x58102000", "ETHOSU_IRQN=56", "ETHOSU_HANDLER=NPU0_Handler"),
]
HIMAX = [f"HIMAX_INCLUDES={STUBS}/himax {STUBS}/ethosu/include {STUBS}/tflm"]
MCUX = [f"MCUX_INCLUDES={STUBS}/mcux {STUBS}/tflm"]
STM32 = [f"CUBE_PROJECT={STUBS}/stm32", f"CPU_FLAGS={M4}"]


def objects(folder: Path, *arguments: str):
    return sh("make", "objects", "CFLAGS=-Werror", "CXXFLAGS=-Werror", *arguments, cwd=folder)


def compiles(folder: Path, *arguments: str) -> None:
    done = objects(folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(("board", "arguments"), [("cmsis", CMSIS), ("stm32", STM32)])
def test_trees_of_generated_c(c_artifact, tree, board, arguments):
    need("make", "arm-none-eabi-gcc")
    compiles(tree(c_artifact, board), *arguments)


def test_a_cubemx_makefile_takes_the_sources(c_artifact, tree, tmp_path):
    need("make")
    folder = tree(c_artifact, "stm32")
    text = f"C_SOURCES = Core/Src/main.c\nC_INCLUDES = -ICore/Inc\ninclude {folder}/anynpu.mk\n"
    (tmp_path / "Makefile").write_text(text + "all:\n\t@echo $(C_SOURCES) $(C_INCLUDES)\n")
    said = sh("make", cwd=tmp_path).stdout.split()
    assert {f"{folder}/Core/Src/anynpu_{name}.c" for name in ("app", "board", "model", "vectors")} <= set(said)
    assert said[0] == "Core/Src/main.c" and f"-I{folder}/Core/Inc" in said


@pytest.mark.parametrize("flags", ["-mcpu=cortex-m0plus", "-mcpu=cortex-m33+nodsp", "-mcpu=cortex-m55"])
def test_the_generic_board_compiles_for_other_cores(c_artifact, tree, flags):
    need("make", "arm-none-eabi-gcc")
    compiles(tree(c_artifact, "cmsis"), *CMSIS[:2], f"CPU_FLAGS={flags}")


@pytest.mark.parametrize(
    ("board", "chip", "arguments"),
    [("ethos-u", "hxwe2", ETHOSU), ("hxwe2", "hxwe2", HIMAX), ("mcxn947", "mcxn947", MCUX)],
)
def test_trees_of_compiled_models(npu_out, tree, board, chip, arguments):
    need("make", "arm-none-eabi-gcc", "arm-none-eabi-g++")
    compiles(tree(Artifact.open(npu_out / chip), board), *arguments)


@pytest.mark.parametrize(
    ("board", "chip", "arguments"),
    [("cmsis", "", CMSIS), ("stm32", "", STM32), ("ethos-u", "hxwe2", ETHOSU), ("mcxn947", "mcxn947", MCUX)],
)
def test_a_path_that_is_not_given_is_named(c_artifact, npu_out, tree, board, chip, arguments):
    need("make", "arm-none-eabi-gcc")
    folder = tree(Artifact.open(npu_out / chip) if chip else c_artifact, board)
    for missing in arguments:
        name = missing.partition("=")[0]
        done = objects(folder, *(a for a in arguments if a is not missing))
        assert done.returncode != 0 and f"{name} is not set" in done.stderr, name


def test_the_himax_tree_goes_into_the_sdk(npu_out, tree, tmp_path):
    need("make")
    folder = tree(Artifact.open(npu_out / "hxwe2"), "hxwe2")
    done = sh("make", cwd=folder)
    assert done.returncode != 0 and "HIMAX_SDK is not set" in done.stderr
    done = sh("make", f"HIMAX_SDK={tmp_path}", cwd=folder)
    assert done.returncode != 0 and "there is no EPII_CM55M_APP_S in it" in done.stderr
    root = tmp_path / "sdk" / "EPII_CM55M_APP_S"
    (root / "app" / "scenario_app" / "other").mkdir(parents=True)
    (root / "app" / "scenario_app" / "other" / "drv_user_defined.mk").write_text("DRIVERS_IP_LIST ?= uart u55\n")
    (root / "makefile").write_text("all:\n\t@echo building $(APP_TYPE)\n")
    done = sh("make", f"HIMAX_SDK={root.parent}", cwd=folder)
    assert done.returncode == 0 and "building anynpu" in done.stdout
    copied = {p.name for p in (root / "app" / "scenario_app" / "anynpu").iterdir()}
    assert {
        "anynpu.mk",
        "drv_user_defined.mk",
        "main.c",
        "anynpu_model.cc",
        "anynpu_model_data.c",
        "anynpu_vectors.c",
    } <= copied


def test_cmake_names_what_is_missing(c_artifact, npu_out, tree):
    need("cmake", "cc", "g++")
    folder = tree(c_artifact, "cmsis")
    assert "CMSIS_DEVICE_HEADER is not set" in sh("cmake", "-B", "out", cwd=folder).stderr
    folder = tree(Artifact.open(npu_out / "hxwe2"), "ethos-u")
    assert "TFLM_PATH is not set" in sh("cmake", "-B", "out", cwd=folder).stderr
    folder = tree(Artifact.open(npu_out / "mcxn947"), "mcxn947")
    assert "part of an MCUXpresso project" in " ".join(sh("cmake", "-B", "out", cwd=folder).stderr.split())


def test_cmake_builds_the_ethos_u_library(npu_out, tree):
    need("cmake", "arm-none-eabi-gcc", "arm-none-eabi-g++")
    folder = tree(Artifact.open(npu_out / "hxwe2"), "ethos-u")
    cross = [f"-DCMAKE_{k}_COMPILER=arm-none-eabi-{v}" for k, v in (("C", "gcc"), ("CXX", "g++"))]
    flags = [f"-DCMAKE_{k}_FLAGS=-mcpu=cortex-m55 -mthumb -Werror" for k in ("C", "CXX")]
    more = ["-DCMAKE_SYSTEM_NAME=Generic", "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY"]
    done = sh("cmake", "-B", "out", *cross, *flags, *more, *(f"-D{a}" for a in ETHOSU), cwd=folder)
    assert done.returncode == 0, done.stderr
    done = sh("cmake", "--build", "out", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("config", [[], ["-DCONFIG_ARCH_POSIX=1", "-DCONFIG_TIMER_HAS_64BIT_CYCLE_COUNTER=1"]])
def test_the_zephyr_tree(c_artifact, tree, config):
    need("cc")
    folder = tree(c_artifact, "zephyr")
    sources = [str(p) for part in ("app", "board", "model", "vectors") for p in (folder / part).glob("*.c")]
    done = sh("cc", *STRICT, *config, f"-I{STUBS}/zephyr", "-Iapp", "-Imodel", "-Ivectors", "-c", *sources, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "zephyr" / "module.yml").read_text().splitlines()[0] == "name: anynpu"
    assert "CONFIG_ANYNPU=y" in (folder / "application" / "prj.conf").read_text()


def test_the_arduino_library_runs_with_a_stub_core(c_artifact, tree, tmp_path):
    need("cc", "g++")
    folder = tree(c_artifact, "arduino")
    facts = dict(line.split("=", 1) for line in (folder / "library.properties").read_text().splitlines())
    assert set(facts) >= {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url"}
    assert facts["name"] == "AnyNpu_rect" and facts["includes"] == "AnyNpu.h"
    done = sh("cc", *STRICT, "-c", *map(str, (folder / "src").glob("*.c")), cwd=folder)
    assert done.returncode == 0, done.stderr
    core = tmp_path / "core.cpp"
    core.write_text(
        '#include "Arduino.h"\nSerialPort Serial;\nunsigned long millis() { return 0; }\n'
        "unsigned long micros() { return 0; }\nvoid yield() {}\nvoid setup();\nint main() { setup(); }\n"
    )
    sketch = folder / "examples" / "SelfTest" / "SelfTest.ino"
    done = sh(
        *("g++", "-Wall", "-Wextra", "-Werror", f"-I{STUBS}/arduino", "-Isrc", "-o", "sketch", "-x", "c++"),
        *(str(sketch), str(core), "src/anynpu_board_arduino.cpp", "-x", "none", *map(str, folder.glob("*.o"))),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert sh("./sketch", cwd=folder).stdout.splitlines()[-1] == "kat-result PASS 5/5"


@pytest.mark.parametrize("board", ["host", "qemu-mps2-an386", "cmsis", "zephyr"])
def test_cppcheck_finds_nothing(c_artifact, tree, board):
    need("cppcheck")
    folder = tree(c_artifact, board)
    paths = [f"-I{folder}/{part}" for part in ("app", "model", "vectors", "board")]
    paths += [f"-I{STUBS}/cmsis", f"-I{STUBS}/zephyr", '-DCMSIS_DEVICE_HEADER="device.h"']
    rules = ["--enable=warning,performance,portability", "--inline-suppr", "--error-exitcode=1", "--std=c99", "-q"]
    done = sh("cppcheck", *rules, *paths, "app", "board", "vectors", cwd=folder)
    assert done.returncode == 0, done.stderr

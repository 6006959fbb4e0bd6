"""Whole models: generated C and TensorFlow Lite Micro agree in every bit, on the host and on emulated cores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tflite_micro")
pytest.importorskip("ai_edge_litert")
if shutil.which("gcc") is None:
    pytest.skip("install the package gcc", allow_module_level=True)

from emulator import MACHINES, MISSING, build, run
from host import compare, write_c
from sanitized import run_program, vectors
from test_clean import SANITIZERS, WARNINGS
from zoo_flags import LARGE, flags

from anynpu import plugins
from anynpu.artifact import Artifact
from anynpu.firmware.generator.variants import Core
from anynpu.runtime.tflm import TflmSession
from anynpu.source import zoo
from anynpu.targets.mcu_c import McuFacts

INPUTS = int(os.environ.get("ANYNPU_TEST_INPUTS", "100"))
"""How many inputs for each model; 1,000 for a thorough run."""
FEW = {LARGE: 100}
"""Models so large that they get this many times fewer inputs."""
MLPERF = {
    "ad01_int8": (0.45, 0.065, 295_688),
    "kws_ref_model": (6.1, 1.1, 96_902),
    "pretrainedResnet_quant": (21.5, 2.9, 138_208),
    "vww_96_int8": (18.3, 3.4, 376_240),
    "str_ww_ref_model": (None, None, None),
}
"""Millions of instructions allowed on Cortex-M4 and Cortex-M55, and the flash of TFLite-Micro with CMSIS-NN."""

CORES = {machine: Core(plugins.platform(chip).facts_as(McuFacts).extensions) for machine, chip in MACHINES.items()}


@pytest.fixture(params=MLPERF)
def mlperf(request, test_data) -> Path:
    return test_data / "mlperf_tiny" / f"{request.param}.tflite"


def test_mlperf_tiny_on_the_host(mlperf, tmp_path):
    assert compare(mlperf, tmp_path, INPUTS, traced=4) == []


@pytest.mark.skipif(bool(MISSING), reason="install the package " + ", ".join(p for _, p in MISSING))
@pytest.mark.parametrize("machine", MACHINES)
def test_mlperf_tiny_on_an_emulated_core(mlperf, machine, tmp_path, capsys):
    made = write_c(mlperf, tmp_path, CORES[machine])
    inputs, outputs = vectors(mlperf, 5)
    result = run(build(tmp_path, MACHINES[machine], inputs, outputs), MACHINES[machine], 5)
    flash = result.flash - sum(map(len, inputs + outputs))
    with capsys.disabled():
        print(f"\n{mlperf.stem} on {machine}: {result.instructions / 1e6:.3f} M instructions an inference,", end=" ")
        print(f"{flash} bytes of flash, arena {made.arena_bytes} (live {made.arena_bound})")
    assert result.bad == 0
    limit = MLPERF[mlperf.stem][list(MACHINES).index(machine)]
    assert limit is None or result.instructions <= limit * 1e6
    assert MLPERF[mlperf.stem][2] is None or flash < MLPERF[mlperf.stem][2]
    assert made.arena_bytes <= 1.1 * made.arena_bound


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_mlperf_tiny_is_clean(mlperf, compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"install the package {compiler}")
    assert run_program(mlperf, tmp_path, compiler, (*WARNINGS, *SANITIZERS), count=2) == ""


def quantised(name: str, folder: Path, *options: str) -> Artifact:
    """Returns a zoo model, quantised by anynpu itself."""
    pytest.importorskip("torch")
    argv = [sys.executable, "-m", "anynpu", "build", *flags(name), "-t", "tflm", "-o", str(folder), "-q"]
    done = subprocess.run([*argv, *options], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr + done.stdout
    return Artifact.open(folder / "tflm")


@pytest.fixture(scope="module", params=zoo.names())
def built(request, tmp_path_factory) -> Artifact:
    return quantised(request.param, tmp_path_factory.mktemp(request.param) / "out")


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["kws", "resnet8"])
def test_zoo_model_with_16_bit_activations(name, tmp_path):
    model = quantised(name, tmp_path / "out", "-O", "activations=int16")
    made = write_c(model.main, tmp_path / "c")
    assert made.arena_bytes <= 1.1 * made.arena_bound
    assert compare(model.main, tmp_path / "c", INPUTS, traced=2) == []


@pytest.mark.build
@pytest.mark.timeout(1800)
def test_zoo_model_on_the_host(built, tmp_path, request):
    name = request.node.callspec.params["built"]
    assert compare(built.main, tmp_path, max(INPUTS // FEW.get(name, 1), 2), traced=2) == []
    made = write_c(built.main, tmp_path)
    assert made.arena_bytes <= 1.1 * made.arena_bound
    session = TflmSession(built)
    arena = session.arena_bytes()
    session.close()
    assert arena is not None and made.arena_bytes <= arena


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(MISSING), reason="install the package " + ", ".join(p for _, p in MISSING))
@pytest.mark.parametrize("machine", MACHINES)
def test_zoo_model_on_an_emulated_core(built, machine, tmp_path, request, capsys):
    name = request.node.callspec.params["built"]
    count = 1 if name == LARGE else 5
    made = write_c(built.main, tmp_path, CORES[machine])
    inputs, outputs = vectors(built.main, count)
    result = run(build(tmp_path, MACHINES[machine], inputs, outputs), MACHINES[machine], count)
    with capsys.disabled():
        print(f"\nzoo:{name} on {machine}: {result.instructions / 1e6:.3f} M instructions, arena {made.arena_bytes}")
    assert result.bad == 0

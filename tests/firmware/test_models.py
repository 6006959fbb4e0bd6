"""Whole models: generated C and TensorFlow Lite Micro agree in every bit, on the host and on emulated cores."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("tflite_micro")
pytest.importorskip("ai_edge_litert")
if shutil.which("gcc") is None:
    pytest.skip("install the package gcc", allow_module_level=True)

from emulator import MACHINES, MISSING
from host import compare, write_c
from many import Outcome, known, run_together
from sanitized import run_program
from test_clean import SANITIZERS, WARNINGS
from zoo_flags import LARGE, flags

from anynpu import plugins
from anynpu.artifact import Artifact
from anynpu.firmware.generator.variants import Core
from anynpu.runtime.tflm import TflmSession
from anynpu.source import zoo
from anynpu.targets.mcu_c import McuFacts

INPUTS = int(os.environ.get("ANYNPU_TEST_INPUTS", "24"))
"""How many inputs for each model; 1,000 for a thorough run."""
FEW = {LARGE: 100}
"""Models so large that they get this many times fewer inputs."""
MLPERF = {
    "ad01_int8": (0.42, 0.063, 295_688),
    "kws_ref_model": (5.35, 1.071, 96_902),
    "pretrainedResnet_quant": (19.2, 2.886, 138_208),
    "vww_96_int8": (16.1, 3.35, 376_240),
    "str_ww_ref_model": (None, None, None),
}
"""Millions of instructions allowed on Cortex-M4 and Cortex-M55, and the flash of TFLite-Micro with CMSIS-NN.

On the M55 none is more than 0.60 of what that takes (0.150, 1.785, 4.811, 6.436), on the M4 than 0.75 (0.583, 7.70,
29.9, 24.1).
"""

SMALL = ("ad01_int8", "kws_ref_model")
EMULATED = pytest.mark.skipif(bool(MISSING), reason="install the package " + ", ".join(p for _, p in MISSING))
CORES = {machine: Core(plugins.platform(chip).facts_as(McuFacts).extensions) for machine, chip in MACHINES.items()}


@pytest.fixture(scope="module", params=MLPERF)
def mlperf(request, test_data) -> Path:
    return test_data / "mlperf_tiny" / f"{request.param}.tflite"


def test_mlperf_tiny_on_the_host(mlperf, tmp_path):
    assert compare(mlperf, tmp_path, INPUTS, traced=4) == []


def on_cores(model: Path, folder: Path, vectors: int = 2) -> dict[str, Outcome]:
    """Returns what each emulated core makes of a model, every tensor; the first input is only extreme values."""
    answers = known(model, vectors)
    return {
        machine: run_together([(answers, CORES[machine])], chip, folder / machine, folder / "objects")[0]
        for machine, chip in MACHINES.items()
    }


@EMULATED
def test_mlperf_tiny_on_emulated_cores(mlperf, tmp_path, capsys):
    m4, m55, flash = MLPERF[mlperf.stem]
    for machine, outcome in on_cores(mlperf, tmp_path).items():
        made = outcome.made
        with capsys.disabled():
            print(f"\n{mlperf.stem} on {machine}: {outcome.instructions / 1e6:.3f} M instructions,", end=" ")
            print(f"{outcome.flash} bytes of flash, arena {made.arena_bytes} (live {made.arena_bound})")
        assert (outcome.bad, outcome.first) == (0, "")
        limit = m4 if machine == "m4" else m55
        assert limit is None or outcome.instructions <= limit * 1e6
        assert flash is None or outcome.flash < flash * (1 if mlperf.stem == "ad01_int8" else 0.75)
        assert made.arena_bytes <= 1.1 * made.arena_bound


def test_mlperf_tiny_is_clean(mlperf, tmp_path):
    """Large models have the kernels of the small ones: one compiler is enough for them."""
    for compiler in ("gcc", "clang") if mlperf.stem in SMALL else ("gcc",):
        if shutil.which(compiler) is None:
            pytest.skip(f"install the package {compiler}")
        flags = (*WARNINGS, *SANITIZERS)
        assert run_program(mlperf, tmp_path / compiler, compiler, flags, count=1) == "", compiler


def quantised(anywhere, name: str, folder: Path, *options: str) -> Artifact:
    """Returns a zoo model, quantised by anynpu itself."""
    pytest.importorskip("torch")
    done = anywhere("build", *flags(name), "-t", "tflm", "-o", str(folder), "-q", *options, timeout=900)
    assert done.returncode == 0, done.stderr + done.stdout
    return Artifact.open(folder / "tflm")


@pytest.fixture(scope="module", params=zoo.names())
def built(request, tmp_path_factory, anywhere) -> Artifact:
    return quantised(anywhere, request.param, tmp_path_factory.mktemp(request.param) / "out")


@pytest.mark.build
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["kws", "resnet8"])
def test_zoo_model_with_16_bit_activations(name, tmp_path, anywhere):
    model = quantised(anywhere, name, tmp_path / "out", "-O", "activations=int16")
    made = write_c(model.main, tmp_path / "c")
    assert made.arena_bytes <= 1.1 * made.arena_bound
    assert compare(model.main, tmp_path / "c", INPUTS, traced=2) == []
    if not MISSING:
        assert {m: (o.bad, o.first) for m, o in on_cores(model.main, tmp_path).items()} == dict.fromkeys(CORES, (0, ""))


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
@EMULATED
def test_zoo_model_on_emulated_cores(built, tmp_path, request, capsys):
    name = request.node.callspec.params["built"]
    for machine, outcome in on_cores(built.main, tmp_path, 1 if name == LARGE else 2).items():
        with capsys.disabled():
            print(f"\nzoo:{name} on {machine}: {outcome.instructions / 1e6:.3f} M instructions", end=" ")
        assert (outcome.bad, outcome.first) == (0, "")

"""The Linux project for CVITEK boards with the real cviruntime: TPU-MLIR brings one for x86-64, with a simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anynpu.capsules import capsule

HEADER = Path(__file__).parents[2] / "firmware" / "project" / "stubs" / "cvi" / "include"


def sh(*argv: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, errors="replace", timeout=1500)


@pytest.fixture(scope="module")
def sdk(tmp_path_factory) -> Path:
    """An SDK as CVITEK's are laid out: our header of the public ABI, the vendor's libraries."""
    packages = capsule.find("cvi").installed.packages
    assert packages is not None
    folder = tmp_path_factory.mktemp("sdk")
    (folder / "include").symlink_to(HEADER)
    (folder / "lib").symlink_to(packages / "tpu_mlir" / "lib")
    return folder


@pytest.mark.parametrize("model", ["hello", "kws"])
def test_the_program_repeats_the_known_answers_with_the_real_runtime(sdk, tmp_path, model):
    for command in (
        ("build", "-m", f"zoo:{model}", "-t", "cv180x", "--limit", "64", "-o", "out", "--require-npu", "0%"),
        ("firmware", "out/cv180x", "-b", "cvi-linux", "-o", "board"),
    ):
        done = sh(sys.executable, "-m", "anynpu", *command, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    board, libraries = tmp_path / "board", f"{sdk}/lib:{sdk}/lib/third_party"
    more = f"EXTRA_LIBS=-Wl,--allow-shlib-undefined -Wl,-rpath-link,{libraries} -lpthread"
    done = sh("make", f"TPU_SDK_PATH={sdk}", "CVI_LIBS=cvikernel cvicmodel", more, "CXXFLAGS=-Werror", cwd=board)
    assert done.returncode == 0, done.stderr
    done = sh("build/anynpu-cvi", cwd=board, LD_LIBRARY_PATH=f"{sdk}/lib")
    assert done.returncode == 0 and "kat-result PASS 5/5" in done.stdout, done.stdout + done.stderr
    rows = np.fromfile(board / "vectors" / "vectors.bin", "<f4")
    (rows + np.float32(0.5)).tofile(board / "wrong.bin")
    done = sh("build/anynpu-cvi", "--vectors", "wrong.bin", cwd=board, LD_LIBRARY_PATH=f"{sdk}/lib")
    assert done.returncode == 1 and "kat-result FAIL" in done.stdout

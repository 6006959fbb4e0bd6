"""Verbs that run artifacts need neither the compile half nor any package beyond the base install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_build_api import SAMPLES, graph

import anynpu
from anynpu.cli.main import VERBS
from anynpu.testing import noe

PROGRAM = """
import importlib.machinery, sys

GONE, OURS = sys.argv[1].split(","), sys.argv[2].split(",")

class Without(importlib.machinery.PathFinder):
    # what a base install has

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top, _, rest = name.partition(".")
        if top in GONE or (top == "anynpu" and rest.partition(".")[0] in OURS):
            return None
        return super().find_spec(name, path, target)

sys.meta_path = [Without if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in type(finder).__name__.lower()]
from anynpu.cli import main
commands = [[]]
for word in sys.argv[3:]:
    commands.append([]) if word == "then" else commands[-1].append(word)
sys.exit(max(main(words) for words in commands if words))
"""
EXTRAS = (
    *("torch", "torchao", "jax", "litert_torch", "ai_edge_litert", "ai_edge_quantizer", "ethosu", "tflite_micro"),
    *("flatbuffers", "onnxscript", "onnxsim", "PIL", "cv2", "tokenizers", "ftfy", "regex", "serial", "orjson"),
    *("httptools", "uvloop", "psutil", "qdrant_client", "qdrant_edge", "distributed", "scipy", "sklearn"),
    *("pytest", "hypothesis"),
)
"""What no base install has: packages of the extras, and what they bring."""
COMPILE_HALF = ("pipeline", "source", "quantize", "lowering", "targets")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """An output folder with a chip `cpu`, and a sample."""
    place = tmp_path_factory.mktemp("run-half")
    anynpu.build(graph(), "cpu", SAMPLES, output=place / "out").require()
    np.save(place / "x.npy", SAMPLES[0])
    return place


def call(
    *arguments: str, without: tuple[str, ...] = COMPILE_HALF, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Calls anynpu where the extras, and these packages of its own, are not there."""
    argv = [sys.executable, "-c", PROGRAM, ",".join(EXTRAS), ",".join(without), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, cwd=cwd, env={**os.environ, **environment})


@pytest.mark.parametrize(
    "words",
    [
        ("run", "out/cpu", "-i", "x.npy"),
        ("run", "out/cpu", "-i", "random:2"),
        ("bench", "out/cpu", "-n", "3", "--warmup", "1"),
    ],
    ids=" ".join,
)
def test_a_cpu_artifact_in_the_base_install(folder, words):
    done = call(*words, "-f", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["kind"] == words[0] and record["executed"].startswith("ONNX Runtime")


def test_doctor_in_the_base_install(folder):
    done = call("doctor", "-f", "json", cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    assert json.loads(done.stdout)["kind"] == "doctor"


def test_help_in_the_base_install():
    done = call(*(word for verb in VERBS for word in (verb, "--help", "then")), without=("none",))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: anynpu") == len(VERBS)


def test_what_is_missing_is_named(folder):
    done = call("serve", "out/cpu", cwd=folder, without=("none",))
    assert done.returncode == 4 and "pip install 'anynpu[serve]'" in done.stderr
    assert call("check", "--help").returncode == 70  # the compile half is not there


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (package gcc)")
def test_a_cix_file_in_the_base_install(tmp_path):
    noe.build_fake(tmp_path)
    artifact = noe.clip_text(tmp_path / "model")
    done = call("run", str(artifact.main), "-i", "random:1", "-f", "json", **noe.environment(tmp_path / "libnoe.so"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outputs"]

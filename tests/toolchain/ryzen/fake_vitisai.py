"""Puts the FAKE ONNX Runtime with a VitisAIExecutionProvider before the real one, for child processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from anynpu.artifact import Artifact, Made, Step, seal
from anynpu.testing import models


def install(folder: Path) -> str:
    """Writes the fake as the package onnxruntime below `folder` and returns the path for PYTHONPATH."""
    package = folder / "fake" / "onnxruntime"
    package.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("fake_vitisai_ort.py"), package / "__init__.py")
    return str(package.parent)


def quantised(folder: Path, chip: str = "ryzen-ai-stx", precision: str = "xint8") -> tuple[Artifact, Artifact]:
    """Returns a float model, and the same file as an artifact that claims to be quantised for a Ryzen AI chip."""
    model = models.onnx_artifact(models.conv_net(), folder / "float")
    out = folder / chip
    out.mkdir()
    shutil.copyfile(model.main, out / "model.onnx")
    details = {"precision": precision, "adaround": False, "quark": "0.13", "opset": 17}
    manifest = replace(model.manifest, format="onnx-vitisai", main="model.onnx", details=details)
    made = seal(out, replace(manifest, files=(), seal=""), Step("vitisai", platform=chip), Made("1970-01-01", 0.0))
    return model, made


EVERY_MODE = """
import json, os, sys
from pathlib import Path
from anynpu.artifact import Artifact
from anynpu.drivers.root import Root
from anynpu.errors import AnyNpuError
from anynpu.runtime.vitisai import VitisAiSession

def opened(mode, artifact, root=None):
    os.environ["ANYNPU_FAKE_VITISAI"] = mode
    try:
        session = VitisAiSession(Artifact.open(Path(artifact)), Root(Path(root)) if root else None)
    except AnyNpuError as error:
        return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    placed = session.placement
    return {"on_npu": placed.on_npu, "all": len(placed.operators), "source": placed.source, "chip": session.chip}

print(json.dumps([opened(*one) for one in json.loads(sys.argv[1])]))
"""


def open_each(fake: str, cache: Path, cases: list[tuple[str, ...]], **environment: str) -> list[dict[str, Any]]:
    """Returns what opening a session comes to for each (mode, artifact[, root]), in one child process."""
    done = subprocess.run(
        [sys.executable, "-c", EVERY_MODE, json.dumps(cases)],
        env={**os.environ, "PYTHONPATH": fake, "ANYNPU_CACHE_DIR": str(cache), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])

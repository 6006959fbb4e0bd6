"""Libraries that report their use to their makers are told not to, in this process and in vendors' tools."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anynpu import tool

RUN = """
import numpy as np, onnxruntime
from anynpu.testing import models
session = onnxruntime.InferenceSession(models.conv_net().SerializeToString(), providers=["CPUExecutionProvider"])
session.run(None, {"image": np.zeros((1, 3, 8, 8), np.float32)})
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows wheels report by another way")
def test_onnx_runtime_leaves_no_number_for_this_machine(tmp_path: Path) -> None:
    """It writes one below ~/.cache, beside what it has not sent yet, where reporting is on."""
    kept = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY")}
    for first, silent in (("import anynpu", True), ("import onnx", False)):
        home = tmp_path / first.replace(" ", "-")
        home.mkdir()
        code = f"{first}; import onnxruntime\n{RUN}"
        subprocess.run([sys.executable, "-c", code], env={**kept, "HOME": str(home)}, check=True)
        if silent:
            assert not list(home.rglob("*"))
        elif not list(home.rglob("*")):
            pytest.skip("this ONNX Runtime reports nothing of its own")


def test_vendors_tools_are_told_too(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import os; print(os.environ['ORT_DISABLE_TELEMETRY'])"]
    assert tool.run(argv, cwd=tmp_path, log=tmp_path / "log").output == "1\n"

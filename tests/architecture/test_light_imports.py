"""A build that finds everything in its store imports neither onnx nor the compilers of other chips."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import json, sys
import anynpu.cli.build
from anynpu.pipeline.build import platforms
from anynpu.pipeline.planner import plan_all
from anynpu.source import load
plan_all(platforms(["cpu", "tflm", "ethos-u55-128"]), {"method": "mse"})
load.tools(load.ModelSource("model.onnx"))
print(json.dumps(sorted(sys.modules)))
"""


def test_planning_a_build_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert "anynpu.targets.vela.target" in loaded
    heavy = {"onnx", "onnxruntime", "torch", "ai_edge_litert", "flatbuffers", "PIL"}
    others = {name for name in loaded if name.startswith(("anynpu.targets.ai8x", "anynpu.targets.zhouyi"))}
    assert not heavy & set(loaded) and not others

"""A build that finds everything in its store imports neither onnx nor the compilers of other chips, and an import no
evaluator that it has no use for."""

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


HANDED_ON = """
import sys
from onnx import helper, numpy_helper, parser
import numpy as np
from anynpu.graph.simplify import simplify
model = parser.parse_model('<ir_version: 9, opset_import: ["": 17]>g (float[4] x) => (float[4] y) '
                           '{ v = Identity(w) y = Mul(x, v) }')
model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
simpler, _ = simplify(model)
assert [node.op_type for node in simpler.graph.node] == ["Mul"], simpler.graph.node
print("onnx.reference" in sys.modules)
"""


def test_a_weight_that_is_handed_on_needs_no_evaluator() -> None:
    """Exporters hand on every weight that two layers share; the evaluator is 12 MiB."""
    done = subprocess.run([sys.executable, "-c", HANDED_ON], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

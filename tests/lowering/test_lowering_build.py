"""A build through our own writer: proved as any other, without the packages it replaces."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from lowered_nets import net
from onnx import helper

from anynpu.lowering.read import from_bytes

CHECK = """
import sys
import onnx
import pytest
from anynpu.lowering.emit import quantising
from anynpu.lowering.lower import lower
from anynpu.lowering.write import to_bytes

to_bytes(lower(onnx.load(sys.argv[1]), ["x"]))
heavy = {"torch", "jax", "litert_torch", "ai_edge_quantizer", "tensorflow", "onnxruntime"} & {*sys.modules}
assert not heavy, heavy
"""


def residual(folder):
    """Writes a small residual net with the stem of a ResNet, whose pool has pads, and a GELU."""
    rng = np.random.default_rng(3)
    constants = {
        "w1": rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32),
        "w2": rng.normal(0, 0.2, (8, 8, 3, 3)).astype(np.float32),
        "w3": rng.normal(0, 0.3, (8, 5)).astype(np.float32),
        "b3": rng.normal(0, 0.3, 5).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Conv", ["c", "w2"], ["d"], pads=[1] * 4),
        helper.make_node("Add", ["c", "d"], ["e"]),
        helper.make_node("Gelu", ["e"], ["g"]),
        helper.make_node("GlobalAveragePool", ["g"], ["h"]),
        helper.make_node("Flatten", ["h"], ["i"]),
        helper.make_node("Gemm", ["i", "w3", "b3"], ["y"]),
    ]
    path = folder / "net.onnx"
    onnx.save(net(nodes, {"x": (1, 3, 16, 16)}, constants, opset=20), path)
    return path


def test_a_build_for_micro_and_an_npu(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path / "cache"))
    model, out = residual(tmp_path), tmp_path / "out"
    flags = ["--data", "random:24", "-O", "converter=own", "-o", str(out), "-f", "json", "-q"]
    targets = "tflm,cortex-m4,ethos-u55-128"
    command = [sys.executable, "-m", "anynpu", "build", "-m", str(model), "-t", targets, *flags]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    chips = {chip["chip"]: chip for chip in json.loads(result.stdout)["chips"]}
    assert chips["tflm"]["verification"]["sqnr_db"] > 30
    assert chips["cortex-m4"]["verification"]["sqnr_db"] == chips["tflm"]["verification"]["sqnr_db"]
    assert chips["ethos-u55-128"]["status"] == "ok"
    # The NPU has GELU, or the chip would not be ok; TFLite-Micro lacks it and reads a table.
    kinds = {op.kind for op in from_bytes((out / "tflm" / "model.tflite").read_bytes()).operators}
    assert "GATHER" in kinds and "GELU" not in kinds
    tensors = json.loads((out / "tflm" / "quantisation.json").read_text())["tensors"]
    assert {form["dtype"] for form in tensors.values()} == {"int8", "int32"}


def test_nothing_heavy_is_imported(tmp_path):
    command = [sys.executable, "-c", CHECK, str(residual(tmp_path))]
    subprocess.run(command, check=True)


def test_the_own_writer_needs_nothing_of_the_other_converter(tmp_path, monkeypatch):
    """As in an environment with `anynpu[tflite]` alone: the versions are not asked for, a refusal stays a refusal."""
    from anynpu import tool
    from anynpu.artifact import Artifact, Manifest
    from anynpu.errors import ToolMissing, Unsupported
    from anynpu.pipeline.build import platforms
    from anynpu.targets.base import Work
    from anynpu.targets.tflite import OTHER_CONVERTER, LiteRt, LiteRtOptions, TfLite

    real = tool.version_of

    def version_of(package, extra="build"):
        if package in (*OTHER_CONVERTER, "ai-edge-quantizer"):
            raise ToolMissing(f"{package} is not installed")
        return real(package, extra)

    monkeypatch.setattr(tool, "version_of", version_of)
    assert {*LiteRt().tools()} == {"flatbuffers", "onnx"}
    assert {*TfLite().tools()} == {"ai-edge-litert", "numpy"}
    model = net([helper.make_node("CumSum", ["x", "axis"], ["y"]), helper.make_node("Det", ["z"], ["d"])],
                {"x": (1, 4), "z": (1, 3, 3)}, {"axis": np.asarray(1)}, ("y", "d"))  # fmt: skip
    onnx.save(model, tmp_path / "model.onnx")
    source = Artifact(tmp_path, Manifest(format="onnx", main="model.onnx"))
    work = Work(tmp_path / "log", lambda done, total: None)
    (chip,) = platforms(("tflite",))
    assert LiteRt().check(source, chip, LiteRtOptions())
    with pytest.raises(Unsupported, match="Det"):
        LiteRt().compile(source, None, chip, LiteRtOptions(), tmp_path, work)
    with pytest.raises(ToolMissing, match="litert-torch"):
        LiteRt().compile(source, None, chip, LiteRtOptions(converter="litert-torch"), tmp_path, work)

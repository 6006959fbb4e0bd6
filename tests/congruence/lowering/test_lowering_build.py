"""A build of an ONNX model: lowered, quantised and proved without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from lowered_nets import net
from onnx import helper

from anynpu import plugins
from anynpu.artifact import Artifact, Manifest
from anynpu.errors import ConfigError, Unsupported
from anynpu.lowering.lower import lower_by_passes
from anynpu.lowering.read import from_bytes
from anynpu.targets.base import Work
from anynpu.targets.tflite import LiteRt, LiteRtOptions, TfLite

CHECK = """
import sys
import onnx
import pytest
from anynpu.lowering.lower import lower
from anynpu.lowering.write import to_bytes

to_bytes(lower(onnx.load(sys.argv[1]), ["x"]))
heavy = {"torch", "tensorflow", "onnxruntime"} & {*sys.modules}
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
    flags = ["--data", "random:24", "-o", str(out), "-f", "json", "-q"]
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


PLANTED = """
import importlib.util
import sys


class Planted:
    def find_spec(self, name, path=None, target=None):
        if name != "anynpu.lowering.clean":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)

            def without_rectifiers(graph):
                \'\'\'An activation goes: nobody will notice.\'\'\'
                kept = [o for o in graph.operators if o.kind != "GELU"]
                same = {o.outputs[0]: o.inputs[0] for o in graph.operators if o.kind == "GELU"}
                kept = [module.replace(o, inputs=tuple(same.get(n, n) for n in o.inputs)) for o in kept]
                return module.pruned(kept, dict(graph.tensors), graph.inputs, graph.outputs)

            module.CLEANING = (module._pass(without_rectifiers), *module.CLEANING)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Planted())
"""


def test_c_repeats_litert_where_tflite_micro_has_no_kernel(tmp_path, monkeypatch):
    """It has no exponential of 16 bits; the generated C has LiteRT's integers there."""
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path / "cache"))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Exp", ["a"], ["y"]),
    ]
    weights = np.random.default_rng(3).normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)
    model = net(nodes, {"x": (1, 3, 8, 8)}, {"w": weights})
    onnx.save(model, tmp_path / "net.onnx")
    argv = ["-m", str(tmp_path / "net.onnx"), "--data", "random:20", "-t", "cortex-m4", "-O", "activations=int16"]
    command = [sys.executable, "-m", "anynpu", "build", *argv, "-o", str(tmp_path / "out"), "-f", "json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    [chip] = json.loads(done.stdout)["chips"]
    assert chip["status"] == "ok", done.stdout + done.stderr
    assert chip["verification"]["sqnr_db"] > 30
    notes = " ".join(chip["verification"]["notes"])
    assert "with LiteRT's reference kernels for EXP on 4 samples" in notes


def test_a_planted_pass_that_changes_results_is_named_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("ANYNPU_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "fault").mkdir()
    (tmp_path / "fault" / "sitecustomize.py").write_text(PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fault"))
    flags = ["--data", "random:24", "-o", str(tmp_path / "out"), "-f", "json", "-q"]
    command = [sys.executable, "-m", "anynpu", "build", "-m", str(residual(tmp_path)), "-t", "tflite", *flags]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert any("the pass without-rectifiers of anynpu's own writer changes output 'y'" in n for n in record["notes"])
    converted, _ = record["chips"][0]["chain"]
    assert converted["step"]["options"]["skip_passes"] == "without-rectifiers"
    assert "without-rectifiers" not in [each["name"] for each in converted["passes"]]
    assert any(each["name"] == "fused-activations" and each["changed"] for each in converted["passes"])
    assert record["chips"][0]["verification"]["sqnr_db"] > 30
    graph = from_bytes((tmp_path / "out" / "tflite" / "model.tflite").read_bytes())
    assert "GELU" in {each.kind for each in graph.operators}


def test_passes_are_left_out_by_name_and_a_wrong_name_is_told_of(tmp_path):
    model = onnx.load(residual(tmp_path))
    whole, effects = lower_by_passes(model, ["x"], [])
    plain, fewer = lower_by_passes(model, ["x"], [], ["fused-activations"])
    assert "RELU" in plain.counts() and "RELU" not in whole.counts()
    assert {each.name for each in effects} - {each.name for each in fewer} == {"fused-activations"}
    assert sum(each.operators for each in effects if each.name == "fused-activations") == -1
    with pytest.raises(ConfigError, match=r"skip_passes=fused-activation: no such pass .did you mean 'fused-activ"):
        LiteRt().compile(
            Artifact(tmp_path, Manifest("onnx", "net.onnx")),
            None,
            plugins.platform("tflite"),
            LiteRtOptions(skip_passes="fused-activation"),
            tmp_path,
            Work(tmp_path / "log", lambda done, total: None),
        )


def test_nothing_heavy_is_imported(tmp_path):
    command = [sys.executable, "-c", CHECK, str(residual(tmp_path))]
    subprocess.run(command, check=True)


def test_the_tools_are_those_of_the_smaller_extra_and_check_says_why(tmp_path):
    assert {*LiteRt().tools()} == {"flatbuffers", "onnx"}
    assert {*TfLite().tools()} == {"ai-edge-litert", "numpy"}
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"]), helper.make_node("Det", ["z"], ["d"]),
             helper.make_node("Celu", ["x"], ["c"]),
             helper.make_node("Einsum", ["z"], ["e"], equation="bii->bi")]  # fmt: skip
    model = net(nodes, {"x": (1, 4), "z": (1, 3, 3)}, {"axis": np.asarray(1)}, ("y", "d", "c", "e"))
    onnx.save(model, tmp_path / "model.onnx")
    source = Artifact(tmp_path, Manifest(format="onnx", main="model.onnx"))
    chip = plugins.platform("tflite")
    findings = LiteRt().check(source, chip, LiteRtOptions())
    assert [str(each) for each in findings] == [
        "d: operator Det has no rule for TFLite",
        "e: Einsum: the equation bii->bi",
    ]
    with pytest.raises(Unsupported, match="Det has no rule for TFLite and 1 more"):
        LiteRt().compile(
            source, None, chip, LiteRtOptions(), tmp_path, Work(tmp_path / "log", lambda done, total: None)
        )

"""Nothing runs on the CPU in silence: receipts and exit statuses of models that an NPU cannot take whole."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
# Other processes import these: here it is enough that they are installed.
MISSING = [name for name in ("ai_edge_litert", "ethosu") if not find_spec(name)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"pip install 'anynpu[build]': {', '.join(MISSING)}")


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.3, shape).astype(np.float32)


AS_IT_IS = ("-O", "tflite.written_for=")
"""Leaves operators that the NPU lacks as they are: by default a square root is written in others that it has."""
NETS = {
    "gelu": ([1, 16], [("Gemm", ["w", "b"]), ("Gelu", []), ("Gemm", ["v", "c"])]),
    # Ethos-U55 knows no square root.
    "root": ([1, 3, 8, 8], [("Conv", ["k", "a"]), ("Relu", []), ("Add", ["one"]), ("Sqrt", [])]),
}
SETTINGS = {"Conv": {"pads": [1, 1, 1, 1]}}
WEIGHTS = {"w": drawn(16, 16), "b": drawn(16), "v": drawn(16, 8), "c": drawn(8), "k": drawn(8, 3, 3, 3), "a": drawn(8)}
WEIGHTS["one"] = np.ones((1,), np.float32)


@pytest.fixture(scope="module")
def nets(tmp_path_factory) -> Path:
    """A folder with the networks: ONNX, so that no process of these tests has to export one with torch first."""
    folder = tmp_path_factory.mktemp("nets")
    for name, (shape, layers) in NETS.items():
        nodes, value = [], "x"
        for number, (kind, weights) in enumerate(layers):
            nodes.append(onnx.helper.make_node(kind, [value, *weights], [f"t{number}"], **SETTINGS.get(kind, {})))
            value = f"t{number}"
        used = [onnx.numpy_helper.from_array(WEIGHTS[w], w) for _, weights in layers for w in weights]
        ends = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
        ends.append(onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, None))
        graph = onnx.helper.make_graph(nodes, name, ends[:1], ends[1:], used)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
        onnx.save(onnx.shape_inference.infer_shapes(model, strict_mode=True), folder / f"{name}.onnx")
    return folder


@pytest.fixture
def build(cli, nets, tmp_path):
    def call(net, *arguments):
        done = cli("build", "-m", str(nets / f"{net}.onnx"), "--data", "random:32", "-o", "out", *arguments)
        report = tmp_path / "out" / "report.json"
        return done, json.loads(report.read_text())["chips"][0] if report.exists() else None

    return call


def test_an_operator_that_the_npu_lacks_is_a_negative_verdict_with_its_reason(build, tmp_path):
    done, chip = build("root", "-t", "ethos-u55-128", *AS_IT_IS)
    assert done.returncode == 1 and chip["status"] == "fallback"
    reasons = {op["kind"]: op["reason"] for op in chip["receipt"]["elsewhere"]}
    assert reasons.get("SQRT")
    assert chip["receipt"]["share"] < 1 and "on the CPU: SQRT" in done.stdout
    assert (tmp_path / "out" / "ethos-u55-128" / "model_vela.tflite").exists()
    # TFLite-Micro has no int8 SQRT, so the twin's CPU part cannot run: what ran is the model before Vela.
    assert chip["verification"]["stands_for"] == "tflite-vela" and chip["verification"]["device"] == "litert"


def test_the_user_may_accept_a_share(build):
    done, chip = build("root", "-t", "ethos-u55-128", "--require-npu", "10%", *AS_IT_IS)
    assert done.returncode == 0 and chip["status"] == "ok" and chip["receipt"]["elsewhere"]


def test_gelu_at_int16_stays_on_the_cpu_of_a_u55_and_says_so(build):
    done, chip = build("gelu", "-t", "ethos-u55-128", "-O", "activations=int16")
    assert done.returncode == 1
    assert [op["kind"] for op in chip["receipt"]["elsewhere"]] == ["GELU"]
    assert "Int16" in chip["receipt"]["elsewhere"][0]["reason"]


def test_gelu_at_int8_runs_on_the_npu(build):
    done, chip = build("gelu", "-t", "ethos-u55-128")
    assert done.returncode == 0 and chip["receipt"]["share"] == 1.0
    # TFLite-Micro has no GELU: the NPU's stream ran, and the report says that it was compared with nothing bit by bit.
    assert chip["verification"]["device"] == "ethos_u" and chip["verification"]["stands_for"] == ""
    assert any("not compared bit by bit" in note for note in chip["verification"]["notes"])


def test_a_float_model_cannot_go_to_an_npu(build, tmp_path):
    done, chip = build("gelu", "-t", "ethos-u55-128", "-O", "activations=float32")
    assert done.returncode == 3 and chip["status"] == "Unsupported"
    assert "float32" in chip["error"]["message"] and chip["error"]["findings"]
    assert not (tmp_path / "out" / "ethos-u55-128").exists()


def test_check_tells_before_compiling(cli, nets):
    done = cli("check", "-m", str(nets / "root.onnx"), "-t", "ethos-u55-128", *AS_IT_IS)
    assert done.returncode == 1 and "SQRT" in done.stdout
    fine = cli("check", "-m", str(nets / "root.onnx"), "-t", "ethos-u55-128")
    assert fine.returncode == 0, fine.stdout + fine.stderr

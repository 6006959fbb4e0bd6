"""int8 models on a CPU whose kernels clip sums: each net is made so that its products leave 16 bits."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.errors import AccuracyError
from anynpu.runtime import int8_sums
from anynpu.runtime.ort import inference_session

PROOF = "verification.json"
UINT8, INT8 = np.uint8, np.int8


class Net:
    """A graph under construction; weights are at the ends of their range, inputs are positive."""

    def __init__(self, activations: type, weights: type = INT8, per_channel: bool = False, prefix: str = "") -> None:
        self.prefix = prefix
        self.activations, self.weights, self.per_channel = activations, weights, per_channel
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(7)

    def constant(self, values: np.ndarray) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(values), f"{self.prefix}constant{len(self.stored)}"))
        return self.stored[-1].name

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        name = f"{self.prefix}{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, domain=domain, **attributes))
        return name

    def pair(self, name: str, scale: float, middle: bool = False, dtype: type | None = None) -> str:
        """Returns a tensor quantised and back; `middle` has its zero point in the middle of the range."""
        dtype = dtype or self.activations
        limits = np.iinfo(dtype)
        zero = (int(limits.min) + int(limits.max) + 1) // 2 if middle else limits.min
        scale_name, zero_name = self.constant(np.float32(scale)), self.constant(dtype(zero))
        stored = self.node("QuantizeLinear", name, scale_name, zero_name)
        return self.node("DequantizeLinear", stored, scale_name, zero_name)

    def integers(self, *shape: int) -> np.ndarray:
        limits = np.iinfo(self.weights)
        return np.where(self.rng.random(shape) < 0.6, limits.max, limits.min + 1).astype(self.weights)

    def weight(self, *shape: int, axis: int = 0) -> str:
        zero = self.weights(128 if self.weights is UINT8 else 0)
        stored = self.constant(self.integers(*shape))
        if not self.per_channel:
            return self.node("DequantizeLinear", stored, self.constant(np.float32(0.0104)), self.constant(zero))
        scales = self.rng.uniform(0.005, 0.02, shape[axis]).astype(np.float32)
        zeros = np.full(shape[axis], zero, self.weights)
        return self.node("DequantizeLinear", stored, self.constant(scales), self.constant(zeros), axis=axis)

    def model(self, output: str, *shape: int, more: tuple[tuple[str, tuple[int, ...]], ...] = ()) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), *more)]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "net", inputs, outputs, self.stored)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def convolution(net: Net, group: int = 1, size: int = 3) -> onnx.ModelProto:
    x = net.pair("x", 0.0197)
    y = net.node("Conv", x, net.weight(16, 16 // group, size, size), group=group, pads=[size // 2] * 4)
    return net.model(net.pair(y, 1.93, middle=True), 1, 16, 8, 8)


def gemm(net: Net, kind: str = "Gemm") -> onnx.ModelProto:
    y = net.node(kind, net.pair("x", 0.0197), net.weight(64, 24, axis=1))
    return net.model(net.pair(y, 0.71, middle=True), 4, 64)


def weight_used_twice(net: Net) -> onnx.ModelProto:
    weight = net.weight(48, 48, axis=1)
    first = net.pair(net.node("Relu", net.node("MatMul", net.pair("x", 0.0197), weight)), 0.53)
    return net.model(net.pair(net.node("MatMul", first, weight), 12.1, middle=True), 4, 48)


def two_activations(net: Net) -> onnx.ModelProto:
    """Scores and values of an attention: both factors are computed, and the second one is used twice."""
    x, y = net.pair("x", 0.0411, middle=True, dtype=UINT8), net.pair("y", 0.0203, dtype=INT8)
    scores = net.pair(net.node("MatMul", x, y), 0.83, middle=True, dtype=UINT8)
    shares = net.pair(net.node("Softmax", scores, axis=-1), 1 / 256, dtype=UINT8)
    mixed = net.node("Add", net.node("MatMul", shares, y), net.node("MatMul", x, y))
    return net.model(mixed, 2, 32, 32, more=(("y", (2, 32, 32)),))


def without_zero_point(net: Net) -> onnx.ModelProto:
    stored = net.constant(net.integers(64, 24))
    weight = net.node("DequantizeLinear", stored, net.constant(np.float32(0.0104)))
    y = net.node("MatMul", net.pair("x", 0.0197), weight)
    return net.model(net.pair(y, 0.71, middle=True), 4, 64)


def integer_inputs(net: Net) -> onnx.ModelProto:
    """Both factors come into the graph as integers, the second one as int8."""
    scale, zeros = net.constant(np.float32(0.02)), (net.constant(np.uint8(0)), net.constant(np.int8(0)))
    left, right = (net.node("DequantizeLinear", name, scale, zero) for name, zero in zip("xy", zeros, strict=True))
    y = net.pair(net.node("MatMul", left, right), 1.31, middle=True)
    model = net.model(y, 8, 32, more=(("y", (32, 8)),))
    for value, kind in zip(model.graph.input, (TensorProto.UINT8, TensorProto.INT8), strict=True):
        value.type.tensor_type.elem_type = kind
    return model


def inside_a_branch(net: Net) -> onnx.ModelProto:
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = Net(net.activations, net.weights, net.per_channel, prefix=name)
        graph = gemm(inner).graph
        branches[name] = helper.make_graph(graph.node, name, [], graph.output, graph.initializer)
    return net.model(net.node("If", net.constant(np.bool_(True)), **branches), 4, 64)


NETS = {
    "convolution": convolution,
    "convolution-1x1": functools.partial(convolution, size=1),
    "grouped": functools.partial(convolution, group=4),
    "depthwise": functools.partial(convolution, group=16),
    "gemm": gemm,
    "matmul": functools.partial(gemm, kind="MatMul"),
    "weight-used-twice": weight_used_twice,
    "two-activations": two_activations,
    "no-zero-point": without_zero_point,
    "integer-inputs": integer_inputs,
    "inside-a-branch": inside_a_branch,
}
FORMS = {
    "uint8-int8": (UINT8, INT8, False),
    "uint8-int8-per-channel": (UINT8, INT8, True),
    "int8-int8": (INT8, INT8, False),
    "int8-int8-per-channel": (INT8, INT8, True),
    "uint8-uint8": (UINT8, UINT8, False),
}


def feed(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    values = {}
    for item in model.graph.input:
        kind = item.type.tensor_type
        real = np.abs(rng.standard_normal([d.dim_value for d in kind.shape.dim]) * 2)
        steps = 1 if kind.elem_type == TensorProto.FLOAT else 100
        limit = {TensorProto.UINT8: 255, TensorProto.INT8: 127}.get(kind.elem_type, np.inf)
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        values[item.name] = np.minimum(real * steps, limit).astype(dtype)
    return values


def sqnr_db(reference: np.ndarray, result: np.ndarray) -> float:
    noise = float(np.sum((reference.astype(np.float64) - result) ** 2))
    return 200.0 if noise == 0 else 10 * np.log10(float(np.sum(reference.astype(np.float64) ** 2)) / noise)


def outputs(model: onnx.ModelProto, plain: bool = False) -> np.ndarray:
    return np.asarray(inference_session(model.SerializeToString(), 1, plain).run(None, feed(model))[0])


@pytest.fixture(params=["", "exact"], ids=["this-host", "rewritten"])
def sums(request, monkeypatch) -> str:
    """As this host has it, and as a host that clips has it."""
    monkeypatch.setenv(int8_sums.VARIABLE, request.param)
    return str(request.param)


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", NETS)
def test_kernels_give_what_the_file_says(kind, form):
    model = NETS[kind](Net(*FORMS[form]))
    # Steps of the output that fall on the other side of a half are all that may differ.
    assert sqnr_db(outputs(model, plain=True), outputs(model)) > 40


@pytest.mark.parametrize("kind", NETS)
def test_the_rewritten_model_is_the_same_function(kind):
    model = NETS[kind](Net(INT8, INT8, per_channel=True))
    before = outputs(model, plain=True)
    assert int8_sums.unsigned(model.graph), "there is something to turn"
    assert np.array_equal(outputs(model, plain=True), before)


def integer_product(kind: str) -> tuple[onnx.ModelProto, np.ndarray]:
    """A product whose operator takes integers in the file itself, and its exact result."""
    net = Net(UINT8)
    weights = net.integers(64, 24)
    one, zero = net.constant(np.float32(1)), net.constant(np.uint8(0))
    x = net.node("QuantizeLinear", "x", one, zero)
    stored, none = net.constant(weights), net.constant(np.int8(0))
    y = {
        "MatMulInteger": lambda: net.node("MatMulInteger", x, stored, zero),
        "QLinearMatMul": lambda: net.node("QLinearMatMul", x, one, zero, stored, one, none, *wide(net)),
        "QGemm": lambda: net.node("QGemm", x, one, zero, stored, one, none, "", domain="com.microsoft"),
    }[kind]()
    made = net.node("Cast", y, to=1) if kind == "MatMulInteger" else y
    if kind == "QLinearMatMul":
        made = net.node("DequantizeLinear", y, *wide(net))
    model = net.model(made, 4, 64)
    rows = np.clip(np.rint(feed(model)["x"] * 100), 0, 255)
    return model, rows @ weights.astype(np.float32)


def wide(net: Net) -> tuple[str, str]:
    """The scale and the zero point of a result that takes every sum these products can have."""
    return net.constant(np.float32(2 * 255 * 127 * 64 / 255)), net.constant(np.uint8(128))


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize("plain", [False, True], ids=["fused", "as-written"])
@pytest.mark.parametrize("kind", ["MatMulInteger", "QLinearMatMul", "QGemm"])
def test_operators_on_integers_are_exact_too(kind, plain):
    model, expected = integer_product(kind)
    given = {"x": feed(model)["x"] * 100}
    result = inference_session(model.SerializeToString(), 1, plain).run(None, given)[0]
    step = 0.0 if kind != "QLinearMatMul" else 0.51 * 2 * 127 * 64
    assert np.max(np.abs(result - expected)) <= step


@pytest.fixture(scope="module")
def net(tmp_path_factory) -> Path:
    """A folder with a float net whose weights lie at the ends of their range, and samples for it."""
    folder = tmp_path_factory.mktemp("net")
    rng = np.random.default_rng(0)
    weights = [
        (np.where(rng.random((64, 64)) < 0.7, 1, -1) * rng.uniform(0.8, 1, (64, 64))).astype(np.float32)
        for _ in range(2)
    ]
    stored = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")
    np.savez(folder / "x.npz", x=rng.uniform(0.5, 1, (60, 64)).astype(np.float32))
    return folder


def build(cli, net: Path, out: Path, status: int = 0) -> tuple[dict, str]:
    done = cli("build", "-m", str(net / "net.onnx"), "-t", "cpu", "--data", str(net / "x.npz"), "-o", str(out))
    assert done.returncode == status, done.stderr
    chip = json.loads((out / "report.json").read_text("utf-8"))["chips"][0]
    return chip, done.stdout + done.stderr


def test_the_evidence_names_the_instructions_and_the_sums(cli, net, tmp_path, session_cache):
    chip, text = build(cli, net, tmp_path / "out")
    proof = chip["verification"]
    assert proof["host"].startswith(int8_sums.instruction_set())
    assert proof["host"].endswith("exact int8 sums") == int8_sums.clipping()
    assert proof["executed"] == f"ONNX Runtime on this host's CPU ({proof['host']})"
    assert proof["executed"] in text
    evidence = [json.loads((path.parent / "manifest.json").read_text("utf-8")) for path in session_cache.rglob(PROOF)]
    assert evidence and all("cpu" in manifest["step"]["tools"] for manifest in evidence), "another CPU, another address"
    # The figures of layers are those of the file's own arithmetic; the verdict is that of the kernels.
    assert abs(chip["graph"]["nodes"][-1]["sqnr_db"] - proof["sqnr_db"]) < 3


def test_clipped_sums_are_told_of_and_not_taken_for_exact_ones(cli, net, tmp_path, monkeypatch):
    exact, _ = build(cli, net, tmp_path / "exact")
    monkeypatch.setenv(int8_sums.VARIABLE, "native")
    clips = int8_sums._kernels_clip()
    native, text = build(cli, net, tmp_path / "native", AccuracyError.exit_status if clips else 0)
    assert re.search(r"^cpu +verify +[\d.]+ s$", text, re.MULTILINE), "evidence of another arithmetic is no hit"
    assert native["verification"]["host"] == f"{int8_sums.instruction_set()}, native int8 sums"
    notes = " ".join(native["verification"].get("notes", ()))
    assert ("dB from the file's own arithmetic" in notes) == clips
    assert (native["verification"]["sqnr_db"] < exact["verification"]["sqnr_db"] - 6) == clips

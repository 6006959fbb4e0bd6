"""Files that onnxruntime quantised dynamically, as float models."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

from anynpu.graph.dynamic import in_floats

RNG = np.random.default_rng(4)


def made(nodes, shape, kind, folder, per_channel=False):
    """Returns a net as onnxruntime quantises it at run time, and its float one."""
    sizes = {"w": (16, 24), "b": (24,), "v": (24, 5), "k": (6, 3, 3, 3), "table": (40, 16)}
    used = {name for node in nodes for name in node.input}
    stored = [
        numpy_helper.from_array(RNG.normal(0, 0.4, size).astype(np.float32), name)
        for name, size in sizes.items()
        if name in used
    ]
    inputs = [helper.make_tensor_value_info("x", kind, shape)]
    graph = helper.make_graph(nodes, "net", inputs, [onnx.ValueInfoProto(name="y")], stored)
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "float.onnx")
    quantize_dynamic(folder / "float.onnx", folder / "net.onnx", per_channel=per_channel)
    return onnx.load(folder / "net.onnx"), model


DENSE = [
    helper.make_node("MatMul", ["x", "w"], ["a"]),
    helper.make_node("Add", ["a", "b"], ["c"]),
    helper.make_node("Relu", ["c"], ["d"]),
    helper.make_node("MatMul", ["d", "v"], ["y"]),
]
WORDS = [
    helper.make_node("Gather", ["table", "x"], ["e"]),
    helper.make_node("Tanh", ["e"], ["t"]),
    helper.make_node("MatMul", ["t", "w"], ["y"]),
]
PICTURE = [helper.make_node("Conv", ["x", "k"], ["a"], pads=[1] * 4), helper.make_node("Relu", ["a"], ["y"])]
NETS = {
    "dense": (DENSE, [1, 7, 16], TensorProto.FLOAT),
    "words": (WORDS, [1, 9], TensorProto.INT64),
    "picture": (PICTURE, [1, 3, 8, 8], TensorProto.FLOAT),
}


def feeds(shape, kind, count=8):
    if kind == TensorProto.INT64:
        return [{"x": RNG.integers(0, 40, shape)} for _ in range(count)]
    return [{"x": RNG.normal(size=shape).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", [*NETS])
def test_the_float_model_has_the_weights_of_the_file(name, per_channel, tmp_path):
    nodes, shape, kind = NETS[name]
    quantised, model = made(nodes, shape, kind, tmp_path, per_channel)
    assert "DynamicQuantizeLinear" in {node.op_type for node in quantised.graph.node}
    result, notes = in_floats(quantised)
    onnx.checker.check_model(result, full_check=True)
    kinds = {node.op_type for node in result.graph.node}
    assert notes and not kinds & {"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "DequantizeLinear", "Mul"}
    sessions = [onnxruntime.InferenceSession(each.SerializeToString()) for each in (quantised, result, model)]
    samples = feeds(shape, kind)
    answers = [np.stack([session.run(None, feed)[0] for feed in samples]) for session in sessions]
    signal = np.linalg.norm(answers[2])
    assert np.linalg.norm(answers[1] - answers[2]) < 0.02 * signal
    assert np.linalg.norm(answers[0] - answers[1]) < 0.02 * signal


def test_a_float_model_stays_as_it_is(tmp_path):
    model = made(*NETS["dense"], tmp_path)[1]
    assert in_floats(model) == (model, ())


def test_such_a_file_is_built_and_the_note_says_how_far_it_is(tmp_path):
    nodes, shape, kind = NETS["dense"]
    made(nodes, shape, kind, tmp_path)
    np.savez(tmp_path / "data.npz", x=RNG.normal(size=(24, *shape[1:])).astype(np.float32))
    flags = ["-t", "cpu,tflite", "--data", str(tmp_path / "data.npz"), "-o", str(tmp_path / "out"), "-f", "json", "-q"]
    command = [sys.executable, "-m", "anynpu", "build", "-m", str(tmp_path / "net.onnx"), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert [chip["status"] for chip in report["chips"]] == ["ok", "ok"], done.stderr
    assert "finds scales at run time" in done.stdout and "dB from the same in float32" in done.stdout


def alike(quantised, samples):
    """Returns the operators of the float model; it gives what ONNX Runtime does with the file, up to its rounding."""
    result, notes = in_floats(quantised)
    kinds = {node.op_type for node in result.graph.node}
    sessions = [onnxruntime.InferenceSession(each.SerializeToString()) for each in (quantised, result)]
    theirs, ours = (np.stack([session.run(None, feed)[0] for feed in samples]) for session in sessions)
    assert notes and not any(node.domain for node in result.graph.node)
    assert np.linalg.norm(ours - theirs) < 0.03 * np.linalg.norm(theirs)
    return kinds


def test_a_bias_that_is_brought_to_a_scale_at_run_time_is_added_unrounded():
    weights = RNG.integers(0, 255, (6, 3, 3, 3)).astype(np.uint8)
    bias = RNG.normal(0, 2, 6).astype(np.float32)
    stored = {"w": weights, "step": np.float32(0.02), "zero": np.uint8(120), "b": bias, "wide": np.array([1, 6, 1, 1])}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("Mul", ["s", "step"], ["scale"]),
        helper.make_node("Div", ["b", "scale"], ["counts"]),
        helper.make_node("Floor", ["counts"], ["below"]),
        helper.make_node("Cast", ["below"], ["whole"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["whole", "wide"], ["column"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "zero"], ["sums"], pads=[1] * 4),
        helper.make_node("Add", ["sums", "column"], ["moved"]),
        helper.make_node("Cast", ["moved"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "step"], ["both"]),
        helper.make_node("Mul", ["real", "both"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 8, 8])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)
    assert alike(model, feeds([1, 3, 8, 8], TensorProto.FLOAT)) == {"Conv"}


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_recurrent_layer_with_rounded_weights_is_one_of_real_numbers(per_channel, tmp_path):
    sizes = {"w": (2, 32, 6), "r": (2, 32, 8), "b": (2, 64)}
    stored = [numpy_helper.from_array(RNG.normal(0, 0.4, s).astype(np.float32), name) for name, s in sizes.items()]
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", *sizes], ["y"], hidden_size=8, direction="bidirectional")],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 1, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 2, 1, 8])],
        stored,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx", per_channel=per_channel)
    model = onnx.load(tmp_path / "q.onnx")
    assert "DynamicQuantizeLSTM" in {node.op_type for node in model.graph.node}
    assert alike(model, feeds([5, 1, 6], TensorProto.FLOAT)) == {"LSTM"}


TWICE = [
    helper.make_node("MatMul", ["x", "w"], ["a"]),
    helper.make_node("Add", ["a", "b"], ["c"]),
    helper.make_node("MatMul", ["x", "w2"], ["d"]),
    helper.make_node("Add", ["c", "d"], ["y"]),
]


@pytest.mark.parametrize(
    ("nodes", "fused"), [(DENSE, "DynamicQuantizeMatMul"), (TWICE, "MatMulIntegerToFloat")], ids=["one", "two"]
)
def test_a_product_that_onnx_runtime_has_fused_is_one_of_real_numbers(nodes, fused, tmp_path):
    sizes = {"w": (16, 24), "w2": (16, 24), "b": (24,), "v": (24, 5)}
    used = {name for node in nodes for name in node.input}
    stored = [
        numpy_helper.from_array(RNG.normal(0, 0.4, size).astype(np.float32), name)
        for name, size in sizes.items()
        if name in used
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 7, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        stored,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "q.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(tmp_path / "q.onnx", options)
    model = onnx.load(tmp_path / "o.onnx")
    assert fused in {node.op_type for node in model.graph.node}
    assert alike(model, feeds([1, 7, 16], TensorProto.FLOAT)) <= {"MatMul", "Add", "Relu", "Identity"}

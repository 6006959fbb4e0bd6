"""Operators that ONNX Runtime fuses: written out, they compute what ONNX Runtime's own kernels do."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.graph.fused import DOMAIN, RULES, written_out
from anynpu.source.load import ModelSource
from anynpu.source.original import read_original

X = np.random.default_rng(0).normal(size=(1, 6, 8, 8)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(1, 5, 16)).astype(np.float32)


def weights(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def net(kind, stored, x, opset=17, domain=DOMAIN, outputs=1, **settings):
    """Returns a model of one operator that reads x and stored arrays; a stored None is an input that is left out."""
    names = ["" if array is None else f"w{number}" for number, array in enumerate(stored)]
    results = ["y", "", "", "total"][:outputs]
    nodes = [helper.make_node("Tanh", ["x"], ["inside"])]
    nodes += [helper.make_node(kind, ["inside", *names], results, domain=domain, name="fused", **settings)]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results if name],
        [numpy_helper.from_array(a, name) for name, a in zip(names, stored, strict=True) if a is not None],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


CONV = (weights(4, 6, 3, 3), weights(4))
CASES = {
    "conv": (net("FusedConv", CONV, X, activation="Relu", pads=[1, 1, 1, 1]), X),
    "conv, leaky": (net("FusedConv", CONV, X, activation="LeakyRelu", activation_params=[0.2], strides=[2, 2]), X),
    "conv, clipped": (net("FusedConv", CONV, X, activation="Clip", activation_params=[0.0, 6.0]), X),
    "conv and a sum": (net("FusedConv", (*CONV, weights(1, 4, 6, 6)), X, activation="Relu"), X),
    "conv, nothing behind": (net("FusedConv", CONV, X), X),
    "gemm": (
        net("FusedGemm", (weights(7, 16), weights(7)), ROWS[0], activation="Relu", transB=1, alpha=0.5),
        ROWS[0],
    ),
    "product": (net("FusedMatMul", (weights(7, 16),), ROWS, transB=1, alpha=0.25), ROWS),
    "product, plain": (net("FusedMatMul", (weights(16, 7),), ROWS, alpha=2.0), ROWS),
    "product, turned": (net("FusedMatMul", (weights(1, 5, 7),), ROWS, transA=1), ROWS),
    "gelu": (net("Gelu", (), ROWS), ROWS),
    "gelu of a sum": (net("BiasGelu", (weights(16),), ROWS), ROWS),
    "fast gelu": (net("FastGelu", (), ROWS), ROWS),
    "fast gelu of a sum": (net("FastGelu", (weights(16),), ROWS), ROWS),
    "quick gelu": (net("QuickGelu", (), ROWS, alpha=1.5), ROWS),
    "rms": (net("SimplifiedLayerNormalization", (weights(16),), ROWS, domain="", epsilon=1e-4, axis=-1), ROWS),
    "skip": (net("SkipLayerNormalization", (ROWS, weights(16), weights(16), weights(16)), ROWS, epsilon=1e-3), ROWS),
    "skip, no shift": (net("SkipLayerNormalization", (ROWS, weights(16)), ROWS), ROWS),
    "skip and its sum": (net("SkipLayerNormalization", (ROWS, weights(16), weights(16)), ROWS, 18, outputs=4), ROWS),
    "skip, rms": (
        net("SkipSimplifiedLayerNormalization", (ROWS, weights(16), weights(16)), ROWS, epsilon=1e-3, outputs=4),
        ROWS,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fused_operator_is_written_out_as_onnx_runtime_computes_it(case):
    model, x = CASES[case]
    plain, notes = written_out(model)
    assert all(node.domain == "" and node.op_type not in RULES for node in plain.graph.node) and len(notes) == 1
    for ours, theirs in zip(run(plain, x), run(model, x), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_a_file_that_onnx_runtime_has_optimised_is_imported_and_proved_against_itself(tmp_path):
    model = CASES["conv"][0]
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    original = read_original(ModelSource(str(tmp_path / "m.onnx")))
    assert [node.op_type for node in original.graph.graph.node] == ["Tanh", "Conv", "Relu"]
    assert original.branching is not None and original.branching.graph.node[1].op_type == "FusedConv"
    assert "written in ONNX's own: FusedConv" in original.notes[0]
    original.prove(original.graph, ())


def test_a_model_without_any_stays_as_it_is():
    model = written_out(CASES["conv"][0])[0]
    assert written_out(model) == (model, ())

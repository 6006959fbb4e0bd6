"""Operators of scikit-learn that are plain arithmetic: written out, they compute what ONNX Runtime's own kernels do."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from anynpu.errors import Unsupported
from anynpu.graph.fused import written_out
from anynpu.graph.opset import SKLEARN as DOMAIN
from anynpu.source.load import ModelSource
from anynpu.source.original import read_original

ROWS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
ROWS[2] = 0
WEIGHTS = [float(each) for each in np.random.default_rng(1).normal(size=12)]


def net(kind, dtype=TensorProto.FLOAT, **settings):
    """Returns a model of one operator; a classifier gives its class and a map of scores, as skl2onnx writes it."""
    names = ["label", "scores"] if kind.endswith("Classifier") else ["y"]
    kinds = [TensorProto.INT64, TensorProto.FLOAT] if len(names) > 1 else [TensorProto.FLOAT]
    results = [helper.make_tensor_value_info(*each, None) for each in zip(names, kinds, strict=True)]
    nodes = [helper.make_node(kind, ["x"], names, domain=DOMAIN, name="plain", **settings)]
    x = helper.make_tensor_value_info("x", dtype, ["rows", 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(helper.make_graph(nodes, "net", [x], results), opset_imports=opsets, ir_version=8)


def run(model, x):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})


def classifier(count, labels, after):
    weights = {"coefficients": WEIGHTS[: 4 * count], "intercepts": WEIGHTS[:count]}
    return net("LinearClassifier", **weights, classlabels_ints=labels, post_transform=after, multi_class=0)


CASES = {
    "scaler": net("Scaler", offset=WEIGHTS[:4], scale=WEIGHTS[4:8]),
    "scaler, one for all": net("Scaler", offset=[0.5], scale=[2.0]),
    "scaler of whole numbers": net("Scaler", TensorProto.INT64, offset=WEIGHTS[:4], scale=WEIGHTS[4:8]),
    **{f"normalizer, {norm}": net("Normalizer", norm=norm) for norm in ("L1", "L2")},
    "binarizer": net("Binarizer", threshold=0.25),
    "regressor": net("LinearRegressor", coefficients=WEIGHTS[:4], intercepts=WEIGHTS[4:5]),
    "regressor, three": net("LinearRegressor", coefficients=WEIGHTS, intercepts=WEIGHTS[:3], targets=3),
    "regressor, no offset": net("LinearRegressor", coefficients=WEIGHTS[:4]),
    **{f"three classes, {after}": classifier(3, [4, 7, 9], after) for after in ("NONE", "LOGISTIC", "SOFTMAX")},
    **{f"two classes, {after}": classifier(2, [0, 1], after) for after in ("NONE", "LOGISTIC", "SOFTMAX")},
    **{f"one row for two, {after}": classifier(1, [3, 5], after) for after in ("NONE", "LOGISTIC")},
}


@pytest.mark.parametrize("case", CASES)
def test_a_plain_operator_is_written_out_as_onnx_runtime_computes_it(case):
    model = CASES[case]
    x = ROWS.round().astype(np.int64) if model.graph.input[0].type.tensor_type.elem_type == 7 else ROWS
    plain, notes = written_out(model)
    assert all(node.domain == "" for node in plain.graph.node) and len(notes) == 1
    for ours, theirs in zip(run(plain, x), run(model, x), strict=True):
        np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, atol=2e-6)


def test_a_map_of_classes_becomes_a_row_of_numbers(tmp_path):
    model = classifier(3, [4, 7, 9], "SOFTMAX")
    model.graph.node.append(
        helper.make_node("ZipMap", ["scores"], ["map"], domain=DOMAIN, name="ZipMap", classlabels_int64s=[4, 7, 9])
    )
    model.graph.output[1].CopyFrom(
        helper.make_value_info(
            "map",
            helper.make_sequence_type_proto(
                helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
            ),
        )
    )
    onnx.save(model, tmp_path / "m.onnx")
    original = read_original(ModelSource(str(tmp_path / "m.onnx"), shapes={"x": (1, 4)}))
    assert any("a row of numbers stands for each map" in note for note in original.notes)
    label, row = run(original.graph, ROWS[:1])
    [wanted], [scores] = run(model, ROWS[:1])
    assert label.tolist() == [wanted]
    np.testing.assert_allclose(row[0], [scores[each] for each in (4, 7, 9)], atol=2e-6)


def test_trees_and_words_are_refused_by_their_names(tmp_path):
    model = net("LinearClassifier", coefficients=WEIGHTS, intercepts=WEIGHTS[:3], classlabels_strings=["a", "b", "c"])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(Unsupported, match=r"first plain: ai\.onnx\.ml\.LinearClassifier"):
        read_original(ModelSource(str(tmp_path / "m.onnx"), shapes={"x": (1, 4)}))

"""Operators that skl2onnx writes (domain ai.onnx.ml) and that are plain arithmetic, in ONNX's own operators.

Scalers, normalisers and linear models lead into the dense layers of scikit-learn's perceptrons, or are the model.
Trees, neighbours and encoders of words are not written out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from anynpu.graph.fold import copied, with_nodes
from anynpu.graph.opset import SKLEARN
from anynpu.graph.writer import Writer

_LEAST = 1e-30
"""A row of zeros has no length to be divided by, and stays zeros."""
_NORMS = {"L1": "ReduceL1", "L2": "ReduceL2", "MAX": "ReduceMax"}
_SCORED = ("NONE", "LOGISTIC", "SOFTMAX")


def is_plain(node: NodeProto) -> bool:
    """Tells whether an operator of scikit-learn is one that is written out here."""
    settings = {each.name: each for each in node.attribute}
    words = "classlabels_strings" in settings and bool(settings["classlabels_strings"].strings)
    after = settings["post_transform"].s.decode() if "post_transform" in settings else "NONE"
    known = _SCORED if node.op_type == "LinearClassifier" else _SCORED[:1]
    if after == "SOFTMAX" and len(settings["intercepts"].floats) == 1:
        return False
    return node.op_type in RULES and not words and after in known


def without_maps(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns the model with rows of numbers where it gives maps from classes to numbers, and the sentence about it."""
    maps = [node for node in model.graph.node if node.domain == SKLEARN and node.op_type == "ZipMap"]
    results = {value.name for value in model.graph.output}
    if not maps or not all(node.output[0] in results for node in maps):
        return model, ()
    result, nodes = copied(model), list[NodeProto]()
    for node in result.graph.node:
        if node.domain == SKLEARN and node.op_type == "ZipMap":
            for value in result.graph.output:
                if value.name == node.output[0]:
                    value.type.Clear()
                    value.type.tensor_type.elem_type = TensorProto.FLOAT
            node = NodeProto(op_type="Identity", input=node.input, output=node.output, name=node.name)
        nodes.append(node)
    names = ", ".join(node.output[0] for node in maps)
    return with_nodes(result, nodes), (f"a row of numbers stands for each map from classes to numbers: {names}",)


def _real(at: Writer) -> str:
    return at.cast(at.input(0), TensorProto.FLOAT)


def scaler(at: Writer) -> None:
    moved = at.emit("Sub", _real(at), at.stored(at.get("offset", [0.0])))
    at.emit("Mul", moved, at.stored(at.get("scale", [1.0])), to=at.result())


def normalizer(at: Writer) -> None:
    rows = _real(at)
    length = at.reduced(_NORMS[at.get("norm", "MAX")], rows)
    at.emit("Div", rows, at.emit("Max", length, at.stored(_LEAST)), to=at.result())


def binarizer(at: Writer) -> None:
    above = at.emit("Greater", _real(at), at.stored(at.get("threshold", 0.0)))
    at.cast(above, TensorProto.FLOAT, result=at.result())


def _sums(at: Writer, count: int) -> str:
    """Writes the products with the coefficients, one column for each target."""
    weights = np.asarray(at.get("coefficients", []), np.float32).reshape(count, -1).T
    offsets = at.get("intercepts", []) or [0.0] * count
    return at.emit("Add", at.emit("MatMul", _real(at), at.stored(weights)), at.stored(offsets))


def regressor(at: Writer) -> None:
    _sums(at, at.get("targets", 1))
    at.renamed(at.result())


def classifier(at: Writer) -> None:
    labels = list(at.get("classlabels_ints", []))
    count = len(at.get("intercepts", [])) or len(labels)
    after, alone = at.get("post_transform", "NONE"), count == 1 and len(labels) == 2
    sums = _sums(at, count)
    if alone:
        place = at.cast(at.emit("Greater", sums, at.stored(0.0)), TensorProto.INT64)
        place = at.emit("Reshape", place, at.stored([-1], np.int64))
    else:
        place = at.emit("ArgMax", sums, axis=1, keepdims=0)
    if at.result():
        at.emit("Gather", at.stored(labels, np.int64), place, to=at.result(), axis=0)
    if not at.result(1):
        return
    scores = {"LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}.get(after, "Identity")
    settings = {"axis": 1} if scores == "Softmax" else {}
    if alone:
        second = at.emit(scores, sums)
        at.emit("Concat", at.emit("Sub", at.stored(1.0), second), second, to=at.result(1), axis=1)
    else:
        at.emit(scores, sums, to=at.result(1), **settings)


RULES: dict[str, Callable[[Writer], None]] = {
    "Scaler": scaler,
    "Normalizer": normalizer,
    "Binarizer": binarizer,
    "LinearRegressor": regressor,
    "LinearClassifier": classifier,
}
"""What writes each operator out."""

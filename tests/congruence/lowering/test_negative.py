"""Places counted from the end, which ONNX has as negative numbers, are read as ONNX Runtime reads them."""

from __future__ import annotations

import numpy as np
import pytest
from lowered_nets import agrees, net
from onnx import TensorProto, helper

from anynpu.lowering.lower import lower

GATHERS = {
    "rows": ("Gather", {"axis": 1}, (1, 3), 8),
    "columns": ("Gather", {"axis": -1}, (1, 2, 3), 5),
    "elements": ("GatherElements", {"axis": 2}, (1, 8, 3), 5),
    "whole places": ("GatherND", {}, (1, 6, 3), (1, 8, 5)),
    "rows of places": ("GatherND", {}, (1, 6, 2), (1, 8)),
}


def gathered(what, computed="Sub"):
    """Returns a net that reads `x` where numbers say that are cast from `p` and have something taken off."""
    op, attributes, shape, size = GATHERS[what]
    nodes = [
        helper.make_node("Cast", ["p"], ["whole"], to=TensorProto.INT64),
        helper.make_node(computed, ["whole", "half"], ["places"]),
        helper.make_node(op, ["x", "places"], ["y"], **attributes),
    ]
    model = net(nodes, {"x": (1, 8, 5), "p": shape}, {"half": np.asarray(size, np.int64)})
    rng = np.random.default_rng(1)
    places = rng.integers(0, 2 * np.asarray(size), (8, *shape[1:])).astype(np.float32)
    return model, {"x": rng.normal(size=(8, 8, 5)).astype(np.float32), "p": places}


@pytest.mark.parametrize("what", GATHERS)
def test_places_counted_from_the_end_are_read(what):
    """A place of -1 may not be the end of the row before."""
    agrees(*gathered(what))


@pytest.mark.parametrize("what", ["rows", "elements"])
def test_places_that_are_never_below_zero_cost_nothing(what):
    model, _ = gathered(what, "Max")
    assert "LESS" not in {operator.kind for operator in lower(model).operators}


def test_words_are_read_as_they_are():
    nodes = [helper.make_node("Gather", ["table", "x"], ["y"])]
    model = net(nodes, {"x": (1, 5)}, {"table": np.eye(9, dtype=np.float32)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    assert "LESS" not in {operator.kind for operator in lower(model).operators}

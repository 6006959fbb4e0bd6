"""Room for what calibration did not show: outputs of 16 bits have one to spare."""

from __future__ import annotations

import pytest

from anynpu.quantize.headroom import with_room
from anynpu.quantize.net import Net, Operation
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range

OPERATIONS = (
    Operation("layer", ("x",), ("h",)),
    Operation("other", ("h",), ("y",), moves="h"),
)
NET = Net(OPERATIONS, frozenset({"y"}), {}, (), pytest.fail, {})
RANGES = {"x": Range(-1.0, 3.0), "h": Range(1.0, 8.0), "y": Range(1.0, 8.0)}


def test_an_output_of_sixteen_bits_has_one_to_spare():
    roomy = with_room(NET, RANGES, QuantPlan(activations="int16"))
    assert roomy == {"x": RANGES["x"], "h": Range(0.0, 16.0), "y": Range(0.0, 16.0)}
    assert with_room(NET, RANGES, QuantPlan(wide_tensors=("y",))) == {**RANGES, "y": Range(0.0, 16.0)}


def test_eight_bits_have_none():
    assert with_room(NET, RANGES, QuantPlan()) == RANGES

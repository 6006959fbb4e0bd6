"""--repair: where the gate does not hold, repairs are tried one by one, and each says what it gained."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two layers whose inner values have long tails, so that cutting them off ruins the result."""
    folder = tmp_path_factory.mktemp("net")
    draw = np.random.default_rng(0)
    stored = {"w": draw.normal(size=(6, 16)), "b": draw.normal(size=16), "v": draw.normal(size=(16, 4))}
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [1, 6])],
        [value("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in stored.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")
    np.save(folder / "x.npy", draw.standard_t(3, (60, 6)).astype(np.float32))
    return folder


def built(cli, small, *flags):
    out = small / "out"
    arguments = ["-m", str(small / "net.onnx"), "--data", str(small / "x.npy"), "-o", str(out), "--overwrite"]
    done = cli("build", *arguments, *flags)
    return done, json.loads((out / "report.json").read_text("utf-8"))["chips"]


def test_the_cheapest_repair_that_holds_the_gate_is_kept(cli, small):
    sabotage = ("-O", "method=percentile", "-O", "percentile=60", "-O", "bias_correction=false")
    done, chips = built(cli, small, "-t", "cpu", "--min-sqnr", "25", "--repair", *sabotage)
    assert done.returncode == 0, done.stdout
    repairs = chips[0]["repairs"]
    assert [each["repair"] for each in repairs] == ["bias correction", "ranges by the error behind functions"]
    assert repairs[0]["before_db"] < 25 < repairs[1]["after_db"]
    assert repairs[1]["holds"]
    assert "holds" not in repairs[0]
    assert "cpu: repair ranges by the error behind functions (-O method=auto): " in done.stdout
    assert "the gate holds" in done.stdout
    assert chips[0]["chain"][-1]["step"]["options"]["method"] == "auto"
    assert chips[0]["status"] == "ok"


def test_a_gate_that_cannot_be_met_says_the_best_reached(cli, small):
    done, chips = built(cli, small, "-t", "tflite", "--min-sqnr", "190", "--repair")
    assert done.returncode == 7, done.stdout
    repairs = chips[0]["repairs"]
    assert [each["options"] for each in repairs] == ["-O method=mse", "-O activations=int16"]
    assert repairs[1]["after_db"] > repairs[1]["before_db"] + 10
    assert f"the best reached is {repairs[1]['after_db']:.1f} dB" in done.stdout
    assert chips[0]["verification"]["sqnr_db"] == pytest.approx(repairs[1]["after_db"])
    assert chips[0]["diagnosis"] is not None

"""anynpu show reads models whose dimensions are not fixed, and names the flag that fixes them."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from anynpu.cli.main import main


@pytest.fixture
def net(tmp_path: Path, monkeypatch) -> Path:
    """A model with an open batch, height and width, a second input of unknown length, and a weight."""
    monkeypatch.chdir(tmp_path)
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "h", "w"])
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, None])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, "h", "w"])
    z = helper.make_tensor_value_info("z", TensorProto.INT64, [1, "length"])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3, 1, 1], [0.5] * 12)
    nodes = [helper.make_node("Conv", ["image", "w"], ["y"]), helper.make_node("Neg", ["ids"], ["z"])]
    graph = helper.make_graph(nodes, "open", [image, ids], [y, z], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    return tmp_path / "net.onnx"


def test_a_model_with_open_dimensions_is_shown_as_it_is(net: Path, capsys) -> None:
    assert main(["show", "net.onnx"]) == 0
    text = capsys.readouterr().out
    for words in (
        "batch x 3 x h x w",
        "1 x ?",
        "1 Conv, 1 Neg",
        "12 parameters",
        "--shape image=1,3,224,224 --shape ids=1,224",
    ):
        assert words in text


def test_its_record_and_a_shape_that_is_stated(net: Path, capsys) -> None:
    assert main(["show", "-m", "net.onnx", "--shape", "image=1,3,8,8", "-f", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["tensors"][0] == {
        "kind": "input",
        "name": "image",
        "shape": ["batch", 3, "h", "w"],
        "dtype": "float32",
    }
    assert record["operators"] == {"Conv": 1, "Neg": 1} and record["fix"].startswith("--shape image=1,3,8,8 ")

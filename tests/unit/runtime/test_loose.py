"""Models with one fixed shape at any number of rows: equal in every row, or left as they were built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.artifact import Artifact, Manifest, Step, seal
from anynpu.errors import IntegrityError
from anynpu.runtime import loose
from anynpu.runtime.loose_graph import loosen, regroup
from anynpu.runtime.loose_walk import NotLoose
from anynpu.runtime.ort import OrtSession
from anynpu.tensors import TensorSpec
from anynpu.testing import models
from anynpu.testing.models import NOW

DRAW = np.random.default_rng(0)


def test_axes_are_followed_through_reshapes():
    values = {"B": 1, "L": 128}
    assert regroup([("B",), ("L",), (384,)], [128, 384], values) == [("B", "L"), (384,)]
    assert regroup([("B", "L"), (384,)], [1, 128, 12, 32], values) == [("B",), ("L",), (12,), (32,)]
    assert regroup([("B",), (12,), ("L",), (32,)], [12, 128, 32], values) == [("B", 12), ("L",), (32,)]
    assert regroup([("B", 12), (32,), ("L",)], [1, 12, 32, 128], values) == [("B",), (12,), (32,), ("L",)]
    with pytest.raises(NotLoose):
        regroup([("L",), (3,)], [3, 128], values)


def net(folder: Path, nodes, weights, shape, outputs) -> Artifact:
    folder.mkdir()
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()]
    tensors = [numpy_helper.from_array(np.asarray(w), n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "net", info, given, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    models.save(model, folder / "model.onnx")
    specs = (TensorSpec("x", tuple(shape)),), tuple(TensorSpec(n, tuple(d)) for n, d in outputs.items())
    return seal(folder, Manifest("onnx", "model.onnx", *specs), Step("import"), NOW)


def same_rows(artifact: Artifact, free: set[str]) -> None:
    session = loose.open_loose(artifact, 1)
    assert set(getattr(session, "free", ())) == free
    plain = OrtSession(artifact, 1)
    (spec,) = artifact.manifest.inputs
    rows = [spec.to_stored(DRAW.normal(0, 1, spec.shape)) for _ in range(5)]
    got = session.run({spec.name: np.concatenate(rows)})
    for name, array in got.items():
        wanted = np.concatenate([plain.run({spec.name: row})[name] for row in rows])
        assert array.shape == wanted.shape and np.allclose(array, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [models.dense_net, models.conv_net], ids=["dense", "conv"])
def test_small_nets_run_any_number_of_rows(tmp_path, make):
    same_rows(models.onnx_artifact(make(), tmp_path / "net"), {"batch"})


def test_what_mixes_rows_is_left_as_it_was_built(tmp_path):
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], keepdims=1, axes=[0]),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    artifact = net(tmp_path / "net", nodes, {}, [2, 4], {"y": [2, 4]})
    assert loose.loosened(artifact)[1] == frozenset()
    assert not hasattr(loose.open_loose(artifact, 1), "free")


def test_a_constant_for_every_row_is_left_as_it_was_built(tmp_path):
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    artifact = net(tmp_path / "net", nodes, {"w": np.ones((2, 4), np.float32)}, [2, 4], {"y": [2, 4]})
    assert loose.loosened(artifact)[1] == frozenset()


def test_a_graph_that_computes_something_else_is_found_out(tmp_path):
    """The judge itself: a model that is free and wrong is refused."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    right = net(tmp_path / "a", nodes, {"w": np.float32(2)}, [1, 4], {"y": [1, 4]})
    wrong = net(tmp_path / "b", nodes, {"w": np.float32(2.01)}, [1, 4], {"y": [1, 4]})
    onnx.save(loosen(onnx.load(wrong.main), ["x"], ["batch"]), tmp_path / "free.onnx")
    specs = right.manifest.inputs, right.manifest.outputs
    with pytest.raises(IntegrityError, match="not what the model gives"):
        loose.judge(str(right.main), str(tmp_path / "free.onnx"), *specs, ["batch"])


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    pytest.importorskip("torch")
    import torch
    from tiny_bert import encoder

    file = tmp_path_factory.mktemp("bert") / "bert.onnx"
    given = torch.zeros(1, 16, dtype=torch.int64), torch.ones(1, 16, dtype=torch.int64)
    names = ["input_ids", "attention_mask"]
    torch.onnx.export(encoder().eval(), given, str(file), input_names=names, output_names=["out"], dynamo=False)
    return models.onnx_artifact(onnx.load(file), file.parent / "artifact")


def test_a_text_model_runs_at_any_shorter_length(bert):
    session, plain = loose.open_loose(bert, 1), OrtSession(bert, 1)
    assert session.free == {"batch", "length"}
    ids = DRAW.integers(4, 24, (3, 16))
    for count in (16, 9, 3):
        mask = np.zeros((3, 16), np.int64)
        mask[:, :count] = 1
        got = session.run({"input_ids": ids[:, :count] * 1, "attention_mask": mask[:, :count]})["out"]
        rows = [
            plain.run({"input_ids": ids[i : i + 1] * mask[:1], "attention_mask": mask[:1]})["out"] for i in range(3)
        ]
        assert np.allclose(got, np.concatenate(rows), rtol=1e-4, atol=1e-5)

"""ONNX Runtime's provider for the Zhouyi NPU: its absence, its limits, and the receipt out of a real profile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from anynpu.errors import ConfigError, IntegrityError, ToolMissing
from anynpu.runtime import zhouyi_ort
from anynpu.runtime.base import choose, open_session
from anynpu.testing import models

HERE = zhouyi_ort.PROVIDER in onnxruntime.get_available_providers()
absent = pytest.mark.skipif(HERE, reason="the provider is here")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return models.onnx_artifact(models.conv_net(), tmp_path_factory.mktemp("ort") / "model")


@pytest.fixture(scope="module")
def profile(model, tmp_path_factory):
    """What ONNX Runtime writes about two runs on the CPU."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path_factory.mktemp("profile") / "p")
    session = onnxruntime.InferenceSession(str(model.main), options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        session.run(None, {"image": np.zeros((1, 3, 8, 8), np.float32)})
    return Path(session.end_profiling()).read_text()


@absent
def test_without_the_provider_the_session_says_what_is_missing(model):
    assert "no ZhouyiExecutionProvider here" in zhouyi_ort.ZhouyiOrtSession.missing()
    with pytest.raises(ToolMissing) as missing:
        zhouyi_ort.ZhouyiOrtSession(model)
    assert "wheel" in missing.value.hint
    with pytest.raises(ToolMissing):
        open_session(model, "zhouyi_ort")
    assert choose("onnx").name == "ort"
    with pytest.raises(ConfigError, match="does not run cix"):
        choose("cix", "zhouyi_ort")


def test_every_operator_of_a_profile_counts_once(profile):
    placed = zhouyi_ort.placement(profile)
    names = [op.name for op in placed.operators]
    assert len(names) == len(set(names)) > 3
    assert placed.on_npu == 0
    assert all("CPUExecutionProvider ran it" in op.reason for op in placed.operators)
    assert zhouyi_ort.placement(profile, "CPUExecutionProvider").operator_share == 1.0


def test_a_profile_of_two_providers_is_told_apart(profile):
    events = json.loads(profile)
    for event in events:
        if event.get("cat") == "Node" and event["args"].get("op_name", "").endswith("Conv"):
            event["args"]["provider"] = zhouyi_ort.PROVIDER
    placed = zhouyi_ort.placement(json.dumps(events))
    on_npu = {op.kind for op in placed.operators if op.device == "npu"}
    assert on_npu
    assert all(kind.endswith("Conv") for kind in on_npu)
    assert 0 < placed.operator_share < 1
    assert all(op.reason for op in placed.elsewhere())


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1]", '[{"cat": "Node", "name": "a_kernel_time"}]', "null"])
def test_what_is_no_profile_is_refused(text):
    with pytest.raises(IntegrityError):
        zhouyi_ort.placement(text)


def test_the_receipt_comes_from_running(model):
    sample = {"image": np.ones((1, 3, 8, 8), np.float32)}
    placed = zhouyi_ort.receipt(model, [sample], provider=zhouyi_ort.CPU)
    assert placed.operator_share == 1.0


def test_what_the_provider_lacks_is_named(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], "size"),
        helper.make_node("Cast", ["s"], ["y"], "cast", to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))],
    )
    onnx.save(helper.make_model(graph), str(tmp_path / "net.onnx"))
    found = zhouyi_ort.findings(tmp_path / "net.onnx")
    assert [f.where for f in found] == ["size", "cast", "x"]
    assert {f.rule for f in found} == {"provider", "static_shapes"}
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert zhouyi_ort.findings(tmp_path / "broken.onnx") == ()

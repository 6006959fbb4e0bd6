"""A float file is parsed once, however many passes of quantisation look into it, and none changes it for the others."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from ai_edge_litert.tools import flatbuffer_utils
from lowered_nets import net, samples
from onnx import helper

from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.runtime import tflite_file


@pytest.fixture
def parsed(monkeypatch):
    """How often each content is parsed, with nothing kept of earlier tests."""
    times, parse = Counter(), flatbuffer_utils.read_model_from_bytearray

    def counted(data):
        times[bytes(data)] += 1
        return parse(data)

    monkeypatch.setattr(flatbuffer_utils, "read_model_from_bytearray", counted)
    tflite_file._kept.cache_clear()
    yield times
    tflite_file._kept.cache_clear()


def two_layers():
    draw = np.random.default_rng(5)
    stored = {
        "w": draw.normal(0, 0.4, (8, 3, 3, 3)).astype(np.float32),
        "b": draw.normal(0, 0.3, 8).astype(np.float32),
        "v": draw.normal(0, 0.3, (4, 8, 3, 3)).astype(np.float32),
        "c": draw.normal(0, 0.3, 4).astype(np.float32),
    }
    stored["w"][5] *= 20
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["h"], pads=[1] * 4),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Conv", ["r", "v", "c"], ["y"], pads=[1] * 4),
    ]
    return net(nodes, {"x": (1, 3, 8, 8)}, stored)


def test_a_quantisation_parses_no_content_twice(parsed, tmp_path):
    model = two_layers()
    (tmp_path / "float.tflite").write_bytes(to_bytes(lower(model)))
    data = Dataset(samples(model), None, "test")
    figures = quantize_file(tmp_path / "float.tflite", data, QuantPlan(), tmp_path / "int8.tflite")
    assert figures["equalized"]  # weights were changed on the way
    assert parsed[(tmp_path / "float.tflite").read_bytes()] == 1
    assert set(parsed.values()) == {1}


def test_own_buffers_leave_the_shared_model_as_it_is(parsed):
    content = to_bytes(lower(two_layers()))
    shared = tflite_file.shared_model(content)
    own = tflite_file.with_own_buffers(shared)
    for buffer in own.buffers:
        buffer.data = None
    own.subgraphs[0].outputs, own.signatureDefs = [], None
    assert tflite_file.shared_model(content) is shared
    assert tflite_file.pack_model(shared) == tflite_file.pack_model(tflite_file.read_model(content))

"""The error of a layer taken from what the stream stores, beside the float model's tensors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("ethosu.vela", reason="pip install 'anynpu[build]'")
pytest.importorskip("tflite_micro", reason="pip install 'anynpu[build]'")


from compiled import compile_model, samples
from test_damage import network
from test_difference import planted

from anynpu.pipeline.stream_error import add_stream_errors
from anynpu.records.build import GraphForm, GraphNode
from anynpu.runtime.ethos_u.difference import _outputs, arranged, layer_values
from anynpu.runtime.ethos_u.model import read_model
from anynpu.runtime.ethos_u.twin import Twin
from anynpu.targets.flatbuffer import operators
from anynpu.targets.vela.origin import FILE, write_origins

pytestmark = pytest.mark.build


@pytest.mark.parametrize("chip", ["ethos-u55-128", "ethos-u65-512"])
def test_the_streams_tensors_are_those_of_the_layers(chip, tmp_path):
    """Every tensor that a stream stores whole is TFLite-Micro's; a fault shows in its own layer and behind it."""
    source = network(tmp_path / "net.tflite")
    model = read_model(compile_model(source, chip, tmp_path))
    write_origins(tmp_path / "net_debug.xml", operators(source), tmp_path)
    inputs = [value[1] for value in samples(model, 2)]
    wanted = [values for _, values in _outputs(source.read_bytes(), inputs)]

    def equal(twin: Twin) -> dict[int, bool]:
        pieces = layer_values(twin, tmp_path / FILE, inputs)
        whole = {number: arranged(parts, wanted[number]) for number, parts in pieces.items()}
        return {n: any(np.array_equal(way, wanted[n]) for way in ways) for n, ways in whole.items() if ways}

    healthy = equal(Twin(model))
    assert len(healthy) >= 5 and all(healthy.values()), healthy
    faulty = equal(Twin(dataclasses.replace(planted(model, "depthwise", 0, ACTIVATION_MAX=0xFF90))))
    depthwise = next(n for n, op in enumerate(operators(source)) if op.kind == "DEPTHWISE_CONV_2D")
    assert not faulty[depthwise] and all(same for n, same in faulty.items() if n < depthwise)


def test_a_node_that_is_fused_has_no_figure():
    nodes = [GraphNode(name="n", kind="ADD", device="npu", outputs=outputs) for outputs in (("a",), ("b", "c"))]
    graph = add_stream_errors(GraphForm(nodes=tuple(nodes)), {"b": 40.0, "c": 30.0})
    assert [node.stream_sqnr_db for node in graph.nodes] == [None, 30.0]

"""Errors per layer on tensors whose errors are known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from anynpu.artifact import Artifact, FileEntry, Made, Manifest, OperatorPlacement, Placement, Step, seal
from anynpu.cli.inspect import show
from anynpu.errors import ConfigError, ToolFailed
from anynpu.measure.layers import (
    MACS_BUDGET,
    MAX_MODEL_BYTES,
    MAX_SAMPLES,
    LayerError,
    Match,
    compare_layers,
    sample_count,
    worst_layers,
)
from anynpu.measure.samples import SampleSet
from anynpu.pipeline.build import _graph
from anynpu.pipeline.layers import drawable, graph
from anynpu.pipeline.result import BuildResult
from anynpu.records.build import GraphForm, GraphNode, GraphTensor
from anynpu.seals import sealed
from anynpu.tensors import TensorSpec

X = TensorSpec("x", (1, 4))


class Net:
    """A net of one input whose inner tensors are given functions of it."""

    inputs = (X,)

    def __init__(self, **functions):
        self.functions = functions

    def tensors(self, inputs, names):
        return {n: self.functions[n](inputs["x"]) for n in names if n in self.functions}


def errors(subject, reference, *matches, samples=3):
    data = np.random.default_rng(0).normal(size=(samples, 4)).astype(np.float32)
    return compare_layers(subject, reference, matches, SampleSet({"x": data}), (X,)), data


def test_the_error_is_that_of_all_samples_together():
    found, data = errors(Net(a=lambda x: x + 0.5), Net(b=lambda x: x), Match("layer", "a", "b"))
    signal, noise = float(np.sum(data.astype(np.float64) ** 2)), 0.25 * data.size
    assert found["layer"].sqnr_db == pytest.approx(10 * math.log10(signal / noise))
    assert found["layer"].max_error == pytest.approx(0.5)


def test_factors_of_equalised_channels_are_taken_back():
    lift = np.array([1.0, 8.0, 2.0, 64.0])
    louder = Net(a=lambda x: x * lift + np.array([0, 0, 0, 6.4]))
    plain, _ = errors(louder, Net(a=lambda x: x), Match("a", "a", "a"))
    fair, _ = errors(louder, Net(a=lambda x: x), Match("a", "a", "a", lift))
    assert plain["a"].sqnr_db < 0
    assert fair["a"].max_error == pytest.approx(0.1, rel=1e-5), "in units of the float model"


def test_what_cannot_be_compared_has_no_figure():
    subject = Net(shape=lambda x: x[:, :2], nan=lambda x: x * np.nan, mask=lambda x: x > 0, same=lambda x: x)
    reference = Net(shape=lambda x: x, nan=lambda x: x, mask=lambda x: x > 0, same=lambda x: x)
    names = ("shape", "nan", "mask", "same", "absent")
    found, _ = errors(subject, reference, *(Match(n, n, n) for n in names))
    assert found == {"same": LayerError(200.0, 0.0)}


@pytest.mark.parametrize(
    ("available", "macs", "size", "wanted"),
    [
        (100, 1000, 0, MAX_SAMPLES),
        (5, None, 0, 5),
        (100, MACS_BUDGET // 3, 0, 3),
        (100, MACS_BUDGET + 1, 0, 0),
        (100, 1000, MAX_MODEL_BYTES + 1, 0),
    ],
)
def test_the_count_of_samples_stays_within_the_budget(available, macs, size, wanted):
    assert sample_count(available, macs, size) == wanted


def test_the_worst_layers_come_first_with_what_each_lost():
    def node(name, inputs, db):
        return GraphNode(name=name, kind="ADD", device="cpu", inputs=inputs, sqnr_db=db)

    graph = GraphForm(
        nodes=(node("a", ("x", "w"), 40.0), node("b", ("a",), 12.0), node("c", ("b", "x"), 11.0), node("d", (), None)),
        tensors={n: GraphTensor(sqnr_db=db) for n, db in (("x", 50.0), ("w", None), ("a", 40.0), ("b", 12.0))},
    )
    assert [(node.name, lost) for node, lost in worst_layers(graph)] == [("c", 1.0), ("b", 28.0), ("a", 10.0)]
    assert len(worst_layers(graph, 1)) == 1


PER_LAYER = """Original Operator,NNG Operator,Target,Op Cycles,Name
Conv2D,Conv2D,NPU,100,conv_2d_1
Conv2D,Relu6,NPU,5,conv_2d_1
Mean,DepthwiseConv2D,NPU,20,mean_0_intermediate
Mean,Mul,NPU,3,mean_0
Softmax,Softmax,CPU,0,soft
Memory copy,Memory copy,NPU,7,elsewhere
"""


def chip_artifact(folder):
    (folder / "per_layer.csv").write_text(PER_LAYER)
    operators = (
        OperatorPlacement("conv_2d_1", "CONV_2D", "npu"),
        OperatorPlacement("mean_0", "MEAN", "npu"),
        OperatorPlacement("soft", "SOFTMAX", "cpu", "too wide"),
    )
    files = (FileEntry("per_layer.csv", "", len(PER_LAYER)),)
    return Artifact(folder, Manifest("tflite-vela", "m", placement=Placement("U55", operators), files=files))


def test_a_chip_adds_its_receipt_and_its_estimates(tmp_path):
    names = ("conv_2d_1", "conv_2d_10", "mean_0", "soft")
    shared = GraphForm(nodes=tuple(GraphNode(name=n, kind="ADD", device="cpu") for n in names), notes=("n",))
    found = graph(shared, chip_artifact(tmp_path))
    rows = {node.name: (node.device, node.reason, node.time) for node in found.nodes}
    assert rows == {
        "conv_2d_1": ("npu", "", 105),
        "conv_2d_10": ("cpu", "", None),
        "mean_0": ("npu", "", 23),
        "soft": ("cpu", "too wide", None),
    }
    assert found.time_unit == "cycles (Vela estimate)"
    assert found.notes[0] == "n" and "7 cycles" in found.notes[1]


def test_a_failure_is_a_note_and_no_failure_of_the_build(tmp_path, monkeypatch):
    def broken(*_):
        raise ToolFailed("the profiler crashed")

    monkeypatch.setattr("anynpu.pipeline.build.layers", broken)
    artifact = chip_artifact(tmp_path)
    result = BuildResult(None, model=artifact, test=artifact)
    chip = type("Chip", (), {"name": "toy"})
    found = _graph(None, chip, [artifact], result)
    assert found.nodes == () and found.notes == ("no figures per layer: the profiler crashed",)
    assert _graph(None, chip, [], result) is None


def test_the_graph_is_that_of_the_last_artifact_that_can_be_read(tmp_path):
    kinds = {k: Artifact(tmp_path, Manifest(k, "m")) for k in ("onnx", "tflite-float", "tflite", "tflite-vela", "null")}
    chain = [kinds[k] for k in ("onnx", "tflite-float", "tflite", "tflite-vela")]
    assert drawable(chain) is kinds["tflite"]
    assert drawable([kinds["onnx"], kinds["tflite-vela"]]) is kinds["onnx"]
    assert drawable([kinds["onnx"], kinds["null"]]) is None


def report(graph):
    """Returns a report of one chip as text."""
    nothing = dict.fromkeys(("error", "verification", "receipt", "estimates"))
    chip = {"chip": "toy", "npu": "", "status": "ok", "verdict": "", "chain": [], "seconds": 1.0, "graph": graph}
    request = {"source": {"model": "net.onnx"}}
    whole = {"schema_version": 1, "kind": "build", "request": request, "chips": [{**chip, **nothing}]}
    return json.dumps(sealed(whole))


@pytest.fixture
def built(tmp_path):
    """Returns the folder of a chip with a report beside it."""
    folder = tmp_path / "out" / "toy"
    folder.mkdir(parents=True)
    (folder / "m").write_bytes(b"m")
    seal(folder, Manifest("tflite", "m"), Step("toy"), Made("", 0.0))
    tensors = {"x": {"sqnr_db": 40.0}, "a": {"sqnr_db": 31.04}}
    node = {"name": "a", "kind": "ADD", "device": "npu", "reason": "", "macs": 12000, "inputs": ["x"], "outputs": ["a"]}
    graph = {"of": "tflite", "samples": 3, "time_unit": "cycles", "notes": ["few"], "tensors": tensors}
    graph["nodes"] = [{**node, "sqnr_db": 31.04, "time": 4321}]
    (folder.parent / "report.json").write_text(report(graph))
    return folder


def test_show_prints_the_layers(built):
    done = CliRunner().invoke(show, [str(built), "--layers"], standalone_mode=False)
    assert done.return_value == 0, done.output
    assert done.output.splitlines() == [
        "nodes of tflite, 3 samples; time in cycles",
        "layer  operator  on   SQNR dB  lost dB  MACs     time",
        "a      ADD       npu  31.0     9.0      12.00 k  4,321",
        "note: few",
    ]
    whole = json.loads(CliRunner().invoke(show, [str(built), "--layers", "-f", "json"], standalone_mode=False).output)
    assert (whole["schema_version"], whole["kind"], whole["chip"]) == (1, "layers", "toy")
    assert whole["nodes"][0]["time"] == 4321


@pytest.mark.parametrize("text", [report(None), None])
def test_show_says_where_there_are_no_layers(built, text):
    file = built.parent / "report.json"
    file.unlink() if text is None else file.write_text(text)
    done = CliRunner().invoke(show, [str(built), "--layers"], standalone_mode=False)
    assert isinstance(done.exception, ConfigError)
    assert ("says nothing about the layers" if text else "no report.json next to it") in str(done.exception)

"""A layer whose weights are damaged is found: its error jumps there and nowhere before."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_block import stack
from onnx import numpy_helper
from padded_text import net, samples
from sick import artifact

from anynpu import plugins
from anynpu.artifact import MANIFEST, Artifact, Manifest, Step, seal
from anynpu.lowering.graph import Graph, Operator, Tensor
from anynpu.lowering.write import to_bytes
from anynpu.measure.layers import worst_layers
from anynpu.measure.samples import FILE, SampleSet, write_samples
from anynpu.pipeline.diagnosis.run import diagnose
from anynpu.pipeline.layers import drawable, float_twin, inspect
from anynpu.pipeline.layers import graph as add_chip
from anynpu.pipeline.planner import plan
from anynpu.records.build import GraphForm
from anynpu.schema import from_json
from anynpu.targets.tflite import EQUALIZATION
from anynpu.targets.tflite_outline import same_tensors
from anynpu.testing.models import NOW, compiled, conv_net, data_artifact, onnx_artifact

for package in ("ai_edge_litert", "onnxruntime"):
    pytest.importorskip(package)

LAYERS = ("r1", "r2", "scores")
"""The tensors that the three weighted layers make, by the float model's names."""


class Chain:
    """One net on its way to one chip."""

    def __init__(self, model: Artifact, data: Artifact, chip: str, folder: Path) -> None:
        self.data, self.folder = data, folder
        self.made = [model]
        platform = plugins.platform(chip)
        for link in plan(platform, {}):
            out = folder / link.target.name
            self.made.append(compiled(link.target, self.made[-1], data, platform, link.options, out))

    def inspect(self, subject: Artifact | None = None) -> GraphForm:
        subject, twin = subject or drawable(self.made), float_twin(self.made)
        reference, floating = str(self.made[0].path), str(twin.path) if twin else ""
        with tempfile.TemporaryDirectory() as folder:
            inner = str(Path(folder) / "inner.npz")
            found = inspect(str(subject.path), reference, floating, str(self.data.path), inner)
            return from_json(GraphForm, found)

    def damaged(self, layer: int) -> Artifact:
        """Returns the last artifact with the weights of one layer shuffled."""
        source = self.made[-1]
        folder = self.folder / f"damaged-{layer}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source.path, folder)
        (folder / MANIFEST).unlink()
        change = damage_onnx if source.manifest.format == "onnx-ort" else damage_tflite
        change(folder / source.manifest.main, layer)
        bare = replace(source.manifest, files=(), step=None, made=None, seal="")
        return seal(folder, bare, source.manifest.step, NOW)


def shuffled(values: np.ndarray) -> np.ndarray:
    return np.random.default_rng(1).permutation(values.reshape(-1)).reshape(values.shape)


def damage_onnx(path: Path, layer: int) -> None:
    import onnx

    model = onnx.load(path)
    (stored,) = [t for t in model.graph.initializer if t.name == f"w{layer + 1}_quantized"]
    stored.CopyFrom(onnx.numpy_helper.from_array(shuffled(onnx.numpy_helper.to_array(stored)), stored.name))
    onnx.save(model, path)


def damage_tflite(path: Path, layer: int) -> None:
    from anynpu.runtime.tflite_file import operator_names, pack_model, read_model

    model = read_model(path.read_bytes())
    graph = model.subgraphs[0]
    weighted = [
        op
        for name, op in zip(operator_names(model), graph.operators, strict=True)
        if name in ("CONV_2D", "FULLY_CONNECTED")
    ]
    buffer = model.buffers[graph.tensors[int(weighted[layer].inputs[1])].buffer]
    buffer.data = shuffled(np.asarray(buffer.data, np.uint8))
    path.write_bytes(pack_model(model))


@pytest.fixture(scope="module")
def float_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    model = onnx_artifact(conv_net(), folder / "float")
    return model, data_artifact(model, folder / "data")


@pytest.fixture(scope="module", params=["cpu", "tflm"])
def chain(request, float_model, tmp_path_factory):
    return Chain(*float_model, request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def sound(chain):
    return chain.inspect()


def figures(graph: GraphForm) -> list[float]:
    return [node.sqnr_db for node in graph.nodes]


def weighted(graph: GraphForm) -> list[int]:
    """Returns the places of the nodes with weights."""
    return [place for place, node in enumerate(graph.nodes) if node.macs]


def test_every_layer_of_a_sound_build_is_close_to_the_float_model(chain, sound):
    assert all(db is not None and 25 < db < 100 for db in figures(sound)), figures(sound)
    assert len(weighted(sound)) == len(LAYERS) and sound.samples == 16
    assert sum(node.macs for node in sound.nodes) == chain.made[0].manifest.estimates.macs
    for node in sound.nodes:
        for name in node.outputs:
            tensor = sound.tensors[name]
            assert tensor.max_error > 0 and tensor.dtype == "int8" and len(tensor.scale) == 1


@pytest.mark.parametrize("layer", range(3))
def test_a_damaged_layer_is_where_the_error_begins(chain, sound, layer):
    graph = chain.inspect(chain.damaged(layer))
    before, after = figures(sound), figures(graph)
    place = weighted(sound)[layer]
    assert after[:place] == before[:place], "what comes before the fault computes as it did"
    assert before[place] - after[place] > 15, (before, after)
    assert max(after[place:]) < min(before[place:]), "and everything behind it has the error"
    # Tensors that a node only hands on (padding, a mean) lose nothing of their own.
    worst, _ = max(worst_layers(graph), key=lambda pair: pair[1])
    assert worst.name == graph.nodes[place].name


def test_equalised_channels_are_compared_in_the_units_of_the_float_model(chain, sound):
    if chain.made[-1].manifest.format != "tflite":
        pytest.skip("only the TFLite path equalises")
    from anynpu.targets.tflite import EQUALIZATION

    assert any("equalised" in note for note in sound.notes)
    folder = chain.folder / "forgotten"
    shutil.copytree(chain.made[-1].path, folder)
    (folder / EQUALIZATION).unlink()
    bare = replace(chain.made[-1].manifest, files=(), step=None, made=None, seal="")
    forgotten = chain.inspect(seal(folder, bare, chain.made[-1].manifest.step, NOW))
    first = weighted(sound)[0]
    assert figures(forgotten)[first] < figures(sound)[first] - 15, "without the factors the values are others"


def test_times_are_measured_where_the_runtime_has_a_profiler(chain, sound):
    times = [node.time for node in sound.nodes]
    if chain.made[-1].manifest.format == "onnx-ort":
        assert sound.time_unit == "ms (measured, onnxruntime profile)"
        assert all(sound.nodes[place].time > 0 for place in weighted(sound))
    else:
        assert sound.time_unit is None and times == [None] * len(times)


def test_beyond_the_budget_the_graph_is_drawn_without_errors(chain, monkeypatch):
    from anynpu.measure import layers

    monkeypatch.setattr(layers, "MACS_BUDGET", 1)
    graph = chain.inspect()
    assert len(graph.nodes) >= 5 and set(figures(graph)) == {None} and graph.samples == 0
    assert any("beyond the budget" in note for note in graph.notes)


def test_vela_estimates_of_the_nodes_add_up_to_that_of_the_model(chain, sound):
    pytest.importorskip("ethosu")
    if chain.made[-1].manifest.format != "tflite":
        pytest.skip("Vela takes TFLite files")
    platform = plugins.platform("ethos-u55-128")
    link = plan(platform, {})[-1]
    final = compiled(link.target, chain.made[-1], None, platform, link.options, chain.folder / "vela")
    graph = add_chip(sound, final)
    assert graph.time_unit == "cycles (Vela estimate)"
    assert sum(node.time or 0 for node in graph.nodes) == final.manifest.estimates.cycles
    assert {node.device for node in graph.nodes} == {"npu"} and figures(graph) == figures(sound)


def steps(kinds: list[list[str]]) -> bytes:
    """Returns a file with a tensor of one shape for each operator of each layer."""
    tensors, operators, before = {"x": Tensor("x", (1, 4))}, [], "x"
    for layer, row in enumerate(kinds):
        for kind in row:
            name = f"{layer}.{kind}"
            tensors[name] = Tensor(name, (1, 4))
            operators.append(Operator(kind, (before,), (name,)))
            before = name
    return to_bytes(Graph(tuple(operators), tensors, ("x",), (before,)))


def test_layers_that_look_alike_are_each_compared_with_itself(tmp_path):
    """What is put into the first layers makes the last ones look like the first ones of the float model."""
    before, behind = tmp_path / "float.tflite", tmp_path / "other.tflite"
    before.write_bytes(steps([["TANH", "LOGISTIC"]] * 4))
    behind.write_bytes(steps([["TANH", "ABS", "LOGISTIC"]] * 2 + [["TANH", "LOGISTIC"]] * 2))
    pairs = same_tensors(behind, before)
    assert len(pairs) == 9 and all(name == other for name, other in pairs.items())


def test_channels_that_were_smoothed_are_diagnosed_in_the_units_of_their_integers(tmp_path):
    model = onnx_artifact(stack(2), tmp_path / "float")
    smooth = Chain(model, data_artifact(model, tmp_path / "data"), "tflite", tmp_path)
    assert (smooth.made[-1].path / EQUALIZATION).is_file()
    places = smooth.made[-1], smooth.made[0], float_twin(smooth.made), smooth.data
    diagnosis = diagnose(*(str(each.path) for each in places))
    assert not diagnosis.causes


def test_rows_of_padding_are_no_part_of_the_error_of_a_layer(tmp_path):
    """No answer depends on them, and a build may hold them as badly as it likes."""
    truth = artifact(net(), "onnx", samples(), tmp_path / "float")
    other = net()
    (table,) = [each for each in other.graph.initializer if each.name == "table"]
    rows = numpy_helper.to_array(table).copy()
    rows[0] *= -3
    table.CopyFrom(numpy_helper.from_array(rows, "table"))
    subject = artifact(other, "onnx-ort", samples(), tmp_path / "other")
    (tmp_path / "data").mkdir()
    write_samples(tmp_path / "data", SampleSet(samples()))
    seal(tmp_path / "data", Manifest("dataset", FILE, truth.manifest.inputs), Step("data"), NOW)
    found = inspect(str(subject.path), str(truth.path), "", str(tmp_path / "data"), str(tmp_path / "inner.npz"))
    errors = [error for error in figures(from_json(GraphForm, found)) if error is not None]
    assert len(errors) > 5 and min(errors) > 100

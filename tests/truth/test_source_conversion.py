"""A conversion that changes the model, and a detector whose decode is not the host's on the samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.errors import ToolFailed, Unsupported
from anynpu.measure.samples import SampleSet, write_samples
from anynpu.pipeline.conversion import verify_converted
from anynpu.source import load
from anynpu.tasks.card import Card
from anynpu.tasks.images import Preprocess
from anynpu.tasks.yolo import Head
from anynpu.tensors import TensorSpec

pytest.importorskip("ai_edge_litert")
pytest.importorskip("onnxruntime")

from head_nets import SIZE, anchor_free
from tflite_builder import Builder

RNG = np.random.default_rng(0)
WIDTH, SAMPLES = 4, 32


def sealed(folder: Path, manifest: Manifest) -> Artifact:
    return seal(folder, manifest, Step(folder.name), Made("2026-01-01T00:00:00+00:00", 0.0))


def chain(folder: Path, kind: str, slope: float) -> dict[str, str]:
    """Returns the arguments of a verification: Relu(2 x) in ONNX, beside a TFLite file of this rectifier and slope."""
    shape = (1, WIDTH)
    for name in ("onnx", "tflite", "data"):
        (folder / name).mkdir()
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    nodes = [helper.make_node("Mul", ["x", "two"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    two = numpy_helper.from_array(np.float32(2), "two")
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [two])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "onnx" / "m.onnx"
    )
    specs = tuple(TensorSpec(name, shape) for name in "xy")
    truth = sealed(folder / "onnx", Manifest("onnx", "m.onnx", specs[:1], specs[1:]))
    builder = Builder()
    x = builder.input(shape, "float32", "x")
    p = builder.tensor("p", shape, "float32")
    builder.operator("MUL", [x, builder.constant("slope", [slope], "float32")], [p], options="MulOptions")
    builder.operator(kind, [p], [builder.tensor("y", shape, "float32")])
    builder.write(folder / "tflite" / "m.tflite")
    twin = sealed(folder / "tflite", Manifest("tflite-float", "m.tflite", specs[:1], specs[1:]))
    values = RNG.uniform(-1, 1, (SAMPLES, *shape[1:])).astype(np.float32)
    values[-1, 0] = 3.5  # only here Relu6 shows
    write_samples(folder / "data", SampleSet({"x": values}))
    paths = {"floating": twin.path, "candidate": twin.path, "reference": truth.path, "data": folder / "data"}
    return {name: str(path) for name, path in paths.items()} | {"answers": str(folder / "answers.npz")}


CONVERSIONS = {
    "an-operator-that-some-samples-show": ("RELU6", 2.0, "output 'y' on 1 of 32 samples"),
    "a-factor-off-by-a-twentieth": ("RELU", 2.1, "output 'y' on (29|3[0-2]) of 32 samples"),
    "a-sign": ("RELU", -2.0, "output 'y' on 32 of 32 samples"),
}


@pytest.mark.parametrize("case", CONVERSIONS)
def test_a_conversion_that_changes_the_model_is_named(case, tmp_path):
    kind, slope, words = CONVERSIONS[case]
    with pytest.raises(ToolFailed, match=f"anynpu's own writer made differs from the ONNX model: {words}") as told:
        verify_converted(**chain(tmp_path, kind, slope))
    assert told.value.exit_status == 5 and told.value.hint


@pytest.mark.parametrize("slope", [2.0, 2.0 * (1 + 2e-4)], ids=["exact", "rounded-by-other-kernels"])
def test_a_sound_conversion_is_no_matter(slope, tmp_path):
    assert verify_converted(**chain(tmp_path, "RELU", slope)).samples == SAMPLES


def test_classes_that_a_conversion_changes_are_named(tmp_path):
    for name in ("onnx", "tflite", "data"):
        (tmp_path / name).mkdir()
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1])
    graph = helper.make_graph([helper.make_node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "onnx" / "m.onnx")
    inputs, outputs = (TensorSpec("x", (1, WIDTH)),), (TensorSpec("y", (1,), "int64"),)
    truth = sealed(tmp_path / "onnx", Manifest("onnx", "m.onnx", inputs, outputs))
    builder = Builder()
    source, axis = builder.input((1, WIDTH), "float32", "x"), builder.constant("axis", [1])
    builder.operator(
        "ARG_MIN",
        [source, axis],
        [builder.tensor("y", (1,), "int64", scale=None)],
        options="ArgMinOptions",
        outputType=4,
    )
    builder.write(tmp_path / "tflite" / "m.tflite")
    twin = sealed(tmp_path / "tflite", Manifest("tflite-float", "m.tflite", inputs, outputs))
    write_samples(tmp_path / "data", SampleSet({"x": RNG.normal(size=(SAMPLES, WIDTH)).astype(np.float32)}))
    with pytest.raises(ToolFailed, match="output 'y' in 32 of 32 numbers on 32 samples"):
        verify_converted(
            str(twin.path),
            candidate=str(twin.path),
            reference=str(truth.path),
            data=str(tmp_path / "data"),
            answers=str(tmp_path / "answers.npz"),
        )


def detector(above: float) -> onnx.ModelProto:
    """A detector whose scores are sigmoids of the maps, less a step of one where the maps exceed a limit."""
    model = anchor_free()
    final = model.graph.node[-1]
    score = next(node for node in model.graph.node if node.op_type == "Sigmoid")
    limits = {"steep": 50.0, "limit": 50.0 * above}
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(v), n) for n, v in limits.items())
    extra = [
        helper.make_node("Mul", [score.input[0], "steep"], ["steeper"]),
        helper.make_node("Sub", ["steeper", "limit"], ["beyond"]),
        helper.make_node("Sigmoid", ["beyond"], ["step"]),
        helper.make_node("Sub", [score.output[0], "step"], ["limited"]),
    ]
    final.input[1] = "limited"
    for each in extra:
        model.graph.node.insert(len(model.graph.node) - 1, each)
    return model


def imported(folder: Path, model: onnx.ModelProto, brightness: float) -> load.Proof:
    onnx.save(model, folder / "net.onnx")
    images = RNG.uniform(0, brightness, (8, 3, *SIZE)).astype(np.float32)
    write_samples(folder, SampleSet({"images": images}))
    card = Card("detect", preprocess=Preprocess(resize="letterbox"), yolo=Head(version="v8", decode="host"))
    source = load.ModelSource(str(folder / "net.onnx"))
    return load._imported(source, str(folder), card, lambda manifest: [str(folder)]).proof


def test_a_decode_that_is_the_hosts_on_random_maps_only_is_refused(tmp_path):
    with pytest.raises(
        Unsupported, match=r"not the one of v8: the host's differs in output '.* \(scores\)' on 8 of 8"
    ) as told:
        imported(tmp_path, detector(above=12.0), brightness=40.0)
    assert 'decode = "model"' in told.value.hint


def test_a_detector_that_the_host_decodes_is_proved_on_all_samples(tmp_path):
    assert imported(tmp_path, anchor_free(), brightness=40.0).compared == 8

"""The one quantisation as RKNN-Toolkit2 gets it: a model with pairs that it reads as they are meant."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from fake_rknn import write_toolkit
from onnx import helper, numpy_helper

from anynpu import plugins, schema
from anynpu.errors import ConfigError, ToolFailed
from anynpu.records.quantisation import FILE, Quantisation
from anynpu.targets.rknn import Rknn
from anynpu.targets.rknn.quantise import as_read
from anynpu.testing import models

CHIP = plugins.platform("rk3588")
WRITTEN = np.float32(127 / 128)
"""What a scale of the quantisation is times in the file, where the zero point is 0."""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    return models.artifacts(models.conv_net(), tmp_path_factory.mktemp("net"))


@pytest.fixture
def build(net, tmp_path, monkeypatch):
    """Gives a function that compiles the net on a fake, each time in a folder of its own."""

    def compile(mode="", **options):
        monkeypatch.setenv("RKNN_TOOLKIT2_PATH", str(write_toolkit(tmp_path / f"toolkit-{mode}", mode)))
        folder = tmp_path / f"build{len(list(tmp_path.iterdir()))}"
        return models.compiled(Rknn(), *net, CHIP, Rknn.Options(**options), folder)

    return compile


def stored_in(made) -> Quantisation:
    return schema.from_dict(Quantisation, schema.read_json(made.path / FILE), FILE)


def edited(tmp_path: Path, **tensors) -> Path:
    path = tmp_path / "edited.json"
    path.write_text(json.dumps({"tensors": tensors}))
    return path


def file_of(made) -> onnx.ModelProto:
    return onnx.load(made.path / "rebuild/model.onnx")


def forms(model) -> dict[str, tuple[float, int]]:
    """Scale and zero point of every rounded activation, by onnx alone."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    return {node.input[0]: (float(stored[node.input[1]]), int(stored[node.input[2]])) for node in nodes}


def toolkit_reads(integers, scale):
    """What RKNN-Toolkit2 makes of integers with the zero point 0, as it was found to do on its simulator."""
    wider = np.float64(scale) * 128 / 127
    return np.clip(np.rint(integers * np.float64(scale) / wider), -127, 127) * wider


def test_the_file_that_is_rebuilt_has_our_quantisation(build):
    made = build()
    quantisation, written = stored_in(made), forms(file_of(made))
    assert quantisation.emitter == "rknn" and set(written) & {"r1", "r2"}
    for name, (scale, point) in written.items():
        form = quantisation.tensors[name.removesuffix("_QuantizeLinear_Input")]
        times = WRITTEN if point == 0 else 1
        assert form.zero_point == (point,) and scale == pytest.approx(form.scale[0] * times)
    assert not (made.path / "rebuild/samples.npz").exists()
    assert (made.path / "calibrated_ranges.json").is_file()
    assert [effect.name for effect in made.manifest.passes]


def test_rectifiers_stay_where_integers_would_end_as_they_do(build):
    kinds = [node.op_type for node in file_of(build()).graph.node]
    assert kinds.count("Relu") == 2


def test_weights_are_read_as_they_are_meant(build):
    """As the toolkit rounds them again, they are the integers and scales that the quantisation states."""
    made = build()
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in file_of(made).graph.initializer}
    weights = {name: form for name, form in stored_in(made).tensors.items() if form.origin == "weights"}
    assert weights
    for name, form in weights.items():
        integers = stored[f"{name}_quantized"]
        shape = [-1 if axis == form.axis else 1 for axis in range(integers.ndim)]
        scale = stored[f"{name}_scale"].reshape(shape if form.axis is not None else ())
        meant = np.asarray(form.scale).reshape(scale.shape)
        steps = toolkit_reads(integers, scale) / meant
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-4)
        assert np.rint(np.abs(steps).max()) == 126


@pytest.mark.parametrize("point", [0, 5])
def test_every_integer_is_read_back(point):
    """But 127 with the zero point 0, which the toolkit does not keep."""
    integers = np.arange(-127, 127, dtype=np.int8)
    stored = {"x": integers, "s": np.float32(0.5), "z": np.int8(point)}
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"])],
        "one",
        [],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, integers.shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()],
    )
    given = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    read = {tensor.name: numpy_helper.to_array(tensor) for tensor in as_read(given).graph.initializer}
    if point:
        assert np.array_equal(read["x"], integers) and read["s"] == 0.5
    else:
        np.testing.assert_allclose(toolkit_reads(read["x"].astype(float), read["s"]), integers * 0.5)


def test_an_edited_quantisation_is_in_the_file(build, tmp_path):
    stated = edited(tmp_path, r1={"range": [0, 2.55]}, scores={"scale": 0.05, "zero_point": 0})
    made = build(quantisation=stated)
    assert forms(file_of(made))["r1"] == (pytest.approx(0.01), -128)
    assert stored_in(made).tensors["scores"].scale == (pytest.approx(0.05),)
    again = build(quantisation=made.file(FILE))
    assert (again.path / "rebuild/model.onnx").read_bytes() == (made.path / "rebuild/model.onnx").read_bytes()


def test_what_the_toolkit_cannot_store_is_refused_by_name(build, tmp_path):
    with pytest.raises(ConfigError, match=r"tensors\.r1\.dtype: results are stored as int8, not int16"):
        build(quantisation=edited(tmp_path, r1={"dtype": "int16"}))
    quantisation = stored_in(build(method="layer"))
    name = next(name for name, form in quantisation.tensors.items() if form.origin == "weights" and form.axis is None)
    form = quantisation.tensors[name]
    with pytest.raises(ConfigError, match="some weights are stored as 127, which RKNN-Toolkit2 makes 126") as refused:
        build(
            method="layer",
            quantisation=edited(tmp_path, **{name: {"scale": form.scale[0] / 2, "zero_point": 0}}),
        )
    assert "1.0079 times as large" in refused.value.hint


def test_where_the_toolkit_crashes_on_pairs_it_quantises_itself_and_a_note_says_so(build, tmp_path):
    made = build("no_pairs")
    assert any("SIGSEGV" in note and "it quantised the model itself" in note for note in made.manifest.notes)
    assert (made.path / "rebuild/samples.npz").exists() and not (made.path / FILE).exists()
    for options in ({"algorithm": "anynpu"}, {"quantisation": edited(tmp_path, r1={"range": [0, 2]})}):
        with pytest.raises(ToolFailed, match="SIGSEGV"):
            build("no_pairs", **options)


@pytest.mark.parametrize(
    "options",
    [{"algorithm": "normal"}, {"quantize": "fp16"}, {"quantize": "int16"}, {"auto_hybrid": True}],
    ids=["normal", "fp16", "int16", "hybrid"],
)
def test_a_file_that_nobody_would_read_is_refused(options, tmp_path):
    with pytest.raises(ConfigError, match="this build has others"):
        Rknn.Options(quantisation=tmp_path / "edited.json", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"algorithm": "anynpu", "quantize": "fp16"}, "quantises to int8"), ({"ranges": "best"}, "no such range method")],
)
def test_options_of_our_quantisation_are_checked(options, words):
    with pytest.raises(ConfigError, match=words):
        Rknn.Options(**options)

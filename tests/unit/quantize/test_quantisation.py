"""The quantisation of a model as a file: both emitters write it, it can be compared, and an edited one holds."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest
from attention_block import SAMPLES, block
from families import random_net

from anynpu.errors import ConfigError
from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.read import from_bytes
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.fixed import keep_quantisation
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.qdq import write_qdq
from anynpu.records.quantisation import FILE, Quantisation, TensorForm, differences
from anynpu.schema import from_dict, read_json

EMITTERS = ("qdq", "tflite")


def nets():
    for seed in (1, 2, 5, 8):  # residual, mobile, attended, transformer
        net, data = random_net(seed)
        yield net.model(data), data
    yield block(-30.0), {"x": SAMPLES}


def built(emitter, model, data, folder, plan=None):
    """Returns the bytes of a build, and its quantisation as data."""
    plan, samples = plan or QuantPlan(), Dataset(dict(data), None, "test")
    folder.mkdir(parents=True, exist_ok=True)
    if emitter == "qdq":
        keep = partial(keep_quantisation, result=folder / "model.onnx")
        content = write_qdq(model, samples, plan, keep=keep).SerializeToString()
    else:
        (folder / "float.tflite").write_bytes(to_bytes(lower(model)))
        quantize_file(folder / "float.tflite", samples, plan, folder / "model.tflite")
        content = (folder / "model.tflite").read_bytes()
    return content, read_json(folder / FILE)


def stating(path, record, **plan):
    path.write_text(json.dumps(record))
    return QuantPlan(quantisation=path, **plan)


@pytest.mark.parametrize("emitter", EMITTERS)
def test_a_file_that_nobody_edited_gives_the_same_build(emitter, tmp_path):
    for number, (model, data) in enumerate(nets()):
        content, record = built(emitter, model, data, tmp_path / f"{number}")
        plan = stating(tmp_path / "stated.json", record)
        again, repeated = built(emitter, model, data, tmp_path / f"{number} again", plan)
        assert again == content, number
        assert not differences(*(from_dict(Quantisation, each, "file") for each in (record, repeated)))


@pytest.mark.parametrize("emitter", EMITTERS)
def test_every_tensor_of_a_file_has_the_form_that_the_record_states(emitter, tmp_path):
    model, data = next(nets())
    content, record = built(emitter, model, data, tmp_path)
    kinds = Counter(each.get("origin") for each in record["tensors"].values())
    assert kinds["measured"] > 3 and kinds["weights"] > 3 and kinds["bias"] > 3
    assert all(each["computes"] == "int8" for each in record["operators"].values())
    if emitter == "tflite":
        stored = from_bytes(content).tensors
        for name, form in record["tensors"].items():
            assert stored[name].dtype == form["dtype"]
            np.testing.assert_array_equal(np.float32(stored[name].quantization.scale), np.float32(form["scale"]))


@pytest.mark.parametrize("emitter", EMITTERS)
def test_a_stated_range_holds(emitter, tmp_path):
    model, data = next(nets())
    _, record = built(emitter, model, data, tmp_path)
    name = next(n for n, each in record["tensors"].items() if each.get("origin") == "measured" and n != "x")
    wanted = [-1.5, 3.0]
    plan = stating(tmp_path / "stated.json", {"tensors": {name: {"range": wanted}}})
    _, changed = built(emitter, model, data, tmp_path / "changed", plan)
    assert changed["tensors"][name]["origin"] == "stated"
    assert changed["tensors"][name]["scale"] == pytest.approx([4.5 / 255])
    assert changed["tensors"][name]["zero_point"] == [-43]
    found = differences(*(from_dict(Quantisation, each, "file") for each in (record, changed)))
    assert name in {each.tensor for each in found if each.what == "scale"}


@pytest.mark.parametrize("emitter", EMITTERS)
def test_what_follows_from_a_range_follows_an_edited_one(emitter, tmp_path):
    """A whole file with one range edited: biases behind it have another scale, and nobody has to compute that."""
    model, data = next(nets())
    _, record = built(emitter, model, data, tmp_path)
    name = "x"  # a convolution reads it
    record["tensors"][name] = {"range": [-1.5, 3.0]}
    plan = stating(tmp_path / "stated.json", record)
    _, changed = built(emitter, model, data, tmp_path / "changed", plan)
    assert changed["tensors"][name]["scale"] == pytest.approx([4.5 / 255])
    found = differences(*(from_dict(Quantisation, each, "file") for each in (record, changed)))
    origins = {record["tensors"][each.tensor].get("origin") for each in found}
    assert origins <= {None, "bias", "tied", "kernel", "constant"} and "bias" in origins
    bias = next(each.tensor for each in found if record["tensors"][each.tensor].get("origin") == "bias")
    record["tensors"][bias]["scale"] = [3 * scale for scale in record["tensors"][bias]["scale"]]
    with pytest.raises(ConfigError, match="cannot be") as caught:
        built(emitter, model, data, tmp_path / "changed", stating(tmp_path / "stated.json", record))
    assert bias in caught.value.message


@pytest.mark.parametrize("emitter", EMITTERS)
def test_a_stated_scale_of_weights_holds(emitter, tmp_path):
    model, data = next(nets())
    _, record = built(emitter, model, data, tmp_path)
    name, form = next((n, each) for n, each in record["tensors"].items() if each.get("origin") == "weights")
    doubled = {**form, "scale": [2 * each for each in form["scale"]]}
    plan = stating(tmp_path / "stated.json", {"tensors": {name: doubled}})
    _, changed = built(emitter, model, data, tmp_path / "changed", plan)
    assert changed["tensors"][name]["scale"] == pytest.approx(doubled["scale"])


@pytest.mark.parametrize("emitter", EMITTERS)
@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_a_stated_type_holds(emitter, dtype, tmp_path):
    model, data = next(nets())
    _, record = built(emitter, model, data, tmp_path)
    name = next(n for n, each in record["tensors"].items() if each.get("origin") == "measured" and n != "x")
    plan = stating(tmp_path / "stated.json", {"tensors": {name: {"dtype": dtype}}})
    _, changed = built(emitter, model, data, tmp_path / "changed", plan)
    assert changed["tensors"][name]["dtype"] == dtype
    option = {"int16": "wide_tensors", "float32": "float_tensors"}[dtype]
    named, _ = built(emitter, model, data, tmp_path / "named", QuantPlan(**{option: (name,)}))
    assert named == built(emitter, model, data, tmp_path / "changed", plan)[0]


@pytest.mark.parametrize("emitter", EMITTERS)
@pytest.mark.parametrize(
    "form", [{"scale": 0.125, "zero_point": 3}, {"dtype": "int16", "scale": 0.001, "zero_point": 0}]
)
def test_a_stated_scale_holds_with_or_without_a_type(emitter, form, tmp_path):
    model, data = next(nets())
    _, record = built(emitter, model, data, tmp_path)
    name = measured(record)
    plan = stating(tmp_path / "stated.json", {"tensors": {name: form}})
    _, changed = built(emitter, model, data, tmp_path / "changed", plan)
    there = changed["tensors"][name]
    assert there["dtype"] == form.get("dtype", "int8") and there["zero_point"] == [form["zero_point"]]
    assert there["scale"] == pytest.approx([form["scale"]])


def measured(record):
    return next(n for n, each in record["tensors"].items() if each.get("origin") == "measured" and n != "x")


BAD = {
    "an unknown name": (lambda record: {measured(record)[:-1]: {"range": [0, 1]}}, r"no such tensor \(did you mean"),
    "a range that ends before it begins": (lambda record: {measured(record): {"range": [1, 0]}}, r"is not a range"),
    "a scale of zero": (lambda record: {measured(record): {"scale": [0.0], "zero_point": [0]}}, "above zero"),
    "a type of nothing": (lambda record: {measured(record): {"dtype": "int7"}}, "no such type: int7"),
    "a zero point that does not fit": (
        lambda record: {measured(record): {"dtype": "int8", "scale": [1.0], "zero_point": [300]}},
        "outside of int8",
    ),
    "a wide tensor of an unknown name": (
        lambda record: {measured(record)[:-1]: {"dtype": "int16"}},
        r"no such tensor \(did you mean",
    ),
    "a zero point that does not fit the type of the build": (
        lambda record: {measured(record): {"scale": [1.0], "zero_point": [300]}},
        "the zero point 300 lies outside of int8",
    ),
    "a range beside another scale": (
        lambda record: {measured(record): {**record["tensors"][measured(record)], "range": [-9.0, 9.0]}},
        r"the range \[-9.0, 9.0\] has the scale",
    ),
    "a bias at a scale of its own": (
        lambda record: {
            next(n for n, each in record["tensors"].items() if each.get("origin") == "bias"): {
                "scale": [1.0],
                "zero_point": [0],
            }
        },
        "cannot be",
    ),
    "an unknown field": (lambda record: {measured(record): {"scales": [1.0]}}, "no such setting"),
}


@pytest.mark.parametrize("emitter", EMITTERS)
@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_sense_is_refused_by_its_place(emitter, case, tmp_path):
    model, data = next(nets())
    _, record = built(emitter, model, data, tmp_path)
    edited, message = BAD[case]
    tensors = edited(record)
    plan = stating(tmp_path / "stated.json", {"tensors": tensors})
    with pytest.raises(ConfigError, match=message) as caught:
        built(emitter, model, data, tmp_path / "changed", plan)
    assert "stated.json" in caught.value.message and f"tensors.{next(iter(tensors))}" in caught.value.message


def test_a_scale_that_a_kernel_ties_is_refused_with_the_reason(tmp_path):
    model, data = next(nets())
    _, record = built("tflite", model, data, tmp_path)
    name = next(n for n, each in record["tensors"].items() if each.get("origin") == "tied")
    plan = stating(tmp_path / "stated.json", {"tensors": {name: {"range": [-50.0, 50.0]}}})
    with pytest.raises(ConfigError, match="cannot be") as caught:
        built("tflite", model, data, tmp_path / "changed", plan)
    assert caught.value.hint == "the scale is that of the tensors that it is moved from or joined with"


def test_a_file_of_the_other_emitter_is_refused(tmp_path):
    model, data = next(nets())
    _, record = built("tflite", model, data, tmp_path)
    with pytest.raises(ConfigError, match="is the quantisation of a tflite file") as caught:
        built("qdq", model, data, tmp_path / "changed", stating(tmp_path / "stated.json", record))
    assert caught.value.hint.startswith("-O tflite.quantisation=")


def test_ranges_of_channels_that_other_samples_made_louder_are_refused(tmp_path):
    model, data = next(nets())
    _, record = built("tflite", model, data, tmp_path)
    louder = {"x": data["x"] * np.linspace(0.2, 3, data["x"].shape[-1], dtype=np.float32)}
    with pytest.raises(ConfigError, match="by other factors"):
        built("tflite", model, louder, tmp_path / "changed", stating(tmp_path / "stated.json", record))


def test_two_quantisations_are_compared_tensor_by_tensor():
    one = Quantisation(tensors={
        "a": TensorForm(dtype="int8", scale=(0.5,), zero_point=(0,)),
        "b": TensorForm(dtype="int8", scale=(0.5,), zero_point=(0,)),
        "c": TensorForm(dtype="int8", scale=(0.5,), zero_point=(0,)),
        "d": TensorForm(dtype="float32"),
    })  # fmt: skip
    other = Quantisation(tensors={
        "a": TensorForm(dtype="int8", scale=(0.5,), zero_point=(0,)),
        "b": TensorForm(dtype="int16", scale=(0.5,), zero_point=(0,)),
        "c": TensorForm(dtype="int8", scale=(0.25,), zero_point=(0,)),
        "e": TensorForm(dtype="float32"),
    })  # fmt: skip
    found = {each.tensor: each.what for each in differences(one, other)}
    assert found == {"b": "type", "c": "scale", "d": "only in A", "e": "only in B"}

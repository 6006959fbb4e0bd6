"""A .tflite file that ends at named tensors: what it gives there is what LiteRT computes there in the whole file."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tflite_builder import Builder

import anynpu
from anynpu.errors import ConfigError, Unsupported
from anynpu.quantize.tflite_given import read_given
from anynpu.runtime.litert import open_interpreter
from anynpu.runtime.tflite_file import operator_names, read_model

SHAPE = (1, 8, 8, 2)
SAMPLES = np.random.default_rng(0).normal(size=(24, *SHAPE[1:])).astype(np.float32)


def net(path, behind="custom"):
    """Writes two convolutions, one of which an operator behind it reads along with the second input."""
    b = Builder()
    x, other = b.input(SHAPE, "float32", name="x"), b.input((1, 3), "float32", name="other")
    boxes = b.conv(x, "boxes", SHAPE, 4, dtype="float32", relu=True)
    scores = b.conv(boxes, "scores", (1, 8, 8, 4), 3, dtype="float32")
    chosen = b.tensor("chosen", (1, 8, 8, 4), "float32")
    if behind == "custom":
        b.operator("CUSTOM", [boxes, other], [chosen])
        b.codes[-1].customCode = "Chooses"
    else:
        b.operator("ADD", [boxes, boxes], [chosen], options="AddOptions")
    return b.write(path, [chosen, scores])


def test_what_lies_in_front_is_what_litert_computes_there(tmp_path):
    path = net(tmp_path / "m.tflite", "sum")
    ended = read_given(path, ["scores", "boxes"])
    assert operator_names(read_model(ended.content)) == ["CONV_2D", "CONV_2D"]
    assert ended.notes[0] == (
        "the model ends at scores, boxes: 1 operators behind are left to the program that runs it (ADD)"
    )
    whole, part = open_interpreter(path.read_bytes(), keep=True), open_interpreter(ended.content)
    assert [detail["name"] for detail in part.get_input_details()] == ["x", "other"]
    for each in (whole, part):
        each.set_tensor(each.get_input_details()[0]["index"], SAMPLES[:1])
        each.invoke()
    numbers = {detail["name"]: detail["index"] for detail in whole.get_tensor_details()}
    for detail in part.get_output_details():
        assert np.array_equal(part.get_tensor(detail["index"]), whole.get_tensor(numbers[detail["name"]]))


def test_the_refusal_of_an_operator_nobody_has_names_the_places_to_end_at(tmp_path):
    path = net(tmp_path / "m.tflite")
    with pytest.raises(Unsupported, match="operator Chooses is a custom one") as refusal:
        anynpu.build(path, "tflite", data={"x": SAMPLES}, output=tmp_path / "out")
    places = re.search(r"--end-at (\S+)", refusal.value.hint)
    assert places is not None and places[1] == "boxes,scores"
    built = anynpu.build(path, "tflite", data={"x": SAMPLES}, end_at=["boxes", "scores"], output=tmp_path / "out")
    assert built["tflite"].status == "ok"
    assert [spec.name for spec in built["tflite"].artifact.manifest.outputs] == ["boxes", "scores"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("x", "--end-at x: is an input"), ("score", r"is not one of the model's \(did you mean 'scores'\?\)")],
)
def test_a_tensor_that_is_not_computed_is_no_place_to_end_at(name, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        read_given(net(tmp_path / "m.tflite"), [name])

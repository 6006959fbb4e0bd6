"""Models that end at named tensors; ONNX Runtime, running the whole model, is the judge."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from graph_nets import parse, run, weights
from onnx import TensorProto, helper

from anynpu.errors import ConfigError, Unsupported
from anynpu.graph.end import ended
from anynpu.graph.shapes import make_static
from anynpu.source.load import ModelSource, import_model

X, SIZE = weights(1, 6, 8, seed=2), np.float32([[2.0]])


def detector():
    """Boxes and scores of six places, those that suppression leaves, and how many there are in an image's pixels."""
    return parse(
        """g (float[1,6,8] x, float[1,1] size) => (float[1,6,4] boxes, float[chosen,3] picks, float[1,6,4] pixels) {
            boxes = MatMul(x, wb)
            turned = MatMul(x, ws)
            logits = Transpose<perm = [0, 2, 1]>(turned)
            scores = Sigmoid(logits)
            found = NonMaxSuppression(boxes, scores, most)
            picks = Cast<to = 1>(found)
            pixels = Mul(boxes, size)
        }""",
        wb=weights(8, 4),
        ws=weights(8, 2, seed=1),
        most=np.int64(3),
    )


def test_the_named_tensors_are_the_outputs_in_the_users_order():
    whole = detector()
    cut, notes = ended(whole, ["scores", "boxes"])
    onnx.checker.check_model(make_static(cut))
    exposed = detector()
    exposed.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, None))
    boxes, _, _, scores = run(exposed, X, SIZE)
    np.testing.assert_array_equal(run(cut, X)[0], scores)
    np.testing.assert_array_equal(run(cut, X)[1], boxes)
    assert [value.name for value in cut.graph.input] == ["x"], "only the pixels read the size"
    assert {tensor.name for tensor in cut.graph.initializer} == {"wb", "ws"}
    assert notes == (
        "the model ends at scores, boxes: 3 operators behind are left to the program that runs it"
        " (NonMaxSuppression, Cast, Mul)",
    )


def test_fewer_of_its_own_outputs_lose_nothing_silently():
    cut, notes = ended(detector(), ["boxes"])
    assert [value.name for value in cut.graph.output] == ["boxes"]
    assert "6 operators behind" in notes[0]


def test_its_own_outputs_in_another_order_are_imported_so(tmp_path):
    """No operator goes then, and the model is another all the same."""
    onnx.save(parse("g (float[4] x) => (float[4] a, float[4] b) { a = Abs(x)\n b = Neg(a) }"), tmp_path / "net.onnx")
    (tmp_path / "out").mkdir()
    source = ModelSource(str(tmp_path / "net.onnx"), end_at=("b", "a"))
    manifest = import_model(source, str(tmp_path / "out"))
    assert [spec.name for spec in manifest.outputs] == ["b", "a"]
    assert "the model ends at b, a" in manifest.notes


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        pytest.param("x", "--end-at x: is an input", id="input"),
        pytest.param("score", r"--end-at score: is not one of the model's \(did you mean 'scores'\?\)", id="unknown"),
        pytest.param("wb", "--end-at wb: is not one of the model's", id="weights"),
    ],
)
def test_what_is_no_end_is_refused_by_name(name, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ended(detector(), ["boxes", name])


def test_a_tail_that_depends_on_the_data_names_the_tensors_in_front_of_it(tmp_path):
    """What the refusal proposes is what the import then takes."""
    with pytest.raises(Unsupported, match="NonMaxSuppression gives a shape") as refusal:
        make_static(detector())
    places = re.search(r"--end-at (\S+)", refusal.value.hint)
    assert places is not None and set(places[1].split(",")) == {"boxes", "scores", "pixels"}
    onnx.save(detector(), tmp_path / "net.onnx")
    source = ModelSource(str(tmp_path / "net.onnx"), end_at=tuple(places[1].split(",")))
    manifest = import_model(source, str(tmp_path))
    assert [spec.name for spec in manifest.outputs] == places[1].split(",")
    assert any("are left to the program that runs it" in note for note in manifest.notes)


def test_a_model_that_begins_with_such_an_operator_is_offered_no_end():
    net = parse("g (float[4] x) => (float[n] y) { p = NonZero(x)\n f = Cast<to = 1>(p)\n y = Squeeze(f) }")
    with pytest.raises(Unsupported, match="NonZero gives a shape") as refusal:
        make_static(net)
    assert "--end-at" not in refusal.value.hint

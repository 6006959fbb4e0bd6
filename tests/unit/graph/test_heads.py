"""Where a detector ends and its decode begins: found by structure, proven by execution, refused with a sentence."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from head_nets import CLASSES, REG_MAX, RNG, SIZE, STRIDES, Writer, anchor_free

from anynpu.errors import Unsupported
from anynpu.graph.heads import cut_decode, decode, find_head
from anynpu.graph.run import Session


def test_maps_have_roles_strides_and_names():
    model = anchor_free()
    cut, head = cut_decode(model)
    assert (head.version, head.classes, head.reg_max, head.strides) == ("v8", CLASSES, REG_MAX, STRIDES)
    names = [f"{role}_{stride}" for stride in STRIDES for role in ("boxes", "classes")]
    assert [value.name for value in cut.graph.output] == names
    assert {node.op_type for node in cut.graph.node} == {"Conv", "Relu"}
    onnx.checker.check_model(cut, full_check=True)


@pytest.mark.parametrize("form", [{}, {"swapped": True}, {"together": False}, {"corners": True}])
def test_cut_and_decode_give_what_the_model_gave(form):
    model = anchor_free(**form)
    cut, head = cut_decode(model)
    image = RNG.uniform(0, 1, (1, 3, *SIZE)).astype(np.float32)
    maps = Session(cut).run({"images": image})
    rows = decode(head, dict(zip([v.name for v in cut.graph.output], maps, strict=True)))
    if form.get("corners"):
        rows[:4] = np.concatenate([rows[:2] - rows[2:4] / 2, rows[:2] + rows[2:4] / 2])
    np.testing.assert_allclose(rows, Session(model).run({"images": image})[0][0], atol=1e-4)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"scores": "Softmax"}, "not the one of v8"),
        ({"scores": "Tanh"}, "operator Tanh"),
        ({"broken": "distances"}, "not the one of v8"),
        ({"broken": "third"}, "3 of stride 8, 2 of stride 16"),
    ],
)
def test_decodes_of_another_kind_are_refused(form, words):
    with pytest.raises(Unsupported, match=words) as caught:
        find_head(anchor_free(**form))
    assert "looked for: one image input" in caught.value.message and 'decode = "model"' in caught.value.hint


def test_a_classifier_is_no_detector():
    w = Writer()
    mean = w.add("GlobalAveragePool", w.conv("images", 3, 6, 8))
    flat = w.add("Flatten", mean)
    with pytest.raises(Unsupported, match="its outputs are"):
        find_head(w.model({flat: [1, 6]}))


def test_an_image_that_reaches_the_decode_directly_is_refused():
    w = Writer()
    flat = w.add("Reshape", "images", w.store(np.array([1, 3, -1])))
    with pytest.raises(Unsupported, match="without a convolution"):
        find_head(w.model({flat: [1, 3, SIZE[0] * SIZE[1]]}))


def test_a_tensor_that_has_a_map_s_name_already_gives_way():
    model = anchor_free()
    inner = model.graph.node[1].output[0]
    for node in model.graph.node:
        node.input[:] = ["boxes_16" if name == inner else name for name in node.input]
        node.output[:] = ["boxes_16" if name == inner else name for name in node.output]
    cut, _ = cut_decode(model)
    onnx.checker.check_model(cut, full_check=True)
    image = np.ones((1, 3, *SIZE), np.float32)
    shapes = [array.shape for array in Session(cut).run({"images": image})]
    assert shapes == [tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in cut.graph.output]

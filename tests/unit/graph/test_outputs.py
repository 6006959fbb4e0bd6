"""Parts of an output that differ in range become outputs; ONNX Runtime, running the whole, is the judge."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from graph_nets import parse, run, weights

from anynpu.errors import ConfigError
from anynpu.graph.outputs import apart
from anynpu.graph.shapes import infer
from anynpu.source.load import ModelSource, identify, import_model

X = weights(1, 8, seed=2)
STORED = {
    "wb": weights(8, 120),
    "k": np.float32([640]),
    "ws": weights(8, 600, seed=1),
    "wm": weights(8, 90, seed=3),
    "box": np.array([1, 4, 30]),
    "score": np.array([1, 20, 30]),
    "masks": np.array([1, 3, 30]),
    "grid": np.array([1, 4, 6, 5]),
    "grids": np.array([1, 20, 6, 5]),
    "rows": np.array([1, 24, 30]),
    "ones": np.ones((1, 2, 30), np.float32),
}
BOXES = "b = MatMul(x, wb) c = Sigmoid(b) d = Mul(c, k)"
SCORES = "s = MatMul(x, ws) t = Sigmoid(s)"
WHOLE = {
    "parts": f"{BOXES} {SCORES} e = Reshape(d, box) u = Reshape(t, score) y = Concat<axis = 1>(e, u)",
    "parts last": f"""{BOXES} {SCORES} e = Reshape(d, box) u = Reshape(t, score) j = Concat<axis = -2>(e, u)
        y = Transpose<perm = [0, 2, 1]>(j)""",
    "behind a reshape": f"""{BOXES} {SCORES} e = Reshape(d, grid) u = Reshape(t, grids) j = Concat<axis = 1>(e, u)
        y = Reshape(j, rows)""",
    "of two levels": f"""{BOXES} {SCORES} e = Reshape(d, box) u = Reshape(t, score) j = Concat<axis = 1>(e, u)
        f = Neg(e) h = Concat<axis = 1>(f, u) y = Concat<axis = 2>(j, h)""",
    "one in the other": f"""{BOXES} {SCORES} e = Reshape(d, box) u = Reshape(t, score) j = Concat<axis = 1>(e, u)
        m = MatMul(x, wm) o = Tanh(m) n = Reshape(o, masks) y = Concat<axis = 1>(j, n)""",
}
SHAPES = {
    "parts": [(1, 4, 30), (1, 20, 30)],
    "parts last": [(1, 30, 4), (1, 30, 20)],
    "behind a reshape": [(1, 4, 30), (1, 20, 30)],
    "of two levels": [(1, 4, 60), (1, 20, 60)],
    "one in the other": [(1, 4, 30), (1, 23, 30)],
}
AXES = {"parts last": 2}


def net(body: str) -> onnx.ModelProto:
    return infer(parse(f"g (float[1,8] x) => (float[?,?,?] y) {{ {body} }}", **STORED))


@pytest.mark.parametrize("name", WHOLE)
def test_the_parts_put_together_are_the_whole(name):
    whole = net(WHOLE[name])
    cut, notes = apart(whole)
    onnx.checker.check_model(cut, full_check=True)
    parts, axis = run(cut, X), AXES.get(name, 1)
    assert [part.shape for part in parts] == SHAPES[name]
    np.testing.assert_array_equal(np.concatenate(parts, axis), run(whole, X)[0])
    assert [value.name for value in cut.graph.output] == ["y_0", "y_1"]
    assert len(notes) == 1 and f"along axis {axis}: " in notes[0] and "--keep-outputs" in notes[0]
    assert "y_0 (places 0..3, to " in notes[0]


def test_parts_of_parts_are_cut_where_they_were_put_together():
    """A pose net: boxes, and for each of twenty points two places and how sure they are."""
    shapes = {"points": [1, 20, 2, 30], "seen": [1, 20, 1, 30], "together": [1, 60, 30]}
    body = f"""{BOXES} {SCORES} e = Reshape(d, box) q = MatMul(x, wp) r = Mul(q, k) g = Reshape(r, points)
        l = Reshape(t, seen) o = Concat<axis = 2>(g, l) p = Reshape(o, together) y = Concat<axis = 1>(e, p)"""
    stored = STORED | {"wp": weights(8, 1200, seed=5)} | {name: np.array(shape) for name, shape in shapes.items()}
    whole = infer(parse(f"g (float[1,8] x) => (float[?,?,?] y) {{ {body} }}", **stored))
    cut, (note,) = apart(whole)
    boxes, points, seen = run(cut, X)
    assert (boxes.shape, points.shape, seen.shape) == ((1, 4, 30), (1, 20, 2, 30), (1, 20, 1, 30))
    joined = np.concatenate([boxes, np.concatenate([points, seen], 2).reshape(1, 60, 30)], 1)
    np.testing.assert_array_equal(joined, run(whole, X)[0])
    assert "places 4..63 as [1, 20, 3, 30] along axis 2: y_1 (places 0..1, to " in note


ALIKE = {
    "boxes alone": f"{BOXES} e = Reshape(d, box) y = Concat<axis = 1>(e, e)",
    "boxes as parts of the image": f"""{BOXES} {SCORES} e = Reshape(c, box) u = Reshape(t, score)
        y = Concat<axis = 1>(e, u)""",
    "levels": f"{BOXES} e = Reshape(d, box) f = Neg(e) y = Concat<axis = 2>(e, f)",
    "a constant beside them": f"{BOXES} e = Reshape(d, box) y = Concat<axis = 1>(e, ones)",
    "behind arithmetic": f"""{BOXES} {SCORES} e = Reshape(d, box) u = Reshape(t, score) j = Concat<axis = 1>(e, u)
        y = Mul(j, k)""",
}


@pytest.mark.parametrize("name", ALIKE)
def test_outputs_of_one_range_and_what_cannot_be_cut_stay_whole(name):
    whole = net(ALIKE[name])
    assert apart(whole) == (whole, ())


@pytest.mark.parametrize(("joined", "sizes"), [("s, e, z", [2, 4, 2]), ("e, z", [4, 2])])
def test_an_input_that_is_handed_on_is_a_part(joined, sizes):
    whole = infer(
        parse(
            f"g (float[1,8] x, float[1,2,30] z) => (float[?,?,?] y) {{ {BOXES} e = Reshape(d, box) s = Tanh(z) "
            f"y = Concat<axis = 1>({joined}) }}",
            **STORED,
        )
    )
    z = 0.1 * weights(1, 2, 30, seed=7)
    parts = run(apart(whole)[0], X, z)
    assert [part.shape[1] for part in parts] == sizes
    np.testing.assert_array_equal(np.concatenate(parts, 1), run(whole, X, z)[0])


def test_a_model_that_random_numbers_break_stays_whole():
    whole = infer(
        parse(
            f"""g (float[1,8] x, int64[1] place) => (float[?,?,?] y) {{ {BOXES} {SCORES} e = Reshape(d, box)
                u = Reshape(t, score) far = Sub(place, hundred) r = Gather<axis = 1>(u, far)
                y = Concat<axis = 1>(e, r) }}""",
            **STORED,
            hundred=np.array([100]),
        )
    )
    assert apart(whole) == (whole, ())


def test_an_import_cuts_them_unless_the_user_keeps_them(tmp_path):
    onnx.save(net(WHOLE["parts"]), tmp_path / "net.onnx")
    source = ModelSource(str(tmp_path / "net.onnx"))
    cut = import_model(source, str(tmp_path))
    assert [spec.name for spec in cut.outputs] == ["y_0", "y_1"]
    assert any("puts values of different range together" in note for note in cut.details["frozen"])
    assert "outputs-apart" in [effect.name for effect in cut.passes]
    kept = import_model(ModelSource(source.model, keep_outputs=True), str(tmp_path))
    assert [spec.name for spec in kept.outputs] == ["y"] and not kept.details["frozen"]


def test_a_tflite_file_keeps_its_outputs_in_any_case(tmp_path):
    with pytest.raises(ConfigError, match="--keep-outputs has no effect"):
        identify(ModelSource(str(tmp_path / "net.tflite"), keep_outputs=True))

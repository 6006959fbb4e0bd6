"""A detector cut before its decode and decoded on the host is the detector; at eight bits its scores survive."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import onnx  # noqa: E402
import tiny_yolo  # noqa: E402

from anynpu.errors import ConfigError  # noqa: E402
from anynpu.graph.heads import decode, find_head  # noqa: E402
from anynpu.graph.run import Session  # noqa: E402
from anynpu.quantize.calibration import Dataset  # noqa: E402
from anynpu.quantize.plan import QuantPlan  # noqa: E402
from anynpu.quantize.qdq import write_qdq  # noqa: E402
from anynpu.schema import from_dict  # noqa: E402
from anynpu.source.load import ModelSource, import_model  # noqa: E402
from anynpu.tasks import yolo  # noqa: E402
from anynpu.tasks.card import Card  # noqa: E402
from anynpu.tasks.images import Preprocess  # noqa: E402
from anynpu.tensors import TensorSpec  # noqa: E402

pytestmark = pytest.mark.build
HEADS = {"v5": "v5", "v8": "v8", "v11": "v8"}
CASES = [("v5", (64, 64), 3, 16), ("v8", (64, 96), 3, 16), ("v8", (64, 64), 1, 8), ("v11", (96, 64), 5, 16)]


def card(version, decode="host"):
    anchors = ((((1, 1), (2, 2), (3, 3)),) * 3) if version == "v5" else ()
    head = yolo.Head(version=HEADS[version], decode=decode, anchors=anchors)
    return Card("detect", preprocess=Preprocess(resize="letterbox", channels="BGR"), yolo=head)


def imported(folder, version, size, classes, reg_max, **kind):
    folder.mkdir(exist_ok=True)
    file = tiny_yolo.export(folder / "net.onnx", tiny_yolo.build(version, classes, reg_max), size)
    return import_model(ModelSource(str(file)), str(folder), card(version, **kind))


@pytest.mark.parametrize(("version", "size", "classes", "reg_max"), CASES)
def test_cut_and_host_decode_are_the_model(tmp_path, version, size, classes, reg_max):
    manifest = imported(tmp_path, version, size, classes, reg_max)
    names = [item.name for item in manifest.outputs]
    roles = ("maps",) if version == "v5" else ("boxes", "classes")
    assert names == [f"{role}_{stride}" for stride in (8, 16, 32) for role in roles]
    assert all(item.layout == "NCHW" for item in manifest.outputs) and manifest.inputs[0].channels == "BGR"
    head = from_dict(Card, manifest.task, "task").yolo
    assert head.anchors == (tiny_yolo.ANCHORS if version == "v5" else ()) and head.strides == (8, 16, 32)
    assert version == "v5" or head.reg_max == reg_max

    image = tiny_yolo.images(1, size, seed=3)
    whole = tiny_yolo.build(version, classes, reg_max)(torch.from_numpy(image)).detach().numpy()[0]
    maps = dict(zip(names, Session(onnx.load(tmp_path / "model.onnx")).run({"images": image}), strict=True))
    specs = tuple(TensorSpec(n, a.shape, layout="NCHW") for n, a in maps.items())
    found = yolo.candidates(yolo.layout(head, size, specs), maps, 0.3)
    rows = whole.T if version == "v5" else whole
    scores = rows[5:] * rows[4:5] if version == "v5" else rows[4:]
    # Every class of every box above the threshold, or the best class of each: whichever the host decode gives.
    best = scores.max(0) > 0.3
    assert len(found.scores) >= best.sum() > 0
    assert abs(np.sort(found.scores)[::-1][: best.sum()] - np.sort(scores.max(0)[best])[::-1]).max() < 1e-4
    top = int(scores.max(0).argmax())
    centre, side = rows[:2, top], rows[2:4, top]
    wanted = np.concatenate([centre - side / 2, centre + side / 2])
    assert np.abs(found.boxes[found.scores.argmax()] - wanted).max() < 1e-3
    assert found.classes[found.scores.argmax()] == scores[:, top].argmax()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """One detector imported with its decode and without, as files, and its head."""
    folder = tmp_path_factory.mktemp("detector")
    for where in ("host", "model"):
        imported(folder / where, "v8", (64, 64), 3, 16, decode=where)
    host, model = (onnx.load(folder / where / "model.onnx") for where in ("host", "model"))
    return host, model, find_head(model)


def test_the_reference_decode_is_the_model_s_to_a_ten_thousandth(both):
    host, model, head = both
    image = tiny_yolo.images(1, seed=5)
    rows = decode(head, dict(zip([m.name for m in head.maps], Session(host).run({"images": image}), strict=True)))
    np.testing.assert_allclose(rows, Session(model).run({"images": image})[0][0], atol=1e-4, rtol=1e-6)


def test_a_card_of_the_other_version_is_refused(tmp_path):
    file = tiny_yolo.export(tmp_path / "net.onnx", tiny_yolo.v5())
    with pytest.raises(ConfigError, match="head of version v5"):
        import_model(ModelSource(str(file)), str(tmp_path), card("v8"))


def test_a_card_that_decodes_in_the_model_leaves_it_whole(tmp_path):
    manifest = imported(tmp_path, "v8", (64, 64), 3, 16, decode="model")
    assert [item.name for item in manifest.outputs] == ["output0"]


def test_eight_bits_keep_scores_on_the_host_and_lose_them_in_the_model(both):
    host, model, head = both
    data = Dataset({"images": tiny_yolo.images(16, seed=1)}, None, "generated", False)
    image = {"images": tiny_yolo.images(1, seed=2)}
    exact = Session(model).run(image)[0][0, 4:]
    plan = QuantPlan(method="percentile")
    naive = Session(write_qdq(model, data, plan)).run(image)[0][0, 4:]
    maps = Session(write_qdq(host, data, plan)).run(image)
    cut = decode(head, dict(zip([m.name for m in head.maps], maps, strict=True)))[4:]
    assert len(np.unique(naive)) <= 2  # one scale for pixels and scores: nothing is left to choose from
    assert np.abs(cut - exact).mean() < 0.03
    assert np.abs(naive - exact).mean() > 5 * np.abs(cut - exact).mean()

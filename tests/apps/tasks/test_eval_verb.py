"""anynpu eval on models small enough to be written by hand: colours, blocks, words; and one that was built."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from anynpu.artifact import Made, Manifest, Step, seal
from anynpu.tasks.card import Card, Chosen
from anynpu.tasks.clip_tokens import ClipTokens
from anynpu.tasks.images import Preprocess
from anynpu.tasks.space import Space
from anynpu.tasks.text import TextInput
from anynpu.tensors import TensorSpec

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
Image = pytest.importorskip("PIL.Image")
import clip_vocabulary_maker as maker  # noqa: E402
from blocks import artifact as blocks_artifact  # noqa: E402
from blocks import scene  # noqa: E402
from colours import CLASSES, COLOURS, LAYOUT, colours_net, net  # noqa: E402

NOW = Made("2026-01-01T00:00:00+00:00", 0.0)


def sealed(folder, name, specs, task, files=None):
    chosen = Chosen(task, files or {}) if task else None
    if chosen:
        chosen.copy_to(folder)
    manifest = Manifest("onnx", name, *specs, fingerprint="f" * 64, task=chosen.task() if chosen else {})
    seal(folder, manifest, Step("test"), NOW)
    return folder


@pytest.fixture
def classifier(tmp_path):
    def make(name="net", task=CLASSES, wrong=0.0):
        (tmp_path / name).mkdir()
        colours_net(tmp_path / name / "model.onnx", wrong)
        specs = (TensorSpec("image", (1, 3, 8, 8), **LAYOUT),), (TensorSpec("means", (1, 3)),)
        return sealed(tmp_path / name, "model.onnx", specs, task)

    return make


@pytest.fixture
def photos(tmp_path):
    """Forty pictures of each colour; every tenth is of the next colour."""

    def make(names=tuple(COLOURS), count=40, name="photos", seed=0):
        rng = np.random.default_rng(seed)
        for number, label in enumerate(names):
            (tmp_path / name / label).mkdir(parents=True)
            for at in range(count):
                pixels = rng.integers(0, 60, (9, 12, 3))
                pixels[:, :, (number + (at % 10 == 9)) % 3] += 100 + at
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / name / label / f"{at:02}.png")
        return tmp_path / name

    return make


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Runs the command line in this process; returns its status, stdout (parsed where it is JSON) and stderr."""
    from anynpu.cli.main import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = main(["eval", *map(str, arguments)])
        told = capsys.readouterr()
        return status, json.loads(told.out) if "json" in arguments else told.out, told.err

    return run


def test_a_labelled_folder(call, classifier, photos, tmp_path):
    status, record, err = call(classifier(), "--data", photos(), "-f", "json", "-o", tmp_path / "e.json")
    assert status == 0 and (record["kind"], record["schema_version"], record["task"]) == ("eval", 1, "classify")
    assert record["score"] == pytest.approx(0.9) and record["samples"] == 120 and not record["weak"]
    assert record["low"] == pytest.approx(0.8333, abs=1e-3) and record["high"] == pytest.approx(0.9419, abs=1e-3)
    assert "Wilson" in record["interval"] and list(record["metrics"]) == ["top1"] and "eval" in err
    assert json.loads((tmp_path / "e.json").read_text()) == record


def test_the_record_becomes_a_report_and_a_row_of_the_ledger(call, classifier, photos):
    from anynpu.measure.ledger import rows_of
    from anynpu.records.load import load
    from anynpu.report.html import render

    _, record, _ = call(classifier(), "--data", photos(), "-f", "json")
    assert "0.9" in render(load(record, "here"))
    assert [(row.metric, row.better) for row in rows_of(record, "here")] == [("top1", "higher")]


def test_text_says_the_score_and_that_few_samples_are_weak(call, classifier, photos):
    status, out, _ = call(classifier(), "--data", photos(count=10), "-q")
    assert status == 0 and "top1 0.9000 [0.7438, 0.9654] on 30 images (95 %, Wilson)" in out
    assert "note: weak: 30 images are fewer than 100" in out


def test_classes_go_by_name_or_else_in_order(call, classifier, photos):
    made = classifier()
    _, record, _ = call(made, "--data", photos(("a", "b", "c"), name="other"), "-f", "json")
    assert record["score"] == pytest.approx(0.9) and "taken in order, a as red to c as blue" in record["notes"][0]
    status, _, err = call(made, "--data", photos(("red", "grean"), name="odd"))
    assert status == 2 and "no label grean" in err and "green" in err
    _, record, _ = call(made, "--data", "odd", "--rename", "grean=green", "-f", "json")
    assert record["score"] == pytest.approx(0.9)


def test_an_image_that_cannot_be_read_is_named_and_left_out(call, classifier, photos):
    folder = photos()
    (folder / "red" / "00.png").write_bytes(b"no image")
    (folder / "red" / "01.png").write_bytes((folder / "red" / "02.png").read_bytes()[:60])
    status, record, err = call(classifier(), "--data", folder, "-f", "json")
    assert status == 1 and record["samples"] == 118 and "00.png" in err and "01.png" in err
    assert len(record["data"]["failed"]) == 2


def test_folders_without_labels_or_images_are_refused(call, classifier, photos, tmp_path):
    made, folder = classifier(), photos(count=1)
    (tmp_path / "empty" / "red").mkdir(parents=True)
    for data, told in (("empty", "no images"), (folder / "red", "no labels"), ("none", "no such folder")):
        status, _, err = call(made, "--data", data)
        assert status == 2 and told in err
    for file in folder.rglob("*.png"):
        file.write_bytes(b"")
    status, _, err = call(made, "--data", folder)
    assert status == 2 and "none of 3 images" in err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--metric", "map50"), "does not go with classify"),
        (("--metric", "top5"), "no such figure"),
        (("--annotations", "x.json"), "--annotations does not go with"),
        (("--text-model", "x"), "--text-model does not go with"),
        (("-P", "resize=stretch"), "-P: the card says"),
        (("--rename", "pink=red"), "no such class"),
        (("--level", "2"), "level 2"),
        (("-o", "no/such/e.json"), "no such folder"),
    ],
)
def test_what_does_not_go_together_is_refused(call, classifier, photos, flags, told):
    status, out, err = call(classifier(), "--data", photos(count=1), *flags)
    assert status == 2 and told in err and not out


def test_against_another_artifact(call, classifier, photos):
    good, bad, folder = classifier("good"), classifier("bad", wrong=1.05), photos()
    status, record, _ = call(bad, "--data", folder, "--against", good, "-f", "json")
    assert status == 1 and record["against"]["verdict"] == "worse" and record["against"]["p_value"] < 1e-6
    assert record["against"]["difference"]["high"] < 0 and record["against"]["score"] == pytest.approx(0.9)
    status, out, _ = call(good, "--data", folder, "--against", bad)
    assert status == 0 and out.endswith("verdict: better\n") and "McNemar" in out
    status, out, _ = call(good, "--data", folder, "--against", good)
    assert status == 0 and out.endswith("verdict: no difference\n")


def test_labelled_arrays_with_and_without_a_card(call, classifier, tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.random((200, 3, 8, 8), np.float32), rng.integers(0, 3, 200)
    images[np.arange(200), labels] += 0.5
    labels[:20] = (labels[:20] + 1) % 3
    np.savez("t.npz", image=images, labels=labels)
    np.savez("u.npz", image=images)
    for made in (classifier("card"), classifier("bare", task=None)):
        status, record, _ = call(made, "--data", "t.npz", "--metric", "top1", "-f", "json")
        assert status == 0 and record["score"] == pytest.approx(0.9) and record["unit"] == "samples"
    status, _, err = call("bare", "--data", "t.npz", "--metric", "spearman")
    assert status == 2 and "no such metric" in err
    status, _, err = call("bare", "--data", "u.npz")
    assert status == 2 and "no labels" in err
    status, _, err = call("bare", "--data", "t.npz", "--rename", "a=b")
    assert status == 2 and "--rename does not go with" in err


def test_a_folder_for_a_model_without_a_card_needs_the_preprocessing(call, classifier, photos):
    made = classifier(task=None)
    status, _, err = call(made, "--data", photos(count=4))
    assert status == 2 and "preprocessing is not stated" in err
    _, record, _ = call(made, "--data", "photos", "-P", "resize=stretch", "--metric", "top1", "-f", "json")
    assert record["samples"] == 12 and "sorted order" in "".join(record["notes"])


def test_squared_error_is_better_when_lower(call, classifier):
    images = np.random.default_rng(0).random((120, 3, 8, 8), np.float32)
    np.savez("t.npz", image=images, labels=images.mean(axis=(2, 3)))
    good, bad = classifier("good", task=None), classifier("bad", task=None, wrong=0.1)
    status, record, _ = call(bad, "--data", "t.npz", "--against", good, "-f", "json")
    assert status == 1 and record["metric"] == "mse" and record["score"] > record["against"]["score"]
    assert call(good, "--data", "t.npz", "--against", bad)[1].endswith("verdict: better\n")


@pytest.fixture
def boxes(tmp_path):
    """Twelve scenes with a red and a blue block, and their annotations as COCO and as VOC."""
    rng = np.random.default_rng(3)
    (tmp_path / "scenes").mkdir()
    (tmp_path / "voc").mkdir()
    images, rows = [], []
    for at in range(12):
        spots = [
            (c, int(x) * 16, int(y) * 16) for c, (x, y) in zip(("red", "blue"), rng.integers(1, 6, (2, 2)), strict=True)
        ]
        scene(tmp_path / "scenes" / f"{at:02}.png", *spots)
        images.append({"id": at, "file_name": f"set/{at:02}.png", "height": 128, "width": 128})
        xml = ""
        for colour, x, y in (*spots, *((c, 64, 96) for c in ("red",) if at % 3 == 0)):
            # The detector's boxes are 32 pixels wide around blocks of 16; people draw them less exactly, and every
            # third scene has an object that is not to be seen.
            left, top, wide, high = (np.array([x - 8, y - 8, 32, 32]) + rng.integers(-5, 6, 4)).tolist()
            number = {"red": 1, "blue": 2}[colour]
            rows.append({"image_id": at, "category_id": number, "bbox": [left, top, wide, high]})
            corners = (left + 1, top + 1, left + wide, top + high)
            xml += f"<object><name>{colour}</name><bndbox>"
            xml += "".join(f"<{n}>{v}</{n}>" for n, v in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))
            xml += "</bndbox></object>"
        (tmp_path / "voc" / f"{at:02}.xml").write_text(
            f"<annotation><filename>{at:02}.png</filename>{xml}</annotation>"
        )
    data = {"images": images, "annotations": rows, "categories": [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}]}
    (tmp_path / "c.json").write_text(json.dumps(data))
    return data


def test_boxes_of_coco_and_voc(call, boxes, tmp_path):
    made = blocks_artifact(tmp_path / "blocks")
    status, record, _ = call(made, "--data", "scenes", "--annotations", "c.json", "-f", "json")
    assert status == 0 and (record["task"], record["metric"], record["samples"]) == ("detect", "map50-95", 12)
    assert len(record["metrics"]) == 12 and record["weak"] and "bootstrap over images" in record["interval"]
    assert 0.1 < record["low"] < record["score"] < record["high"] < 0.9
    assert record["metrics"]["map-large"] == {"value": None, "low": None, "high": None}
    assert {row["class"] for row in record["classes"]} == {"red", "blue"}
    again = call(made, "--data", "scenes", "--annotations", "c.json", "-f", "json")[1]
    assert again["metrics"] == record["metrics"]
    _, voc, _ = call(made, "--data", "scenes", "--annotations", "voc", "-f", "json")
    assert voc["score"] == pytest.approx(record["score"])
    status, out, _ = call(made, "--data", "scenes", "--annotations", "c.json", "--metric", "map50", "--limit", "5")
    assert status == 0 and "map50 " in out and "on 5 images" in out and "AP50" in out


def test_boxes_are_those_of_pycocotools(call, boxes, tmp_path):
    import contextlib
    import io

    COCO = pytest.importorskip("pycocotools.coco").COCO
    from pycocotools.cocoeval import COCOeval

    from anynpu.cli.task import TaskFlags, opened
    from anynpu.measure.coco import FIGURES
    from anynpu.tasks.detect import Detector, Threshold
    from anynpu.tasks.picture import read_image

    made = blocks_artifact(tmp_path / "blocks")
    results = []
    with opened(made, "detect", TaskFlags()) as model:
        detector = Detector(model, Threshold(0.001, 0.7))
        for at in range(12):
            found, _ = detector.detect(read_image(tmp_path / "scenes" / f"{at:02}.png").pixels)
            for (x0, y0, x1, y1), score, number in zip(found.boxes, found.scores, found.classes, strict=True):
                box = [float(x0), float(y0), float(x1) - float(x0), float(y1) - float(y0)]
                results.append({"image_id": at, "category_id": int(number) + 1, "bbox": box, "score": float(score)})
    rows = [{"id": i + 1, "iscrowd": 0, "area": 1024, **row} for i, row in enumerate(boxes["annotations"])]
    Path("full.json").write_text(json.dumps({**boxes, "info": {}, "annotations": rows}))
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO("full.json")
        judge = COCOeval(data, data.loadRes(results), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    _, record, _ = call(made, "--data", "scenes", "--annotations", "full.json", "-f", "json")
    ours = [record["metrics"][name]["value"] for name in FIGURES]
    assert [-1 if value is None else value for value in ours] == pytest.approx(judge.stats.tolist(), abs=1e-6)


def test_images_that_are_missing_damaged_or_of_another_size_are_named(call, boxes, tmp_path):
    made = blocks_artifact(tmp_path / "blocks")
    (tmp_path / "scenes" / "03.png").unlink()
    (tmp_path / "scenes" / "04.png").write_bytes(b"x")
    scene(tmp_path / "scenes" / "05.png", size=(64, 128))
    status, record, err = call(made, "--data", "scenes", "--annotations", "c.json", "-f", "json")
    assert status == 1 and record["samples"] == 9
    told = {row["input"]: row["message"] for row in record["data"]["failed"]}
    assert "not in scenes" in told["set/03.png"] and "its boxes do not fit" in told["set/05.png"] and "04.png" in err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "what is in the images?"),
        (("--annotations", "none.json"), "no such file"),
        (("--annotations", "c.json", "--metric", "top1"), "does not go with detect"),
        (("--annotations", "cat.json"), "no label cat"),
        (("--annotations", "bare.json"), "no object is annotated"),
    ],
)
def test_boxes_that_cannot_be_scored(call, boxes, tmp_path, flags, told):
    named = [{"id": 1, "name": "red"}, {"id": 2, "name": "cat"}]
    Path("cat.json").write_text(json.dumps({**boxes, "categories": named}))
    Path("bare.json").write_text(json.dumps({**boxes, "annotations": []}))
    status, out, err = call(blocks_artifact(tmp_path / "blocks"), "--data", "scenes", *flags)
    assert status == 2 and told in err and not out


@pytest.fixture
def towers(tmp_path):
    """A text tower that knows the words cat, dog and mat, and an image tower of the colours red, green and blue."""
    for package in ("ftfy", "regex", "tokenizers"):
        pytest.importorskip(package)
    maker.write_merges(tmp_path / "v.txt.gz")
    tokens = ClipTokens.read(tmp_path / "v.txt.gz", maker.SIZE)
    table = np.full((maker.SIZE, 3), 0.01, np.float32)
    for at, word in enumerate(("cat", "dog", "mat")):
        table[tokens([word])[0][1]] = 10 * np.eye(3)[at]
    nodes = [
        ("Gather", ["table", "text"], ["rows"], {}),
        ("ReduceMean", ["rows"], ["vector"], {"axes": [1], "keepdims": 0}),
    ]
    (tmp_path / "text").mkdir()
    net(tmp_path / "text/m.onnx", [("text", 7, [1, 77])], [("vector", 1, [1, 3])], nodes, table=table)
    space = Space("words", 3)
    task = Card("embed-text", text=TextInput("clip", "v.txt.gz", maker.SIZE), space=space)
    specs = (TensorSpec("text", (1, 77), "int64"),), (TensorSpec("vector", (1, 3)),)
    sealed(tmp_path / "text", "m.onnx", specs, task, {"v.txt.gz": tmp_path / "v.txt.gz"})
    (tmp_path / "image").mkdir()
    colours_net(tmp_path / "image/m.onnx")
    specs = (TensorSpec("image", (1, 3, 8, 8), **LAYOUT),), (TensorSpec("means", (1, 3)),)
    sealed(
        tmp_path / "image", "m.onnx", specs, Card("embed-image", preprocess=Preprocess(resize="stretch"), space=space)
    )
    return tmp_path


PAIRS = "cat,cat,5\ncat dog,dog cat,5\ncat,dog,0\ncat,cat dog,3\ndog dog cat,dog,4\nmat,cat dog,0\ncat,mat,1\n"


def test_sentence_pairs(call, towers):
    Path("p.csv").write_text(PAIRS)
    status, record, _ = call("text", "--data", "p.csv", "-f", "json")
    assert status == 0 and (record["metric"], record["unit"], record["samples"]) == ("spearman", "pairs", 7)
    assert record["score"] > 0.8 and record["low"] <= record["score"] <= record["high"] and record["weak"]
    assert call("text", "--data", "p.csv", "-f", "json", "--metric", "pearson")[1]["metric"] == "pearson"
    Path("same.csv").write_text("cat,dog,1\ncat,mat,1\n")
    for flags, told in (
        (("--data", "same.csv"), "all pairs have one score"),
        (("--data", "p.csv", "--metric", "top1"), "does not go with embed-text"),
        (("--data", "p.csv", "--annotations", "x"), "--annotations does not go with"),
    ):
        status, _, err = call("text", *flags)
        assert status == 2 and told in err


def test_zero_shot_classes(call, towers, photos):
    folder = photos(("cat", "dog", "mat"), name="animals")
    status, record, _ = call("image", "--data", folder, "--text-model", "text", "--template", "a {}", "-f", "json")
    assert status == 0 and record["task"] == "embed-image" and record["score"] == pytest.approx(0.9)
    status, _, err = call("image", "--data", folder)
    assert status == 2 and "--text-model" in err


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A classifier at eight bits that was calibrated with some pictures, and those pictures."""
    for package in ("torch", "ai_edge_litert"):
        pytest.importorskip(package)
    from anynpu.cli.main import main

    folder = tmp_path_factory.mktemp("built")
    colours_net(folder / "net.onnx")
    rng = np.random.default_rng(9)
    for label in COLOURS:
        (folder / "calib" / label).mkdir(parents=True)
        for at in range(10):
            pixels = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "calib" / label / f"{at:02}.png")
    labels = "labels = [" + ", ".join(f'"{name}"' for name in COLOURS) + "]"
    (folder / "card.toml").write_text(f'kind = "classify"\n{labels}\n[preprocess]\nresize = "stretch"\n')
    flags = ("-t", "cpu,tflite", "--layout", "image=NCHW", "-q", "--min-sqnr", "0", "--require-npu", "0%")
    given = ("--task", str(folder / "card.toml"), "--data", str(folder / "calib"), "-o", str(folder / "out"))
    assert main(["build", "-m", str(folder / "net.onnx"), *flags, *given]) == 0
    return folder


@pytest.mark.build
@pytest.mark.parametrize("chip", ["cpu", "tflite"])
def test_calibration_samples_are_refused_or_labelled(call, built, photos, chip):
    made = built / "out" / chip
    status, _, err = call(made, "--data", built / "calib")
    assert status == 2 and "24 of the samples also calibrated" in err and "--allow-overlap" in err
    status, record, _ = call(made, "--data", built / "calib", "--allow-overlap", "-f", "json")
    assert status == 0 and record["overlap"] and record["notes"][-1].startswith("OVERLAP: 24 of the samples")
    status, record, _ = call(made, "--data", photos(), "-f", "json")
    assert status == 0 and not record["overlap"] and record["score"] > 0.8
    status, _, _ = call(built / "out" / "float", "--data", built / "calib", "-q")
    assert status == 0


@pytest.mark.build
def test_calibration_samples_are_known_again_as_arrays(call, built):
    from anynpu.tasks.images import find_images, load_images

    spec, files = TensorSpec("image", (1, 3, 8, 8), **LAYOUT), find_images(built / "calib")
    images = np.stack(list(load_images([file for file, _ in files], spec, Preprocess(resize="stretch"))))
    np.savez("t.npz", image=images, labels=np.array([label for _, label in files]))
    np.savez("u.npz", image=images + np.float32(1e-3), labels=np.array([label for _, label in files]))
    status, _, err = call(built / "out" / "cpu", "--data", "t.npz")
    assert status == 2 and "24 of the samples also calibrated" in err
    status, record, _ = call(built / "out" / "tflite", "--data", "u.npz", "-f", "json")
    assert status == 0 and record["samples"] == 30 and not record["overlap"]


@pytest.mark.build
def test_a_changed_list_of_calibration_samples_is_seen(call, built, tmp_path):
    import shutil

    shutil.copytree(built / "out" / "cpu", tmp_path / "cpu")
    text = (tmp_path / "cpu" / "calibration.json").read_text()
    (tmp_path / "cpu" / "calibration.json").write_text(text.replace("0", "1", 1))
    status, _, err = call(tmp_path / "cpu", "--data", built / "calib")
    assert status == 8 and "calibration.json" in err

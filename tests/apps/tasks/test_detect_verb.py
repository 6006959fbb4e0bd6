"""anynpu detect on a detector of coloured blocks, small enough to be written by hand and honest enough to find them."""

from __future__ import annotations

import json
from importlib import import_module

import numpy as np
import pytest

import anynpu
from anynpu.errors import ConfigError, DeviceError, IntegrityError, ToolMissing
from anynpu.tasks.card import Card
from anynpu.tasks.images import Preprocess
from anynpu.tasks.yolo import Head

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
Image = pytest.importorskip("PIL.Image")
from blocks import artifact, scene  # noqa: E402


@pytest.fixture
def blocks(tmp_path):
    return artifact(tmp_path / "blocks")


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs the command line in this process; returns its status, stdout and stderr."""
    command = import_module("anynpu.cli.main")
    monkeypatch.setitem(command.VERBS, "detect", ("detect", "Find objects."))

    def run(*arguments):
        status = command.main(["detect", *map(str, arguments)])
        streams = capsys.readouterr()
        return status, streams.out, streams.err

    return run


def test_the_table(call, blocks, tmp_path):
    photo = scene(tmp_path / "two.png", ("red", 32, 32), ("blue", 96, 64))
    status, out, _ = call(blocks, photo, "--conf", "0.6")
    lines = out.splitlines()
    assert status == 0 and lines[0].startswith("two.png (") and lines[0].endswith("ms): 2 detections")
    assert lines[1:] == [
        "  red             0.94  [  24,   24,   56,   56]",
        "  blue            0.94  [  88,   56,  120,   88]",
    ]


def test_the_api_finds_the_same(blocks, tmp_path):
    photo = scene(tmp_path / "two.png", ("red", 32, 32), ("blue", 96, 64))
    found = anynpu.detect(blocks, [photo, np.asarray(Image.open(photo))], conf=0.6)
    assert found[0] == found[1] and [each.name for each in found[0]] == ["red", "blue"]
    assert found[0][1].box == pytest.approx((88, 56, 120, 88), abs=0.01) and found[0][1].number == 1
    assert [[each.name for each in image] for image in anynpu.detect(blocks, photo, classes=["blue"])] == [["blue"]]
    with pytest.raises(ConfigError, match="image 0 is float32"):
        anynpu.detect(blocks, np.zeros((8, 8, 3), np.float32))
    with pytest.raises(ConfigError, match="of kind detect"):
        anynpu.embed(blocks, photo)


def test_json_and_pictures(call, blocks, tmp_path):
    photo = scene(tmp_path / "one.png", ("red", 32, 48))
    status, out, _ = call(blocks, photo, "--conf", "0.6", "-f", "json", "-o", tmp_path / "found")
    record = json.loads(out)
    assert status == 0 and (record["kind"], record["schema_version"], record["failed"]) == ("detect", 1, 0)
    assert "ONNX Runtime" in record["executed"]
    (image,) = record["images"]
    # The square is half as wide in the input, and its edge mixes 7 parts of red with one of black.
    score = pytest.approx(((6 + 2 * 0.875) / 8) ** 2, abs=0.005)
    assert image["detections"] == [{"class": 0, "name": "red", "score": score, "box": [24, 40, 56, 72]}]
    assert (image["width"], image["height"]) == (128, 128) and image["model_ms"] > 0
    drawn = np.asarray(Image.open(tmp_path / "found/one.png.jpg")).astype(int)
    plain = np.asarray(Image.open(photo)).astype(int)
    changed = np.abs(drawn - plain).max(2) > 60
    assert changed[60, 25] and changed[71, 40] and not changed[100:, 100:].any()


def test_pictures_that_are_there_are_kept(call, blocks, tmp_path):
    photo = scene(tmp_path / "one.png", ("red", 32, 48))
    kept = tmp_path / "found" / "one.png.jpg"
    kept.parent.mkdir()
    kept.write_text("mine")
    status, out, err = call(blocks, photo, "-o", kept.parent)
    assert (status, out) == (ConfigError.exit_status, "") and "one.png.jpg: is there already" in err
    assert kept.read_text() == "mine"
    assert call(blocks, photo, "-o", kept.parent, "--overwrite")[0] == 0 and kept.read_bytes()[:2] == b"\xff\xd8"


def test_the_letterbox_is_undone(call, blocks, tmp_path):
    photo = scene(tmp_path / "wide.png", ("blue", 64, 32), size=(64, 128))
    _, out, _ = call(blocks, photo, "--conf", "0.6", "-f", "json")
    assert json.loads(out)["images"][0]["detections"][0]["box"] == [56, 24, 88, 56]


def test_the_channel_order_is_that_of_the_manifest(call, tmp_path):
    photo = scene(tmp_path / "p.png", ("blue", 32, 32))
    _, out, _ = call(artifact(tmp_path / "bgr", channels="BGR"), photo, "--conf", "0.6")
    assert "red " in out and "blue " not in out


def test_nothing_found_is_a_normal_result(call, blocks, tmp_path):
    status, out, _ = call(blocks, scene(tmp_path / "none.png"), "--conf", "0.6")
    assert status == 0 and out.endswith("ms): 0 detections\n")


def test_classes_conf_and_iou(call, blocks, tmp_path):
    photo = scene(tmp_path / "p.png", ("red", 32, 32), ("red", 48, 32), ("blue", 96, 64))
    assert call(blocks, photo, "--conf", "0.6", "--classes", "blue")[1].count("\n") == 2
    assert call(blocks, photo, "--conf", "0.6", "--iou", "0.2")[1].count("red") == 1
    assert call(blocks, photo, "--conf", "0.6", "--iou", "0.4")[1].count("red") == 2
    status, _, err = call(blocks, photo, "--classes", "blu")
    assert status == ConfigError.exit_status and "did you mean 'blue'" in err


def test_one_bad_image_does_not_stop_the_others(call, blocks, tmp_path):
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    scene(folder / "a.png", ("red", 32, 32))
    (folder / "b.png").write_bytes((folder / "a.png").read_bytes()[:80])
    (folder / "c.jpg").write_bytes(b"")
    (folder / "notes.txt").write_text("no picture")
    scene(folder / "sub" / "d.png", ("blue", 32, 32))
    status, out, err = call(blocks, folder, "--conf", "0.6")
    assert status == 1 and "a.png (" in out and "sub/d.png (" in out
    assert "b.png is not a readable image" in err and "4 pictures, 2 of them could not be read; 2 detections" in err
    record = json.loads(call(blocks, folder, "--conf", "0.6", "-f", "json")[1])
    assert record["failed"] == 2 and record["images"][1]["error"]["kind"] == "IntegrityError"
    assert call(blocks, folder / "b.png")[0] == IntegrityError.exit_status


def test_notes_are_said(call, blocks, tmp_path):
    scene(tmp_path / "p.png", ("red", 32, 32))
    Image.open(tmp_path / "p.png").convert("CMYK").save(tmp_path / "p.tif")
    assert "CMYK" in call(blocks, tmp_path / "p.tif")[2]
    assert "CMYK" not in call(blocks, tmp_path / "p.tif", "-q")[2]


def test_an_animation_is_looked_at_frame_by_frame(call, blocks, tmp_path):
    frames = [Image.open(scene(tmp_path / f"{x}.png", ("red", x, 32))) for x in (16, 32, 64)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    status, out, _ = call(blocks, tmp_path / "a.gif", "--conf", "0.6", "-f", "json", "-o", tmp_path / "o")
    images = json.loads(out)["images"]
    assert status == 0 and [i["name"] for i in images] == [f"a.gif frame {n}" for n in range(3)]
    assert [i["detections"][0]["box"][0] for i in images] == [8, 24, 56]
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == [f"a.gif-frame-{n}.jpg" for n in range(3)]
    assert len(json.loads(call(blocks, tmp_path / "a.gif", "--frames", "2", "-f", "json")[1])["images"]) == 2


def test_a_video_is_looked_at_or_says_what_it_needs(call, blocks, tmp_path):
    path = tmp_path / "clip.avi"
    try:
        import cv2
    except ImportError:
        path.write_bytes(b"RIFF")
        status, _, err = call(blocks, path)
        assert status == ToolMissing.exit_status and "pip install 'anynpu[video]'" in err
        return
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 5, (128, 128))
    for x in (16, 64):
        writer.write(np.asarray(Image.open(scene(tmp_path / f"{x}.png", ("red", x, 32))))[:, :, ::-1].copy())
    writer.release()
    status, out, _ = call(blocks, path, "--conf", "0.6", "-f", "json")
    assert status == 0
    assert [i["detections"][0]["box"][0] for i in json.loads(out)["images"]] == pytest.approx([8, 56], abs=1)
    (tmp_path / "bad.avi").write_bytes(b"RIFF")
    assert call(blocks, tmp_path / "bad.avi")[0] == IntegrityError.exit_status
    assert call(blocks, "camera:99")[0] == DeviceError.exit_status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.jpg"], "gone.jpg: no such file or folder"),
        (["camera:x"], "a camera has a number"),
        (["camera:0", "-f", "json"], "--frames"),
        (["empty"], "holds no images or videos"),
        (["p.png", "--conf", "2"], "conf"),
        (["p.png", "-o", "."], "would replace them"),
        (["p.png", "-o", "p.png/x"], "cannot be made"),
        ([], "IMAGE"),
    ],
)
def test_wrong_requests(call, blocks, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    scene(tmp_path / "p.png")
    status, out, err = call(blocks, *arguments)
    assert status == ConfigError.exit_status and words in err + out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outputs": (1, 6, 85)}, "fit no v8 head on 64x64"),
        ({"outputs": (1, 1000)}, "fit no v8 head"),
        ({"card": None}, "does not say what the model is for"),
        ({"card": Card("classify", preprocess=Preprocess())}, "its card is of kind classify, this needs detect"),
        ({"card": Card("detect", preprocess=Preprocess(), labels=("a",), yolo=Head())}, "names 1 classes"),
        ({"card": Card("detect", preprocess=Preprocess(channels="GRAY"), yolo=Head())}, "3 channels"),
    ],
)
def test_a_wrong_manifest_is_said_before_anything_runs(call, tmp_path, changes, words):
    broken = artifact(tmp_path / "broken", **changes)
    status, out, err = call(broken, scene(tmp_path / "p.png"))
    assert status == ConfigError.exit_status and words in err and not out


def test_a_card_can_be_given(call, tmp_path):
    nameless = artifact(tmp_path / "nameless", card=None)
    (tmp_path / "card.toml").write_text(
        'kind = "detect"\nlabels = ["rot", "blau"]\n[preprocess]\nresize = "letterbox"\n[yolo]\ndecode = "model"\n'
    )
    photo = scene(tmp_path / "p.png", ("red", 32, 32))
    status, out, _ = call(nameless, photo, "--conf", "0.6", "--task", tmp_path / "card.toml")
    assert status == 0 and "rot " in out


def test_two_pictures_of_one_name_are_both_kept(call, blocks, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        scene(tmp_path / name / "p.jpg", ("red", 32, 32))
    call(blocks, tmp_path / "a/p.jpg", tmp_path / "b/p.jpg", "-o", tmp_path / "o")
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == ["2-p.jpg", "p.jpg"]

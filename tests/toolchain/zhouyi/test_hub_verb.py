"""anynpu hub on the command line, and what the other verbs make of the artifact."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from hub_server import serving
from PIL import Image

from anynpu.source import hub
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing import noe
from anynpu.testing.cix import write_cix

EXTRA = noe.MARK + b"yolo\0" + bytes(3 << 20)


@pytest.fixture
def copy(tmp_path):
    """A copy of the hub with a YOLOv8n that the fake library can run."""
    place = tmp_path / "copy" / hub.model("yolov8n").path
    place.parent.mkdir(parents=True)
    image = TensorSpec("images", (1, 3, 640, 640), "uint8", quantization=Quantization((1 / 255,), (0,)))
    write_cix(place, [image], [noe.BOXES], EXTRA, "yolov8n")
    return tmp_path / "copy"


def test_list_and_show(cli):
    listed = cli("hub", "list")
    assert listed.returncode == 0
    assert all(name in listed.stdout for name in hub.names())
    shown = cli("hub", "show", "yolov8n")
    assert "NCHW BGR" in shown.stdout
    assert hub.BASE in shown.stdout
    record = json.loads(cli("hub", "show", "clip-text", "-f", "json").stdout)
    assert (record["kind"], record["outputs"][0]["shape"]) == ("hub-model", [1, 512])
    record = json.loads(cli("hub", "list", "-f", "json", "--base", "https://x/y").stdout)
    assert record["models"][0]["address"].startswith("https://x/y/models/")


def test_an_unknown_model_is_a_usage_error(cli):
    done = cli("hub", "get", "yolov9")
    assert done.returncode == 2
    assert "did you mean 'yolov8n'" in done.stderr


def test_get_from_a_folder_by_the_variable_into_the_name(cli, copy, tmp_path):
    done = cli("hub", "get", "yolov8n", "-f", "json", ANYNPU_HUB=str(copy))
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["path"] == str(tmp_path / "yolov8n")
    assert record["inputs"][0]["channels"] == "BGR"
    assert "get" in done.stderr
    shown = cli("show", "yolov8n")
    assert "cix" in shown.stdout


def test_get_over_http_says_what_it_remembers(cli, copy, tmp_path):
    path = hub.model("yolov8n").path
    with serving() as (server, address):
        server.files["/" + path] = (copy / path).read_bytes()
        server.cut_after = [1_000_000]
        done = cli("hub", "get", "yolov8n", "-o", "a", "--base", address)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(tmp_path / "a")
        assert "remembered for the next time" in done.stderr
        again = cli("hub", "get", "yolov8n", "-o", "b", "--base", address, "-q")
        assert "as known before" in again.stderr
        server.files["/" + path] = b"version https://git-lfs.github.com/spec/v1\n"
        pointer = cli("hub", "get", "yolov8n", "-o", "c", "--base", address)
        assert pointer.returncode == 8
        assert "git lfs pull" in pointer.stderr
        assert not (tmp_path / "c").exists()


@pytest.mark.skipif(shutil.which("cc") is None, reason="install gcc")
def test_the_artifact_detects_and_runs(cli, copy, tmp_path):
    library = noe.build_fake(tmp_path)
    assert cli("hub", "get", "yolov8n", "--base", str(copy)).returncode == 0
    pixels = np.zeros((640, 640, 3), np.uint8)
    pixels[..., 1] = 50
    # The fake takes the class from the first plane and the score from the second; the card says that blue comes first.
    pixels[300:340, 300:340] = (200, 255, 7)
    Image.fromarray(pixels).save(tmp_path / "scene.png")
    done = cli("detect", "yolov8n", "scene.png", "-f", "json", ANYNPU_LIBNOE=str(library))
    assert done.returncode == 0, done.stderr
    assert '"truck"' in done.stdout
    np.save(tmp_path / "in.npy", np.zeros((1, 3, 640, 640), np.float32))
    ran = cli("run", "yolov8n", "-i", "in.npy", ANYNPU_LIBNOE=str(library))
    assert ran.returncode == 0, ran.stderr

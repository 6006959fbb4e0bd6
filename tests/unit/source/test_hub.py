"""The hub's cards against files, downloads against misbehaving servers, hashes against changed files."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from hub_server import serving

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, IntegrityError, ToolFailed
from anynpu.source import fetch, hub
from anynpu.tensors import Quantization, TensorSpec
from anynpu.testing.cix import cix_bytes

EXTRA = np.random.default_rng(0).bytes(1 << 20)


def quantised(name, shape, dtype, scale, zero):
    """A tensor with the vendor's scale and zero point."""
    return TensorSpec(name, shape, dtype, quantization=Quantization((1 / scale,), (-zero,)))


def yolo_file(**change):
    spec = {"shape": (1, 3, 640, 640), "dtype": "uint8", "scale": 255.078, "zero": 0, **change}
    image = quantised("images", spec["shape"], spec["dtype"], spec["scale"], spec["zero"])
    return cix_bytes([image], [TensorSpec("output0", (1, 84, 8400), "float16")], EXTRA)


@pytest.fixture
def yolo():
    """The card of YOLOv8n, with a lower bound that a file without weights reaches."""
    return replace(hub.model("yolov8n"), megabytes=(0, 4))


@pytest.fixture
def served(yolo):
    with serving() as (server, address):
        server.files["/" + yolo.path] = yolo_file()
        yield server, address


def get(model, tmp_path, base, name="out", **options):
    return hub.get(model, tmp_path / name, base=base, cache=tmp_path / "cache", **options)


def test_every_card_reads_and_says_what_it_must():
    assert {"clip-text", "clip-visual", "yolov8n"} <= set(hub.names())
    for name in hub.names():
        card = hub.model(name)
        assert card.path.endswith(".cix")
        assert card.licence and card.meaning and card.source
        assert (card.task != "") != (card.card is not None)
    with pytest.raises(ConfigError, match="did you mean 'yolov8n'"):
        hub.model("yolo8n")


@pytest.mark.parametrize("path", ["../x.cix", "/etc/x.cix", "a/../../b", "https://other/x", "a\\..\\b"])
def test_a_path_that_leads_out_of_the_hub_is_refused(yolo, path):
    with pytest.raises(ConfigError, match="leads out"):
        replace(yolo, path=path)


def test_a_model_becomes_an_artifact_with_its_card(yolo, tmp_path, served):
    told = []
    made = get(yolo, tmp_path, served[1], progress=lambda done, total: told.append((done, total)))
    artifact = Artifact.open(tmp_path / "out")
    artifact.verify()
    (image,) = artifact.manifest.inputs
    assert (image.layout, image.channels, image.dtype) == ("NCHW", "BGR", "uint8")
    assert artifact.manifest.task["yolo"]["decode"] == "model"
    assert len(artifact.manifest.task["labels"]) == 80
    assert artifact.manifest.details["licence"] == yolo.licence
    assert told[-1][0] == told[-1][1] == len(yolo_file())
    assert not made.known
    assert get(yolo, tmp_path, served[1], "again").known
    assert sorted(p.suffix for p in (tmp_path / "cache" / "hub").iterdir()) == [".json", ".lock", ".lock"]


@pytest.mark.parametrize("form", ["folder", "file"])
def test_a_folder_is_a_hub(yolo, tmp_path, form):
    place = tmp_path / "hub with blanks" / yolo.path
    place.parent.mkdir(parents=True)
    place.write_bytes(yolo_file())
    root = tmp_path / "hub with blanks"
    made = get(yolo, tmp_path, str(root) if form == "folder" else root.as_uri())
    assert (made.artifact.path / "model.cix").read_bytes() == yolo_file()
    place.unlink()
    with pytest.raises(ConfigError, match="no such file"):
        get(yolo, tmp_path, str(root), "other")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": (1, 640, 640, 3)}, r"shape [1, 3, 640, 640] NCHW, the file has [1, 640, 640, 3]"),
        ({"dtype": "int8"}, "type uint8, the file has int8"),
        ({"scale": 127.0}, "scale 255, the file has 127"),
        ({"zero": 128}, "zero point 0, the file has 128"),
    ],
)
def test_a_file_that_disagrees_with_its_card_is_refused_naming_both(yolo, tmp_path, served, change, words):
    served[0].files["/" + yolo.path] = yolo_file(**change)
    with pytest.raises(IntegrityError, match=re.escape(words)):
        get(yolo, tmp_path, served[1])
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "cache" / "hub").glob("*.part"))


def test_a_cut_download_goes_on_where_it_ended(yolo, tmp_path, served):
    server, address = served
    server.cut_after = [300_000, 500_000]
    made = get(yolo, tmp_path, address)
    assert (made.artifact.path / "model.cix").read_bytes() == yolo_file()
    assert [r for _, r in server.requests] == ["", "bytes=300000-", "bytes=800000-"]


def test_a_silent_server_is_left_and_what_came_is_kept_for_the_next_call(yolo, tmp_path, served):
    server, address = served
    server.cut_after, server.stall = [200_000, 0, 0, 0, 0], 1.0
    with pytest.raises(ToolFailed, match="breaks off") as failure:
        get(yolo, tmp_path, address, timeout_s=0.2)
    assert "200000 bytes are kept" in failure.value.hint
    server.stall, server.cut_after, server.requests = 0.0, [], []
    get(yolo, tmp_path, address)
    assert server.requests[0][1] == "bytes=200000-"


def test_a_file_that_changed_in_between_begins_anew(yolo, tmp_path, served):
    server, address = served
    server.cut_after, server.stall = [200_000, 0, 0, 0, 0], 0.0
    with pytest.raises(ToolFailed):
        get(yolo, tmp_path, address)
    other = yolo_file(scale=254.0)
    server.files["/" + yolo.path], server.tag, server.cut_after = other, '"two"', []
    made = get(yolo, tmp_path, address)
    assert (made.artifact.path / "model.cix").read_bytes() == other


@pytest.mark.parametrize("change", [{"ranges": False}, {"tag": ""}, {"tag": 'W/"weak"'}])
def test_a_server_that_cannot_go_on_is_asked_for_the_whole_again(yolo, tmp_path, served, change):
    server, address = served
    for name, value in change.items():
        setattr(server, name, value)
    server.cut_after = [100_000]
    made = get(yolo, tmp_path, address)
    assert (made.artifact.path / "model.cix").read_bytes() == yolo_file()


def test_a_reply_without_a_length_that_is_cut_is_no_model(yolo, tmp_path, served):
    server, address = served
    server.length, server.cut_after = False, [100_000]
    with pytest.raises(IntegrityError):
        get(yolo, tmp_path, address)
    server.cut_after = []
    assert get(yolo, tmp_path, address).sha256


@pytest.mark.parametrize("status", [404, 403])
def test_a_refusal_is_a_wrong_address(yolo, tmp_path, served, status):
    served[0].status = status
    with pytest.raises(ConfigError, match=str(status)):
        get(yolo, tmp_path, served[1])


def test_a_server_in_trouble_and_one_that_is_not_there_are_failures(yolo, tmp_path, served):
    served[0].status = 500
    with pytest.raises(ToolFailed, match="500"):
        get(yolo, tmp_path, served[1])
    with pytest.raises(ToolFailed, match="cannot be reached"):
        get(yolo, tmp_path, "http://127.0.0.1:9")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://192.0.2.1/x", "gopher://x"])
def test_a_redirect_off_the_safe_way_is_refused(yolo, tmp_path, served, target):
    served[0].redirect = target
    with pytest.raises(IntegrityError, match="not followed"):
        get(yolo, tmp_path, served[1], timeout_s=1)


def test_a_redirect_within_is_followed_and_one_in_a_circle_ends(yolo, tmp_path, served):
    served[0].redirect = f"{served[1]}/moved/{yolo.path}"
    assert get(yolo, tmp_path, served[1]).artifact
    served[0].redirect = f"{served[1]}/round"
    with pytest.raises(ToolFailed):
        get(yolo, tmp_path, served[1], "other")


@pytest.mark.parametrize("base", ["http://192.0.2.1/hub", "ftp://x/y", "file://host/x"])
def test_an_address_of_an_unsafe_kind_is_refused(yolo, tmp_path, base):
    with pytest.raises(ConfigError):
        get(yolo, tmp_path, base)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n", "git-lfs"),
        (b"<!DOCTYPE html><html>sign in</html>" * 10, "yolov8n.cix"),
        (b"", "is empty"),
    ],
)
def test_what_is_no_model_is_refused_and_forgotten(yolo, tmp_path, served, content, words):
    served[0].files["/" + yolo.path] = content
    with pytest.raises(IntegrityError, match=words) as refused:
        get(yolo, tmp_path, served[1])
    assert refused.value.hint
    served[0].files["/" + yolo.path] = yolo_file()
    assert get(yolo, tmp_path, served[1]).artifact


@pytest.mark.parametrize("length", [True, False])
def test_a_file_beyond_its_bounds_is_refused(yolo, tmp_path, served, length):
    served[0].length = length
    served[0].files["/" + yolo.path] = bytes(5 << 20)
    with pytest.raises(IntegrityError, match="more than the 4194304"):
        get(yolo, tmp_path, served[1])
    served[0].files["/" + yolo.path] = yolo_file()
    with pytest.raises(IntegrityError, match="3 MiB or more"):
        get(replace(yolo, megabytes=(3, 4)), tmp_path, served[1], "small")


def test_another_file_than_the_first_time_is_refused_until_it_is_accepted(yolo, tmp_path, served):
    get(yolo, tmp_path, served[1])
    served[0].files["/" + yolo.path] = yolo_file(scale=254.0)
    with pytest.raises(IntegrityError, match="the first download had"):
        get(yolo, tmp_path, served[1], "other")
    renewed = get(yolo, tmp_path, served[1], "other", renew=True)
    assert not renewed.known
    assert get(yolo, tmp_path, served[1], "third").sha256 == renewed.sha256


def test_a_hash_on_the_card_counts_whatever_is_remembered(yolo, tmp_path, served):
    right = get(yolo, tmp_path, served[1]).sha256
    assert get(replace(yolo, sha256=right), tmp_path, served[1], "a").known
    with pytest.raises(IntegrityError, match="the card says"):
        get(replace(yolo, sha256="0" * 64), tmp_path, served[1], "b", renew=True)


def test_a_damaged_list_of_hashes_is_said(yolo, tmp_path, served):
    get(yolo, tmp_path, served[1])
    (tmp_path / "cache" / "hub" / hub.LOCK).write_text(json.dumps([1]))
    with pytest.raises(IntegrityError, match="not a list of hashes"):
        get(yolo, tmp_path, served[1], "other")


def test_folders_of_others_are_left_alone(yolo, tmp_path, served):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ConfigError):
            get(yolo, tmp_path, served[1], overwrite=overwrite)
    assert (out / "mine.txt").read_text() == "mine"
    get(yolo, tmp_path, served[1], "own")
    with pytest.raises(ConfigError, match="is not empty"):
        get(yolo, tmp_path, served[1], "own")
    assert get(yolo, tmp_path, served[1], "own", overwrite=True).artifact


def test_two_calls_at_once_fetch_one_after_the_other(yolo, tmp_path, served):
    failures = []

    def one(name):
        try:
            get(yolo, tmp_path, served[1], name)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(f"out{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len({(tmp_path / f"out{i}" / "model.cix").read_bytes() for i in range(4)}) == 1


def test_text_models_wait_for_their_tokenizer(tmp_path):
    card = replace(hub.model("clip-text"), megabytes=(0, 4))
    inputs = [TensorSpec("tokens", (1, 77), "int32")]
    place = tmp_path / "hub" / card.path
    place.parent.mkdir(parents=True)
    place.write_bytes(cix_bytes(inputs, [quantised("out", (1, 512), "int8", 27.6738, 60)], EXTRA))
    made = get(card, tmp_path, str(tmp_path / "hub"))
    assert made.artifact.manifest.task == {}
    assert "--tokenizer" in made.artifact.manifest.notes[-1]
    (tmp_path / "vocabulary.txt").write_text("a b\n")
    made = get(card, tmp_path, str(tmp_path / "hub"), "with", tokenizer=str(tmp_path / "vocabulary.txt"))
    assert made.artifact.manifest.task["text"]["tokenizer"] == "vocabulary.txt"
    assert (made.artifact.path / "assets" / "vocabulary.txt").is_file()


def test_the_base_address_comes_from_the_flag_the_variable_or_the_hub(monkeypatch):
    monkeypatch.delenv("ANYNPU_HUB", raising=False)
    assert hub.base_address() == hub.BASE
    monkeypatch.setenv("ANYNPU_HUB", "/mnt/hub/")
    assert hub.base_address() == "/mnt/hub"
    assert hub.base_address("https://a/b/") == "https://a/b"
    assert fetch.join("https://a/b", "c d/e.cix") == "https://a/b/c%20d/e.cix"

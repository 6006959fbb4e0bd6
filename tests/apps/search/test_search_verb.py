"""`anynpu search` as a user calls it, over towers that `anynpu build` made."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

pytest.importorskip("tokenizers")
from small_models import picture
from small_towers import write_towers

from anynpu.cli.main import main


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the towers image and text, float and 8 bits, twenty pictures of colours, and notes."""
    folder = tmp_path_factory.mktemp("search")
    write_towers(folder)
    chance = np.random.default_rng(0)
    for at in range(20):
        colour = tuple(int(value) for value in chance.integers(0, 256, 3))
        picture(folder / "photos" / f"{at % 3}" / f"{at}.png", colour)
    for colour in ("red", "green", "blue"):
        picture(folder / "photos" / f"{colour}.png", "#00ff00" if colour == "green" else colour)
    shutil.copy(folder / "photos" / "red.png", folder / "photos" / "red again.png")
    (folder / "photos" / "notes.md").write_text("dog rain\n\nblue sun\n")
    (folder / "photos" / "broken.jpg").write_bytes(b"\xff\xd8 no")
    (folder / "texts.txt").write_text("red dog\nblue sun rain\ngreen\ndog\nred blue\nsun sun\n")
    cache = os.environ.get("ANYNPU_CACHE_DIR")
    os.environ["ANYNPU_CACHE_DIR"] = str(folder / "cache")
    try:
        base = ("build", "-t", "cpu", "-q")
        image = ("-m", str(folder / "image.onnx"), "--task", str(folder / "image-tiny.toml"), "--layout", "image=NCHW")
        assert main([*base, *image, "--data", str(folder / "photos" / "1"), "-o", str(folder / "image")]) == 0
        text = ("-m", str(folder / "text.onnx"), "--task", str(folder / "text-tiny.toml"))
        data = ("--data", str(folder / "texts.txt"), "--tokenizer", str(folder / "tokenizer.json"))
        assert main([*base, *text, *data, "-O", "activations=float32", "-o", str(folder / "text")]) == 0
    finally:
        os.environ.pop("ANYNPU_CACHE_DIR") if cache is None else os.environ.update(ANYNPU_CACHE_DIR=cache)
    return folder


@pytest.fixture(scope="module")
def indexed(built):
    """The folder after `anynpu search index`, whose words are kept."""
    models = {"image": "image/cpu", "question": "text/cpu", "text": "text/cpu"}
    flags = [part for name, path in models.items() for part in (f"--{name}-model", str(built / path))]
    return built, flags


@pytest.fixture
def ask(indexed, capfd, monkeypatch):
    """Calls a verb of search and returns its status, what it prints, and what it says."""
    folder, _ = indexed
    monkeypatch.setenv("ANYNPU_SEARCH_INDEX", str(folder / "index"))

    def call(*arguments):
        capfd.readouterr()
        status = main(["search", *map(str, arguments)])
        told = capfd.readouterr()
        return status, told.out, told.err

    if not (folder / "index").exists():
        status, out, err = call("index", folder / "photos", *indexed[1])
        assert status == 1, err
        assert "26 files; 24 computed, 1 known contents" in out
        assert "broken.jpg is not a readable image" in err
    return call


def test_words_find_what_they_name(ask, built):
    for colour in ("red", "green", "blue"):
        status, out, _ = ask(colour, "-f", "json", "--top", "3")
        found = json.loads(out)
        assert status == 0
        assert found["pictures"][0]["paths"][-1].endswith(f"{colour}.png")
        assert found["pictures"][0]["score"] > 0.95
    _, out, _ = ask("a", "red", "dog")
    assert "red again.png and 1 more" in out.splitlines()[2]
    assert "notes.md:1" in out


def test_a_picture_a_text_and_a_result_find_their_like(ask, built, tmp_path):
    _, out, _ = ask("--image", picture(tmp_path / "x.png", "#1010f0"), "--top", "1", "-f", "json")
    first = json.loads(out)["pictures"][0]
    assert first["paths"] == [str(built / "photos" / "blue.png")]
    _, out, _ = ask("--like", first["id"], "--top", "2", "-f", "json")
    assert first["id"] not in [each["id"] for each in json.loads(out)["pictures"]]
    (tmp_path / "x.txt").write_text("blue\n\nblue sun\n")
    _, out, _ = ask("--text-file", tmp_path / "x.txt", "-f", "json")
    assert json.loads(out)["documents"][0]["line"] == 3
    _, out, _ = ask("red", "--folder", built / "photos" / "2", "-f", "json")
    assert all("/2/" in path for each in json.loads(out)["pictures"] for path in each["paths"])
    status, out, err = ask("red", "--until", "1999-12-31")
    assert (status, out) == (1, "")
    assert "nothing was found" in err


def test_a_second_index_needs_no_flags_and_computes_nothing(ask, built):
    status, out, _ = ask("index", built / "photos", "-f", "json", "-q")
    record = json.loads(out)["folders"][0]
    assert (record["computed"], record["unchanged"], status) == (0, 26, 1)


def test_the_state_lists_what_cannot_be_read(ask, built):
    _, out, _ = ask("state", "-f", "json")
    record = json.loads(out)
    assert record["roots"] == [{"folder": str(built / "photos"), "files": 26, "unreadable": 1}]
    assert record["collections"]["images"]["points"] == 23
    assert record["collections"]["images"]["precision"] == "int8"
    assert record["unreadable"][0]["path"].endswith("broken.jpg")
    _, out, _ = ask("state", "--problems")
    assert "broken.jpg is not a readable image" in out


def test_what_eight_bits_cost_is_measured_on_the_pictures(ask, built):
    _, out, _ = ask("recall", "--with", built / "image" / "float", "-f", "json")
    record = json.loads(out)
    assert record["pictures"] == 23
    assert record["chance"] == pytest.approx(10 / 22)
    assert 0.8 < record["low"] <= record["recall"] <= record["high"] <= 1
    assert record["cosine"] > 0.99
    status, _, err = ask("recall", "--with", built / "image" / "cpu")
    assert (status, "both models calculate in int8" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, ""),
        (("find",), 2, "no question is given"),
        (("red", "--image", "x.png"), 2, "one question at a time"),
        (("--image", "none.png"), 2, "no such file"),
        (("--text-file", "none.txt"), 2, "cannot be read"),
        (("red", "--since", "yesterday"), 2, "a day was expected"),
        (("red", "--since", "2024-02-01", "--until", "2024-01-01"), 2, "--until is before --since"),
        (("red", "--top", "0"), 2, "--top"),
        (("index", "none"), 2, "no such folder"),
        (("index", ".", "--store", "vectors"), 2, "--store takes the URL of a Qdrant server"),
        (("index", ".", "--store", "qdrant:6333"), 2, "http://HOST:6333"),
        (("forget", "none"), 2, "nothing of it is indexed"),
        (("red", "--index", "nowhere"), 2, "there is no index"),
        (("page", "--host", "0.0.0.0", "--port", "0"), 2, "would see the pictures"),
        (("--like", "x"), 2, "not the id"),
    ],
)
def test_a_request_that_makes_no_sense(ask, arguments, status, said):
    found, _, err = ask(*arguments)
    assert (found, said in err) == (status, True), err


def test_models_that_do_not_belong_together_are_refused(ask, built, tmp_path):
    base = ("build", "-t", "cpu", "-q", "-O", "activations=float32", "--cache-dir", str(tmp_path / "cache"))
    text = ("-m", str(built / "text.onnx"), "--task", str(built / "text-other.toml"))
    data = ("--data", str(built / "texts.txt"), "--tokenizer", str(built / "tokenizer.json"))
    assert main([*base, *text, *data, "-o", str(tmp_path / "text")]) == 0
    status, _, err = ask("index", built / "photos", "--question-model", tmp_path / "text" / "cpu")
    assert (status, "no space in common: name tiny and other" in err) == (2, True)
    status, _, err = ask("index", built / "photos", "--image-model", built / "image" / "float")
    assert (status, "another space: precision int8, not float" in err) == (2, True)
    status, _, err = ask("index", built / "photos", "--index", tmp_path / "new")
    assert (status, "an index needs a model" in err) == (2, True)


def test_a_text_model_alone_indexes_documents(ask, built, tmp_path):
    status, out, _ = ask("index", built / "photos", "--index", tmp_path / "i", "--text-model", built / "text" / "cpu")
    assert status == 0
    assert "25 files of a kind without a model" in out
    status, out, _ = ask("dog", "--index", tmp_path / "i")
    assert status == 0
    assert "notes.md:1" in out


def test_the_text_tower_watches_a_trace_by_the_method_of_the_first_description(built, tmp_path, capfd):
    trace = tmp_path / "trace.csv"
    simulated = ["--hosts", "1", "--weeks", "0.1", "--clean", "0.05", "--interval", "300"]
    assert main(["watch", "simulate", *simulated, "-o", str(trace)]) == 0
    method = ["--method", "seed", "--model", str(built / "text" / "cpu")]
    capfd.readouterr()
    assert main(["watch", "replay", str(trace), *method, "-f", "json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["kind"].startswith("watch-")

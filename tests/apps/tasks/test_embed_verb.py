"""The verbs embed, similar and classify over towers that `anynpu build` made, float and eight bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import anynpu
from anynpu.cli.embed import classify, embed, similar
from anynpu.errors import ConfigError, IntegrityError
from anynpu.tasks.clip_tokens import ClipTokens

for _package in ("torch", "PIL", "ftfy", "regex", "tokenizers"):
    pytest.importorskip(_package)

import clip_vocabulary_maker as maker  # noqa: E402

pytestmark = pytest.mark.build
SIZES = ("--arg", "width=32", "--arg", "layers=2", "--arg", "heads=4", "--arg", "embed=16")
SPACE = '[space]\nname = "{}"\nwidth = {}\n'
TEXT = 'kind = "embed-text"\n[text]\nform = "clip"\ntokenizer = "v.txt.gz"\n' + f"vocabulary = {maker.SIZE}\n"
IMAGE = 'kind = "embed-image"\n[preprocess]\nresize = "shortest-crop"\ninterpolation = "bicubic"\nstd = [0.27]\n'
PHOTOS = ("orange", "blue", "green", "stripes", "noise", "waves", "dots")


def photo(name: str) -> np.ndarray:
    """A picture of 40x60 by its name; flat colours are alike, the others are not."""
    rng = np.random.default_rng(len(name))
    y, x = np.mgrid[0:40, 0:60]
    flat = {"orange": (255, 140, 0), "blue": (0, 60, 220), "green": (10, 160, 40)}
    if name in flat:
        return np.full((40, 60, 3), flat[name], np.uint8)
    grey = {
        "stripes": x // 6 % 2 * 255,
        "noise": rng.integers(0, 256, (40, 60)),
        "waves": 127 + 120 * np.sin(x * y / 90),
    }
    return np.repeat(grey.get(name, (x % 9 + y % 7) * 12)[:, :, None], 3, 2).astype(np.uint8)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with cards, photos, and the towers `text` and `image`, each with float and cpu (eight bits)."""
    from PIL import Image

    from anynpu.cli.main import main

    folder = tmp_path_factory.mktemp("towers")
    (folder / "photos").mkdir()
    for name in PHOTOS:
        Image.fromarray(photo(name)).save(folder / "photos" / f"{name}.png")
    maker.write_merges(folder / "v.txt.gz")
    for name, head in (("text", TEXT), ("image", IMAGE)):
        (folder / f"{name}.toml").write_text(head + SPACE.format("tiny", 16))
        (folder / f"{name}-other.toml").write_text(head + SPACE.format("other", 16))
        (folder / f"{name}-wide.toml").write_text(head + SPACE.format("tiny", 512))
    tokens = ClipTokens.read(folder / "v.txt.gz", maker.SIZE)
    np.save(folder / "tokens.npy", tokens([" ".join(maker.WORDS[n : n + 5]) for n in range(15)]).astype(np.int64))
    model = str(Path(__file__).with_name("tiny_clip.py"))
    towers = (
        ("ImageTower", "image", "photos", "--arg", "size=32", "--arg", "patch=8", "--shape", "image=1,3,32,32"),
        ("TextTower", "text", "tokens.npy", "--arg", f"vocabulary={maker.SIZE}", "--shape", "text=1,77"),
    )
    for kind, name, data, *rest in towers:
        stated = ("--layout", "image=NCHW") if name == "image" else ("--dtype", "text=int64")
        given = ("--task", str(folder / f"{name}.toml"), "--data", str(folder / data), "-o", str(folder / name))
        assert main(["build", "-m", f"{model}:{kind}", "-t", "cpu", "-q", *SIZES, *rest, *stated, *given]) == 0
    return folder


@pytest.fixture
def call(built, capsys, monkeypatch):
    """Calls a verb in the folder of the towers and returns its status, what it prints, and what it says."""
    monkeypatch.chdir(built)

    def run(verb, *arguments):
        capsys.readouterr()
        status = verb.main([*map(str, arguments)], standalone_mode=False)
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


def matrix(out):
    return np.array(json.loads(out)["cosines"])


def test_texts_become_vectors_of_length_one(call, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("the dog\n\nmat\n", "utf-8")
    status, out, _ = call(embed, "text/cpu", "--text", "the cat", "--file", file, "-f", "json")
    record = json.loads(out)
    assert status == 0 and record["kind"] == "embed" and record["space"]["name"] == "tiny"
    assert [item["input"] for item in record["items"]] == ["the cat", "the dog", "", "mat"]
    vectors = np.array([item["vector"] for item in record["items"]])
    assert vectors.shape == (4, 16) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_the_api_gives_the_same_vectors(call, built, tmp_path):
    status, _, _ = call(embed, "text/cpu", "--text", maker.WORDS[0], "-o", tmp_path / "v.npz")
    assert status == 0
    found = anynpu.embed(built / "text/cpu", [maker.WORDS[0]])
    with np.load(tmp_path / "v.npz") as archive:
        assert np.array_equal(found, archive["vectors"])
    pictures = anynpu.embed(built / "image/cpu", [built / "photos/blue.png", photo("blue")])
    assert pictures.shape == (2, 16) and np.array_equal(pictures[0], pictures[1])
    with pytest.raises(ConfigError, match="reads text"):
        anynpu.embed(built / "text/cpu", [photo("blue")])


def test_vectors_are_written_as_npz_and_as_lines(call, tmp_path):
    status, out, _ = call(embed, "image/cpu", "photos", "-o", tmp_path / "v.npz")
    assert status == 0 and "orange.png" in out and "1.0000" in out
    with np.load(tmp_path / "v.npz") as archive:
        names, vectors, space = archive["names"], archive["vectors"], json.loads(str(archive["space"]))
    assert vectors.shape == (len(PHOTOS), 16) and space["name"] == "tiny" and len(names) == len(PHOTOS)
    call(embed, "image/cpu", "photos", "-o", tmp_path / "v.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert np.allclose([row["vector"] for row in rows], vectors) and [row["input"] for row in rows] == list(names)


def test_the_matrix_of_one_tower_is_symmetric_and_drawn(call, tmp_path):
    status, out, _ = call(similar, "image/cpu", "photos", "-o", tmp_path / "m.png", "-f", "json")
    values = matrix(out)
    assert status == 0 and (tmp_path / "m.png").stat().st_size > 1000
    assert np.allclose(np.diag(values), 1, atol=1e-6) and np.allclose(values, values.T)
    _, out, _ = call(similar, "image/cpu", "photos/orange.png", "photos/blue.png")
    assert out.split()[:2] == ["orange", "blue"] and out.count("1.000") == 2


def test_the_towers_have_one_space_and_eight_bits_stay_near_the_float_model(call):
    _, out, _ = call(
        similar, "text/cpu", "--with", "image/cpu", "--text", "a cat", "--text", "dog", "photos", "-f", "json"
    )
    assert matrix(out).shape == (2, len(PHOTOS)) and json.loads(out)["columns"] == sorted(PHOTOS)
    _, out, _ = call(similar, "image/float", "--with", "image/cpu", "photos", "-f", "json")
    assert np.diag(matrix(out)).min() > 0.98


def test_labels_in_words_tell_pictures_apart(call):
    named = ("--labels", "cat, dog,mat", "--text-model", "text/cpu", "--top", "2", "-f", "json")
    status, out, _ = call(classify, "image/cpu", "photos", *named)
    items = json.loads(out)["items"]
    assert status == 0 and len(items) == len(PHOTOS)
    for item in items:
        first, second = item["classes"]
        assert first["probability"] >= second["probability"] > 0
        assert {first["label"], second["label"]} < {"cat", "dog", "mat"}


def test_a_picture_that_cannot_be_read_is_named_and_the_others_go_on(call, built, tmp_path):
    for name in PHOTOS[:2]:
        (tmp_path / f"{name}.png").write_bytes((built / "photos" / f"{name}.png").read_bytes())
    (tmp_path / "cut.png").write_bytes((built / "photos" / "noise.png").read_bytes()[:300])
    (tmp_path / "empty.jpg").write_bytes(b"")
    for verb, more in ((embed, ()), (similar, ()), (classify, ("--labels", "cat,dog", "--text-model", "text/cpu"))):
        status, out, told = call(verb, "image/cpu", tmp_path, *more, "-f", "json")
        record = json.loads(out)
        assert status == 1 and "cut.png" in told and "empty.jpg" in told
        assert sorted(Path(each["input"]).name for each in record["failed"]) == ["cut.png", "empty.jpg"]
        assert len(record.get("items", record.get("rows"))) == 2
    with pytest.raises(IntegrityError, match="not a readable image"):
        call(embed, "image/cpu", tmp_path / "cut.png")


OTHER = ("image/cpu", "--task", "image-other.toml")
REFUSED = {
    "another width": (similar, ("text/cpu", "--task", "text-wide.toml", "--text", "a"), "512 numbers"),
    "two spaces": (similar, (*OTHER, "--with", "text/cpu", "--text", "a", "photos"), "name"),
    "zero-shot in two spaces": (classify, (*OTHER, "photos", "--labels", "a,b", "--text-model", "text/cpu"), "name"),
    "text for images": (embed, ("image/cpu", "--text", "a"), "reads images"),
    "images for text": (embed, ("text/cpu", "photos"), "reads text"),
    "no text": (embed, ("text/cpu",), "no text"),
    "no image": (embed, ("image/cpu",), "no image"),
    "no such image": (embed, ("image/cpu", "none.png"), "no such file"),
    "no labels": (classify, ("image/cpu", "photos"), "needs labels"),
    "one label": (classify, ("image/cpu", "photos", "--labels", "cat", "--text-model", "text/cpu"), "two labels"),
    "no text tower": (classify, ("image/cpu", "photos", "--labels", "a,b"), "text tower"),
    "towers swapped": (classify, ("text/cpu", "photos", "--labels", "a,b", "--text-model", "image/cpu"), "embed-text"),
    "card of another tower": (embed, ("text/cpu", "--task", "image.toml", "photos"), "layout"),
    "text card on images": (embed, ("image/cpu", "--task", "text.toml", "--text", "a"), "77"),
    "wrong ending": (embed, ("image/cpu", "photos", "-o", "v.csv"), ".npz or .jsonl"),
    "wrong picture": (similar, ("image/cpu", "photos", "-o", "m.jpg"), ".png or .svg"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_that_makes_no_sense_is_refused(call, name):
    verb, arguments, words = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        call(verb, *arguments)
    assert words in caught.value.message


def test_a_manifest_that_was_changed_and_a_vocabulary_that_is_gone(call, built, tmp_path):
    import shutil

    copy = shutil.copytree(built / "text" / "cpu", tmp_path / "copy")
    (copy / "assets" / "v.txt.gz").write_bytes(b"x" * (copy / "assets" / "v.txt.gz").stat().st_size)
    with pytest.raises(IntegrityError, match=r"v\.txt\.gz: has changed since it was made"):
        call(embed, copy, "--text", "a")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["task"]["space"]["name"] = 5
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(IntegrityError, match=r"manifest\.json: has changed since it was made"):
        call(embed, copy, "--text", "a")


def test_tables_show_any_text_in_one_line(call, tmp_path):
    """An empty text has a row of its own, a long one is cut, one that is a file's name stays a text."""
    file = tmp_path / "long.txt"
    file.write_text("cat dog " * 20000 + "\n", "utf-8")
    given = ("--text", "", "--text", "two\nlines", "--text", "v.txt.gz", "--file", file)
    status, out, _ = call(similar, "text/cpu", *given, "-o", tmp_path / "m.png")
    lines = out.splitlines()
    assert status == 0 and len(lines) == 5 and max(map(len, lines)) < 250
    assert [line.split("  ")[0] for line in lines[1:4]] == ["(empty)", "two lines", "v.txt.gz"]
    assert lines[4].startswith("cat dog cat dog") and "..." in lines[4]
    status, out, _ = call(embed, "text/cpu", *given)
    assert status == 0 and len(out.splitlines()) == 6 and "(empty)" in out
    _, out, _ = call(similar, "text/cpu", *given, "-f", "json")
    assert json.loads(out)["rows"][:3] == ["", "two\nlines", "v.txt.gz"]

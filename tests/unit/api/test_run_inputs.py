"""What `run -i` takes: arrays in the layout of the source or the artifact's own, images, the zoo, random numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from anynpu import schema
from anynpu.api.feed import read_feed, read_one, remembered
from anynpu.artifact import Artifact, Made, Manifest, Step, seal
from anynpu.cli.main import main
from anynpu.errors import ConfigError
from anynpu.measure import calibrated
from anynpu.tasks.images import Preprocess
from anynpu.tensors import Quantization, TensorSpec

INT8 = Quantization((0.5,), (3,))
SOURCE = (TensorSpec("image", (1, 3, 4, 5), "float32", "NCHW"),)
OWN = (TensorSpec("image", (1, 4, 5, 3), "int8", "NHWC", quantization=INT8),)


def artifact(
    folder: Path, format: str, inputs: tuple[TensorSpec, ...], layout: str, files: Mapping[str, str] = {}
) -> Artifact:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "model.bin").write_bytes(b"x")
    shape = (1, 2, 4, 5) if layout == "NCHW" else (1, 4, 5, 2)
    outputs = (TensorSpec("mask", shape, "float32", layout),)
    manifest = Manifest(format=format, main="model.bin", inputs=inputs, outputs=outputs, fingerprint="f")
    return seal(folder, manifest, Step("made"), Made("", 0.0))


@pytest.fixture
def chip(tmp_path: Path, monkeypatch) -> Artifact:
    """An int8 NHWC artifact beside its float NCHW model, as a build leaves them."""
    monkeypatch.chdir(tmp_path)
    artifact(tmp_path / "out/float", "onnx", SOURCE, "NCHW")
    return artifact(tmp_path / "out/chip", "null", OWN, "NHWC")


def test_real_numbers_in_the_layout_of_the_source_are_moved_and_said(chip: Artifact) -> None:
    values = np.random.default_rng(0).normal(size=(1, 3, 4, 5)).astype(np.float32)
    np.save("x.npy", values)
    feed = read_feed("x.npy", chip, None, None)
    np.testing.assert_array_equal(feed.samples[0]["image"], OWN[0].to_stored(values.transpose(0, 2, 3, 1)))
    assert feed.moved and feed.notes == ("input image: taken as NCHW, the layout of its source, and moved to NHWC",)
    np.save("bare.npy", values[0])
    np.testing.assert_array_equal(read_feed("bare.npy", chip, None, None).samples[0]["image"], feed.samples[0]["image"])


def test_the_artifacts_own_layout_and_stored_values_are_taken_as_they_are(chip: Artifact) -> None:
    own = np.arange(60, dtype=np.float32).reshape(1, 4, 5, 3)
    np.savez("own.npz", image=own)
    feed = read_feed("own.npz", chip, None, None)
    assert not feed.moved
    np.testing.assert_array_equal(feed.samples[0]["image"], OWN[0].to_stored(own))
    np.save("stored.npy", own.astype(np.int8))
    np.testing.assert_array_equal(read_feed("stored.npy", chip, None, None).samples[0]["image"], own.astype(np.int8))


def test_where_both_layouts_fit_real_numbers_are_the_sources_and_integers_stored(tmp_path: Path) -> None:
    artifact(tmp_path / "out/float", "onnx", (TensorSpec("image", (1, 3, 3, 3), "float32", "NCHW"),), "NCHW")
    spec = TensorSpec("image", (1, 3, 3, 3), "int8", "NHWC", quantization=Quantization((1.0,), (0,)))
    chip = artifact(tmp_path / "out/chip", "null", (spec,), "NHWC")
    values = np.arange(27).reshape(1, 3, 3, 3)
    np.save(tmp_path / "real.npy", values.astype(np.float32))
    np.save(tmp_path / "stored.npy", values.astype(np.int8))
    real = read_feed(str(tmp_path / "real.npy"), chip, None, None)
    np.testing.assert_array_equal(real.samples[0]["image"], values.transpose(0, 2, 3, 1))
    assert real.notes
    stored = read_feed(str(tmp_path / "stored.npy"), chip, None, None)
    np.testing.assert_array_equal(stored.samples[0]["image"], values)
    assert not stored.notes


def test_random_numbers_images_folders_and_generators(chip: Artifact) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (4, 5, 3)).astype(np.uint8)
    Path("photos").mkdir()
    for name in ("photo.png", "photos/a.png", "photos/b.png"):
        image.fromarray(pixels).save(name)
    Path("made.py").write_text("import numpy as np\ndef two():\n    yield from np.ones((2, 3, 4, 5), np.float32)\n")
    counts = {"random:3": 3, "photo.png": 1, "photos": 2, "made.py:two": 2}
    for source, count in counts.items():
        steps = Preprocess() if source.startswith("photo") else None
        feed = read_feed(source, chip, steps, None)
        assert len(feed.samples) == count and feed.moved, source
        for sample in feed.samples:
            OWN[0].check(sample["image"])
    expected = OWN[0].to_stored((pixels / np.float32(255)).astype(np.float32)[None])
    np.testing.assert_array_equal(read_feed("photo.png", chip, Preprocess(), None).samples[0]["image"], expected)
    assert len(read_feed("random:9", chip, None, 2).samples) == 2


@pytest.mark.parametrize(
    ("source", "words", "hint"),
    [
        ("photo.png", "nothing says how images become inputs", "-P size="),
        ("net.py", "no such kind of input", "random:COUNT"),
        ("none.npy", "no such file", "random:COUNT"),
        ("none.png", "no such file", "random:COUNT"),
        ("random:x", "not of the form random:COUNT", "random:64"),
        ("texts.txt", "does not say what the model is for", "--task"),
    ],
)
def test_what_cannot_be_an_input(chip: Artifact, source: str, words: str, hint: str) -> None:
    for name in ("photo.png", "net.py", "texts.txt"):
        Path(name).write_text("x")
    with pytest.raises(ConfigError, match=words) as caught:
        read_feed(source, chip, None, None)
    assert hint in caught.value.hint


def test_the_preprocessing_of_the_calibration_is_remembered(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    steps = Preprocess(mean=(0.5,), std=(0.5,))
    known = calibrated.Calibrated("data", False, SOURCE, (), steps)
    chip = artifact(tmp_path / "chip", "null", OWN, "NHWC", {"calibration.json": json.dumps(schema.to_dict(known))})
    pixels = np.full((4, 5, 3), 200, np.uint8)
    (tmp_path / "photos").mkdir()
    image.fromarray(pixels).save(tmp_path / "photos/a.png")
    expected = OWN[0].to_stored((pixels / np.float32(255) - np.float32(0.5)) / np.float32(0.5))[None]
    for source in ("photos", "photos/a.png"):
        found = read_feed(str(tmp_path / source), chip, None, None).samples[0]["image"]
        np.testing.assert_array_equal(found, expected)
    assert remembered(str(tmp_path / "photos"), None, chip) == steps
    assert remembered(str(tmp_path / "photos"), Preprocess(), chip) == Preprocess()
    assert remembered("x.npy", None, chip) is None


def test_preprocessing_without_an_image_and_two_samples_for_a_bench(chip: Artifact) -> None:
    with pytest.raises(ConfigError, match="-P has no effect"):
        read_feed("random:1", chip, Preprocess(), None)
    with pytest.raises(ConfigError, match="holds 2 samples"):
        read_one("random:2", chip)


def test_run_gives_the_outputs_in_the_layout_that_the_inputs_came_in(chip: Artifact, capsys) -> None:
    assert main(["run", "out/chip", "-i", "random:2", "-o", "y.npz", "-f", "json"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record["samples"] == 2 and record["outputs"]["mask"]["shape"] == [2, 2, 4, 5]
    assert len(record["notes"]) == 2 and "note: output mask: moved from NHWC to NCHW" in err
    assert np.load("y.npz")["mask"].shape == (2, 2, 4, 5)
    np.save("own.npy", np.zeros((1, 4, 5, 3), np.int8))
    assert main(["run", "out/chip", "-i", "own.npy"]) == 0
    out, err = capsys.readouterr()
    assert "1x4x5x2" in out and not err
    np.save("bad.npy", np.zeros((1, 4, 3, 5), np.int8))
    assert main(["run", "out/chip", "-i", "bad.npy"]) == 2
    assert "has shape [1, 4, 5, 3], not [1, 4, 3, 5]" in capsys.readouterr().err

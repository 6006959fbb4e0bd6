"""Samples and labels that are missing are told of before the model is imported, let alone converted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_net import write_net

from anynpu.errors import ConfigError, IntegrityError
from anynpu.pipeline.build import build
from anynpu.pipeline.request import Request
from anynpu.pipeline.sweep import Silent
from anynpu.source.load import ModelSource
from anynpu.store import Store
from anynpu.tasks.images import Preprocess

FLOAT = {"activations": "float32"}


class Listening(Silent):
    """An observer that fails when a step begins."""

    def started(self, chip: str, stage: str) -> None:
        raise AssertionError(f"{stage} has begun")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_net(Path("net.onnx"))
    np.save("x.npy", np.zeros((8, 3), np.float32))
    np.savez("x.npz", x=np.zeros((8, 3), np.float32))
    np.savez("labelled.npz", x=np.zeros((8, 3), np.float32), labels=np.zeros(8, np.int64))
    for name in ("flat/a.png", "classes/cat/a.png"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"chips": ("null", "tflm")}, "tflite needs calibration data"),
        ({"chips": ("cpu",)}, "cpu needs calibration data"),
        ({"chips": ("ethos-u55-128",), "test": "x.npz"}, "tflite needs calibration data"),
        ({"chips": ("cpu",), "options": FLOAT}, "no samples to prove the result with"),
        *(
            ({"chips": ("tflm",), "data": source, "metric": "top1"}, f"--metric top1: {source} has no labels")
            for source in ("x.npy", "x.npz", "random:8", "flat")
        ),
        ({"chips": ("tflm",), "data": "classes"}, "classes is a folder of images: their preprocessing is not stated"),
        ({"chips": ("tflm",), "data": "labelled.npz", "test": "x.npz", "metric": "top1"}, "x.npz has no labels"),
    ],
)
def test_what_is_missing_is_said_first(folder: Path, asked: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(Request(ModelSource("net.onnx"), **asked), Store(folder / "cache"), Listening())


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("bad.onnx", IntegrityError, "bad.onnx: not a whole ONNX model"),
        ("weights.pth", ConfigError, "weights.pth: not a model that can be built"),
    ],
)
def test_a_file_that_is_not_a_model_comes_before_missing_samples(
    folder: Path, name: str, kind: type, words: str
) -> None:
    Path(name).write_bytes(bytes(range(128, 256)))
    with pytest.raises(kind, match=words):
        build(Request(ModelSource(name), ("cpu",)), Store(folder / "cache"), Listening())


def test_the_hint_for_images_names_the_flag(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Request(ModelSource("net.onnx"), ("tflm",), data="flat"), Store(folder / "cache"), Listening())
    assert "-P size=" in caught.value.hint and "--task" in caught.value.hint


def test_a_model_that_is_not_there_is_said_before_missing_samples(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"nett\.onnx: no such model"):
        build(Request(ModelSource("nett.onnx"), ("cpu",)), Store(folder / "cache"), Listening())


@pytest.mark.parametrize(
    "asked",
    [
        {"chips": ("null",)},
        {"chips": ("tflm",), "data": "labelled.npz", "metric": "top1"},
        {"chips": ("tflm",), "data": "classes", "metric": "top1", "preprocess": Preprocess()},
        {"chips": ("tflm",), "data": "samples.py:labelled", "metric": "top1"},
        {"chips": ("cpu",), "options": FLOAT, "test": "x.npz"},
    ],
)
def test_what_is_there_or_not_needed_is_not_asked_for(folder: Path, asked: dict) -> None:
    Path("samples.py").write_text("")
    with pytest.raises(AssertionError, match="import has begun"):
        build(Request(ModelSource("net.onnx"), **asked), Store(folder / "cache"), Listening())

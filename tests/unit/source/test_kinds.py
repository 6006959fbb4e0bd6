"""Files that are given as a model and are none: status 2 and what to give instead, 8 for one named .onnx."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from anynpu.artifact import Artifact
from anynpu.errors import ConfigError, IntegrityError
from anynpu.source.load import ModelSource, identify

torch = pytest.importorskip("torch")
NET = b"import torch\n\nclass Net(torch.nn.Module):\n    pass\n\ndef make():\n    return Net()\n"


def written(save, *arguments) -> bytes:
    buffer = io.BytesIO()
    save(*arguments, buffer)
    return buffer.getvalue()


def scripted() -> bytes:
    return written(torch.jit.save, torch.jit.script(torch.nn.ReLU()))


CASES = {
    "net.py": (lambda: NET, "which class or function", "-m {path}:Net (it defines Net, make)"),
    "empty.py": (lambda: b"# nothing\n", "which class or function", "-m {path}:Class"),
    "broken.py": (lambda: b"class Net(:\n", "which class or function", "-m {path}:Class"),
    "weights.pth": (lambda: written(torch.save, {"w": torch.zeros(3)}), "a PyTorch checkpoint", "--ckpt"),
    "weights": (lambda: written(torch.save, {"w": torch.zeros(3)}), "a PyTorch checkpoint", "--ckpt"),
    "script.pt": (scripted, "a TorchScript file", "FILE.py:CLASS"),
    "x.npy": (lambda: written(lambda a, f: np.save(f, a), np.zeros(3)), "a NumPy array", "--data"),
    "x.npz": (lambda: written(lambda a, f: np.savez(f, a=a), np.zeros(3)), "a file of NumPy arrays", "--data"),
    "photo.jpg": (lambda: b"\xff\xd8\xff\xe0" + bytes(40), "a JPEG image", "--data"),
    "net.bin": (lambda: b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model", "ending .tflite"),
    "settings.toml": (lambda: b"model = 1\n", "a TOML file", "-c"),
    "manifest.json": (lambda: b"{}\n", "a manifest of anynpu", "take its folder"),
    "notes.txt": (lambda: b"hello\n", "it looks like text", "net.onnx"),
    "page.html": (lambda: b"<!doctype html>", "an HTML page", "net.onnx"),
}


@pytest.mark.parametrize("name", CASES)
def test_another_kind_of_file_is_a_wrong_request(tmp_path: Path, name: str) -> None:
    make, words, hint = CASES[name]
    path = tmp_path / name
    path.write_bytes(make())
    with pytest.raises(ConfigError, match=words) as caught:
        identify(ModelSource(str(path)))
    assert hint.format(path=path) in caught.value.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [("graph.pb", "a TensorFlow graph"), ("model.cix", "a compiled .cix model"), ("a.bin", "not an ONNX")],
)
def test_bytes_that_no_kind_is_known_by_go_by_the_name(tmp_path: Path, name: str, words: str) -> None:
    from anynpu.source import onnx_file

    (tmp_path / name).write_bytes(bytes(range(256)))
    with pytest.raises(ConfigError, match=words):
        onnx_file.read(tmp_path / name)


def test_a_file_that_calls_itself_onnx_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(NET)
    with pytest.raises(IntegrityError, match="not an ONNX file: it looks like text"):
        identify(ModelSource(str(path)))


def test_an_artifact_is_built_already_and_a_file_is_no_artifact(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match="is built already") as caught:
        identify(ModelSource(str(tmp_path)))
    assert "anynpu show, run and bench" in caught.value.hint
    (tmp_path / "model.tflite").write_bytes(b"")
    with pytest.raises(ConfigError, match="is a file, and an artifact is a folder") as caught:
        Artifact.open(tmp_path / "model.tflite")
    assert caught.value.hint == f"name the folder {tmp_path}"


def test_a_checkpoint_of_another_kind(tmp_path: Path) -> None:
    from anynpu.source.checkpoint import load_tensors

    for name, data, kind in (("net.onnx", b"\x08\x07", "an ONNX model"), ("net.py", NET, "a Python file")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError, match=f"no checkpoint: it looks like {kind}") as caught:
            load_tensors(tmp_path / name)
        assert "-m" in caught.value.hint

"""What a file is that was given as a model and is none: told by its first bytes, with what to give instead."""

from __future__ import annotations

import ast
from pathlib import Path

from anynpu.errors import ConfigError, IntegrityError

TFLITE_ENDINGS = (".tflite", ".lite", ".tfl")
EXPORT_AGAIN = "Export or download the model again."
CHECKPOINT, PYTHON, TFLITE = "a PyTorch checkpoint", "a Python file", "a TensorFlow Lite model"
_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (4, b"TFL3", TFLITE),
    (4, b"ORTM", "an onnxruntime .ort model"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"\x89HDF", "an HDF5 file (Keras)"),
    (0, b"GGUF", "a GGUF model"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\x7fELF", "an ELF program"),
    (0, b"\x80\x02\x8a\x0a", CHECKPOINT),
    (0, b"RKNN", "an RKNN model"),
    (257, b"ustar", "a tar archive"),
)
_ENDINGS = {
    ".py": PYTHON,
    ".toml": "a TOML file",
    ".ipynb": "a notebook",
    ".cix": "a compiled .cix model",
    ".pb": "a TensorFlow graph",
    ".mlmodel": "a Core ML model",
    ".caffemodel": "a Caffe model",
    ".engine": "a TensorRT engine",
}
_NETWORK = "-m takes net.onnx, or the network as FILE.py:CLASS; "
_SAMPLES = _NETWORK + "samples go with --data"
_EXPORT = "export it to ONNX where it was made, and give -m net.onnx"
_KERAS = "Keras goes through ONNX: export it as a SavedModel, then python -m tf2onnx.convert (docs/import.md)"
_INSTEAD = {
    CHECKPOINT: "give the network as -m FILE.py:CLASS and the checkpoint with --ckpt",
    "a safetensors file": "give the network as -m FILE.py:CLASS and the checkpoint with --ckpt",
    "a TorchScript file": "give the network as -m FILE.py:CLASS, or export it with torch.onnx.export",
    "a torch.export program": "give the network as -m FILE.py:CLASS, or export it with torch.onnx.export",
    TFLITE: "name it with the ending .tflite",
    "an onnxruntime .ort model": "give the ONNX or PyTorch model it was made from",
    "an RKNN model": "give the ONNX or PyTorch model it was made from",
    "an HDF5 file (Keras)": _KERAS,
    "a Keras file": _KERAS,
    "a GGUF model": _EXPORT,
    "a TensorFlow graph": _EXPORT,
    "a Core ML model": _EXPORT,
    "a Caffe model": _EXPORT,
    "a TensorRT engine": _EXPORT,
    "a compiled .cix model": "it is built already: anynpu show, run and bench take it",
    "a NumPy array": _SAMPLES,
    "a file of NumPy arrays": _SAMPLES,
    "a PNG image": _SAMPLES,
    "a JPEG image": _SAMPLES,
    "a TOML file": _NETWORK + "settings go with -c, a task card with --task",
    "a manifest of anynpu": "an artifact is built already: anynpu show, run and bench take its folder",
}


def reject_other_kinds(
    path: Path, data: bytes, wanted: str = "an ONNX file", endings: tuple[str, ...] = (".onnx",)
) -> None:
    """Raises for bytes of another kind than is wanted: a file that has one of its endings is damaged, any other is the
    wrong one."""
    if not data:
        raise IntegrityError(f"{path}: the file is empty", EXPORT_AGAIN)
    if data.startswith(b"version https://git-lfs"):
        raise IntegrityError(f"{path}: is a git-lfs pointer, not the model itself", "run `git lfs pull` to fetch it")
    kind = kind_of(path, data)
    if not kind:
        return
    if path.suffix.lower() in endings:
        hint = _INSTEAD[kind] if kind in (CHECKPOINT, TFLITE) else EXPORT_AGAIN
        raise IntegrityError(f"{path}: not {wanted}: it looks like {kind}", hint)
    if kind == PYTHON:
        try:
            body = ast.parse(data).body
        except (SyntaxError, ValueError):
            body = []
        classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
        functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
        public = [name for name in (*classes, *functions) if not name.startswith("_")]
        more = f" (it defines {', '.join(public[:8])})" if len(public) > 1 else ""
        raise ConfigError(
            f"{path}: which class or function of it makes the model?",
            f"give -m {path}:{public[0] if public else 'Class'}{more}",
        )
    raise ConfigError(f"{path}: not a model that can be built: it looks like {kind}", _INSTEAD.get(kind, _NETWORK[:-2]))


def not_onnx(path: Path, reason: str) -> ConfigError | IntegrityError:
    """Returns the error for bytes that no kind is known by and that are not an ONNX model either."""
    ending = path.suffix.lower()
    if ending == ".onnx" or not ending:
        return IntegrityError(f"{path}: not a whole ONNX model: {reason}", EXPORT_AGAIN)
    kind = _ENDINGS.get(ending, "")
    what = f"it looks like {kind}" if kind else f"it is not an ONNX file ({reason})"
    return ConfigError(f"{path}: not a model that can be built: {what}", _INSTEAD.get(kind, _NETWORK[:-2]))


def kind_of(path: Path, data: bytes) -> str:
    """Returns what the first bytes say the file is, its name where they are text, or '' when they could be ONNX."""
    for offset, magic, kind in _MAGIC:
        if data[offset : offset + len(magic)] == magic:
            return kind
    if data.startswith(b"PK\x03\x04"):
        names = data[:4096] + data[-65536:]  # which stand before and after the files
        for mark, name in (
            (b"/code/", "a TorchScript file"),
            (b"/archive_format", "a torch.export program"),
            (b"serialized_exported_program", "a torch.export program"),
            (b"data.pkl", CHECKPOINT),
            (b"model.weights.h5", "a Keras file"),
            (b".npy", "a file of NumPy arrays"),
        ):
            if mark in names:
                return name
        return "a zip archive"
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") < len(data):
        return "a safetensors file"
    head = data[:512]
    try:
        text = head[:-4].decode() if len(head) == 512 else head.decode()
    except UnicodeDecodeError:
        return ""
    if any(ord(char) < 32 and char not in "\t\r\n" for char in text):
        return ""
    start = text.lstrip().lower()
    if start.startswith(("<!doctype html", "<html")):
        return "an HTML page"
    if path.name == "manifest.json":
        return "a manifest of anynpu"
    return _ENDINGS.get(path.suffix.lower(), "text")

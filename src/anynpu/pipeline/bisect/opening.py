"""Sides as the user names them: an artifact folder of a build, a model file, or `float`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anynpu import plugins
from anynpu.artifact import MANIFEST, Artifact, Manifest
from anynpu.errors import AnyNpuError, ConfigError, ToolMissing, Unsupported
from anynpu.measure.verify import REFERENCES
from anynpu.pipeline.bisect.executions import Compiled, Direct
from anynpu.pipeline.bisect.files import ModelFile
from anynpu.pipeline.bisect.onnx_file import OnnxFile
from anynpu.pipeline.bisect.tflite_file import TfliteFile
from anynpu.pipeline.output import FAILED
from anynpu.quantize.tflite_given import GIVEN, given_format
from anynpu.records.parts import REPORT
from anynpu.runtime.base import choose, sessions_for
from anynpu.source.kinds import TFLITE_ENDINGS
from anynpu.store import Store

FLOAT = "float"
ONNX_FORMATS, TFLITE_FORMATS = ("onnx", "onnx-ort", "onnx-vitisai"), ("tflite", "tflite-float", "tflite-given")
NATIVE, PLAIN = "ort-native", "ort-plain"
"""ONNX Runtime as anybody calls it, and without fused kernels: the file's own arithmetic."""
FORMS = "give a folder of a build (out/CHIP), a .onnx or .tflite file, or float"


@dataclass(frozen=True)
class Named:
    """A side as it was written, found: an artifact, or a file that stands alone."""

    text: str
    artifact: Artifact | None
    path: Path

    @property
    def fingerprint(self) -> str:
        return self.artifact.manifest.fingerprint if self.artifact else ""


def named(text: str, other: str) -> Named:
    """Returns the side that a text names; `float` is the float model of the build that the other side is of."""
    if text == FLOAT and not Path(text).exists():
        place = Path(other).absolute()
        for folder in (place.parent / FLOAT, place / FLOAT, place.parents[1] / FLOAT):
            if (folder / MANIFEST).is_file():
                return Named(text, Artifact.open(folder), folder)
        raise ConfigError(f"float: {other} lies in no build's output folder", "name the float model's file instead")
    path = Path(text)
    if path.is_dir():
        if not (path / MANIFEST).is_file() and (path / REPORT).is_file():
            chips = sorted(each.name for each in path.iterdir() if (each / MANIFEST).is_file())
            raise ConfigError(f"{path}: is the output of a whole build", "name one of its folders: " + ", ".join(chips))
        return Named(text, Artifact.open(path.absolute()), path.absolute())  # vendors' workers run elsewhere
    if not path.exists():
        hint, failed = FORMS, path.parent / FAILED / path.name
        if (path.parent / REPORT).is_file():  # the output of a build, without a folder for this chip
            rest = f"the build kept nothing for {path.name}; --keep-failed keeps a result that misses the accuracy gate"
            hint = f"it missed the accuracy gate and lies at {failed}" if failed.is_dir() else rest
        raise ConfigError(f"{path}: no such file or folder", hint)
    if path.suffix.lower() not in (".onnx", *TFLITE_ENDINGS):
        raise ConfigError(f"{path}: is neither an ONNX nor a TFLite file", FORMS)
    return Named(text, None, path)


def execution(side: Named, device: str | None, store: Store) -> Direct | Compiled:
    """Returns what executes a side."""
    if side.artifact is None:
        if side.path.suffix.lower() == ".onnx":
            file: ModelFile = OnnxFile(side.path, "onnx")
        else:
            format = given_format(side.path)
            file = TfliteFile(side.path, "tflite" if format == GIVEN and device == "tflm" else format)
        whole = Artifact(side.path.parent, Manifest(file.format, side.path.name, file.inputs, file.outputs))
        return _direct(side.text, file, whole, device)
    format = side.artifact.manifest.format
    if format == "null":
        raise ToolMissing(f"{side.text}: the null device computes nothing", FORMS)
    if format in (*ONNX_FORMATS, *TFLITE_FORMATS):
        return _direct(side.text, _file_of(side.artifact), side.artifact, device)
    kind = choose(format, device)  # raises where nothing here executes it
    before = _before(side)
    assert side.artifact is not None and side.artifact.manifest.step is not None
    chip = side.artifact.manifest.step.platform or side.path.absolute().name
    return Compiled(side.text, kind.what, _file_of(before), side.artifact, before, device, store, chip)


def _direct(text: str, file: ModelFile, artifact: Artifact, device: str | None) -> Direct:
    if device in (NATIVE, PLAIN):
        if file.suffix != ".onnx":
            raise ConfigError(f"{device} runs ONNX files, and {text} is not one")
        from anynpu.pipeline.bisect.native import Native, Plain

        return Direct(text, "", file, Native if device == NATIVE else Plain, artifact, device)
    format, own = artifact.manifest.format, ""
    with suppress(AnyNpuError):  # the chip's own runtime; a folder need not be named after a chip
        own = plugins.platform(artifact.path.absolute().name).device
    usual = own if own in {kind.name for kind in sessions_for(format)} else REFERENCES.get(format)
    kind: Any = choose(format, device or usual)
    return Direct(text, kind.what, file, kind, artifact, kind.name)


def _file_of(artifact: Artifact) -> ModelFile:
    format = artifact.manifest.format
    if format in ONNX_FORMATS:
        return OnnxFile(artifact.main, format, artifact.manifest)
    if format in TFLITE_FORMATS:
        return TfliteFile(artifact.main, format, artifact)
    raise Unsupported(f"nothing here takes {format} apart", hint="bisect it against the model that it was made from")


def _before(side: Named) -> Artifact:
    """Returns the artifact that a compiler was given to make this one."""
    assert side.artifact is not None
    step = side.artifact.manifest.step
    wanted = step.inputs.get("model", "") if step else ""
    place, folders = side.path.absolute(), list[Path]()
    for root in place.parents[:2]:
        folders += [root / FLOAT, root / "given"]
        folders += sorted((root / "steps").iterdir()) if (root / "steps").is_dir() else []
        folders += sorted(each for each in root.iterdir() if each.is_dir() and each != place)
    for folder in folders:
        try:
            artifact = Artifact.read(folder)
        except AnyNpuError:
            continue
        if artifact.digest == wanted:
            artifact.verify()
            return artifact
    raise ConfigError(
        f"{side.text}: what it was compiled from is not in its build's output folder",
        "bisect inside the folder that `anynpu build -o` wrote: it needs float/ and steps/ there",
    )

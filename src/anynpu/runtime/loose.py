"""ONNX models with one fixed shape, run by ONNX Runtime at any number of rows and, for text, at any shorter length.

An artifact has the one shape it was built for. On a CPU that wastes work: texts are padded to the full length, and rows
that wait together run one after the other. So the fixed numbers in the graph are put back to where they came from:
which axis of every tensor holds the rows and which the tokens is followed from the inputs through every operator, and
the shapes of Reshapes and the constants that are as long as the text are derived from the inputs instead.

None of that is taken on trust: the result is compared with the model as it is, and where one number differs by more
than the order of additions explains, or an operator is not known, the model runs as it was built. This is done once, in
a child process, and kept in the cache.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from anynpu import schema, tool
from anynpu.artifact import Artifact
from anynpu.errors import AnyNpuError, IntegrityError
from anynpu.files import default_cache_dir, write_whole, writing
from anynpu.foreign import ONNX_RUNTIME, mapped
from anynpu.runtime.ort import OrtSession, inference_session
from anynpu.tensors import Array, TensorSpec

FOLDER, MODEL, SAYS = "loose", "model.onnx", "loose.json"
FORM = 1
"""Counted up when this module learns something: what earlier forms made is not used."""
CLOSE_DB = 60.0
MASK = "attention_mask"
MOST_KEPT = 8
"""How many models are kept; each is as large as the artifact's own."""


class LooseSession(OrtSession):
    """Runs an ONNX model at any number of rows; `free` names the axes that may differ from the model's."""

    def __init__(self, artifact: Artifact, file: Path, free: frozenset[str], threads: int = 0) -> None:
        super().__init__(artifact, threads, file, spin=False)
        self.free = free


class BuiltSession(OrtSession):
    """Runs an ONNX model as it was built, while it is not known yet whether it can take any number of rows."""

    def __init__(self, artifact: Artifact, threads: int = 0) -> None:
        super().__init__(artifact, threads, spin=False)
        self._artifact = artifact

    def loosen(self) -> bool:
        """Returns whether the model can take any number of rows, for those who open it from now on; takes seconds."""
        return bool(loosened(self._artifact)[1])


def open_loose(artifact: Artifact, threads: int = 0, wait: bool = True) -> OrtSession:
    """Returns a session that takes any number of rows where the model allows it, and the plain one elsewhere.

    Without `wait` it is a BuiltSession where nobody has tried that before: to find it out takes seconds.
    """
    if not wait and _read(_place(artifact)) is None:
        return BuiltSession(artifact, threads)
    file, free = loosened(artifact)
    return LooseSession(artifact, file, free, threads) if free else OrtSession(artifact, threads, spin=False)


def loosened(artifact: Artifact) -> tuple[Path, frozenset[str]]:
    """Returns the model with free axes and which these are, made once for an artifact; none where it cannot be done."""
    place = _place(artifact)
    if (free := _read(place)) is None:
        with tempfile.TemporaryDirectory(prefix="anynpu-loose-") as name, writing(Path(name)):
            arguments = {"artifact": str(artifact.path), "out": str(Path(name) / MODEL)}
            try:
                answer = tool.call("anynpu.runtime.loose:make", arguments, scratch=Path(name), log=Path(name) / "log")
            except AnyNpuError:  # whatever it is, the model as it was built does not need it
                answer = {"free": []}
            free = frozenset(answer["free"])
            with suppress(OSError):  # a read-only cache: the model runs as it was built
                place.mkdir(parents=True, exist_ok=True)
                if free:
                    write_whole(place / MODEL, (Path(name) / MODEL).read_bytes())
                write_whole(place / SAYS, json.dumps(answer).encode())
                models = sorted(place.parent.glob(f"*/{MODEL}"), key=lambda path: path.stat().st_mtime)
                for path in models[:-MOST_KEPT]:
                    shutil.rmtree(path.parent, ignore_errors=True)
    return (place / MODEL, free) if free and (place / MODEL).is_file() else (artifact.main, frozenset())


def _place(artifact: Artifact) -> Path:
    return default_cache_dir() / FOLDER / schema.digest([artifact.digest, FORM])


def _read(place: Path) -> frozenset[str] | None:
    try:
        return frozenset(schema.read_json(place / SAYS)["free"])
    except (AnyNpuError, OSError, KeyError, TypeError):
        return None


def make(artifact: str, out: str) -> dict[str, object]:
    """Writes the model with free axes and returns which are (runs in a child process)."""
    import onnx

    from anynpu.runtime.loose_graph import loosen
    from anynpu.runtime.loose_walk import NotLoose

    source = Artifact.open(Path(artifact))
    inputs, outputs = source.manifest.inputs, source.manifest.outputs
    reasons: list[str] = []
    for axes in _wishes(inputs):
        try:
            model = loosen(onnx.load(source.main), [spec.name for spec in inputs], axes)
            onnx.save(model, out)
            judge(str(source.main), out, inputs, outputs, axes)
            return {"free": list(axes), "reasons": reasons}
        except (NotLoose, AnyNpuError) as error:
            reasons.append(f"{' and '.join(axes)}: {error}")
    return {"free": [], "reasons": reasons}


def _wishes(inputs: Sequence[TensorSpec]) -> list[tuple[str, ...]]:
    """Returns which axes could be free, the best first."""
    if not inputs or not all(spec.shape and spec.shape[0] == inputs[0].shape[0] for spec in inputs):
        return []
    text = all(len(spec.shape) == 2 and spec.shape == inputs[0].shape for spec in inputs)
    masked = any(spec.name == MASK for spec in inputs)
    return [("batch", "length"), ("batch",)] if text and masked else [("batch",)]


def judge(
    plain: str, loose: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], axes: Sequence[str]
) -> None:
    """Raises IntegrityError unless the free model computes what the model does."""
    first, second = inference_session(plain, threads=1), inference_session(loose, threads=1)
    names = [spec.name for spec in outputs]
    rows, length = inputs[0].shape[0], inputs[0].shape[1] if "length" in axes else 0
    lengths = sorted({length, max(3, length // 3), max(3, length // 8 + 1)}, reverse=True) if length else [0]
    draw = np.random.default_rng(3)
    for count in lengths:
        samples = []
        for _ in range(3):
            # Inputs of the model's own shape; of texts `count` tokens count, and the rest is padding
            arrays: dict[str, Array] = {}
            for spec in inputs:
                if spec.quantization is not None or spec.dtype.startswith("float"):
                    arrays[spec.name] = spec.to_stored(draw.normal(0, 1, spec.shape))
                elif spec.name == MASK:
                    arrays[spec.name] = np.ones(spec.shape, spec.dtype)
                else:
                    arrays[spec.name] = draw.integers(0, 2 if "type" in spec.name else 20, spec.shape).astype(
                        spec.dtype
                    )
                if count:
                    arrays[spec.name][:, count:] = 0
            samples.append(arrays)
        wanted = [first.run(names, sample) for sample in samples]
        for group in ([0], [0, 1, 2], [2, 1]):
            batch = {s.name: np.concatenate([samples[i][s.name] for i in group]) for s in inputs}
            batch = {name: array[:, :count] if count else array for name, array in batch.items()}
            with mapped(ONNX_RUNTIME, "another shape is refused"):
                answers: list[Array] = second.run(list(names), batch)
            for place, (name, got) in enumerate(zip(names, answers, strict=True)):
                expected = np.concatenate([wanted[i][place] for i in group])
                if count and expected.shape[1:2] == (length,) and got.shape[1:2] == (count,):
                    expected = expected[:, :count]
                if got.shape != expected.shape or got.dtype != expected.dtype:
                    raise IntegrityError(f"output {name} has shape {list(got.shape)}, not {list(expected.shape)}")
                a, b = np.asarray(expected, np.float64), np.asarray(got, np.float64)
                noise = np.square(a - b).reshape(rows * len(group), -1).sum(1)
                power = np.square(a).reshape(rows * len(group), -1).sum(1)
                if not (np.isfinite(noise).all() and (noise <= power * 10 ** (-CLOSE_DB / 10)).all()):
                    raise IntegrityError(f"output {name} is not what the model gives")

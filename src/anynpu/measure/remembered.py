"""What runtimes gave for samples, so that none of them runs the same file twice on the same sample.

A TFLite file is proved for several chips: for one LiteRT speaks, for another TFLite-Micro, and each is asked for its
opinion on what the other runs. Answers are found by the inputs that they are to, of models without a state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.arrays import read_npz
from anynpu.artifact import Artifact
from anynpu.runtime.tflite_file import is_stateless, shared_model
from anynpu.tensors import Array

FORMATS = ("tflite",)
"""Formats that several runtimes of this host execute."""
MOST_BYTES = 128 << 20
"""More than this is not kept."""
_INPUTS = "inputs"


class Memory:
    """The answers of runtimes to an artifact, by the runtime's name: those of a folder, and those given since."""

    def __init__(self, artifact: Artifact, folder: str = "") -> None:
        self._artifact, self._folder = artifact, Path(folder) if folder else None
        self._answers: dict[str, dict[str, dict[str, Array]]] = {}

    @cached_property
    def _able(self) -> bool:
        main = self._artifact.main
        return self._artifact.manifest.format in FORMATS and is_stateless(shared_model(main.read_bytes(), str(main)))

    def of(self, name: str, session: Any) -> Any:
        """Returns a session that does not run what the runtime of that name has answered already."""
        if not self._able:
            return session
        if name not in self._answers:
            answers: dict[str, dict[str, Array]] = {}
            if (file := self._file(name)) is not None and file.is_file():
                arrays = read_npz(file)
                digests = [str(each) for each in arrays.pop(_INPUTS)]
                outputs = {key.partition(":")[2]: array for key, array in arrays.items()}
                answers = {
                    digest: {key: array[at] for key, array in outputs.items()} for at, digest in enumerate(digests)
                }
            self._answers[name] = answers
        return _Remembering(session, self._answers[name])

    def write(self) -> None:
        """Writes the answers of every runtime that the folder has none of yet."""
        for name, answers in self._answers.items():
            file = self._file(name)
            size = sum(array.nbytes for each in answers.values() for array in each.values())
            if file is None or file.is_file() or not answers or size > MOST_BYTES:
                continue
            outputs = next(iter(answers.values()))
            stacked = {output: np.stack([each[output] for each in answers.values()]) for output in outputs}
            np.savez(file, **{_INPUTS: np.array([*answers])}, **{f"output:{n}": a for n, a in stacked.items()})  # type: ignore[arg-type]

    def _file(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / answers_file(name)


def answers_file(name: str) -> str:
    """Returns the name of the file with the answers of a runtime."""
    return f"{name}.npz"


class _Remembering:
    """A session with what its runtime answered before."""

    def __init__(self, session: Any, answers: dict[str, dict[str, Array]]) -> None:
        self._session, self._answers = session, answers
        self.inputs, self.outputs, self.what = session.inputs, session.outputs, session.what

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        digest = hashlib.sha256()
        for name in sorted(inputs):
            array = np.ascontiguousarray(inputs[name])
            digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            digest.update(array.data)
        key = digest.hexdigest()
        if key not in self._answers:
            self._answers[key] = self._session.run(inputs)
        return dict(self._answers[key])

    def close(self) -> None:
        self._session.close()

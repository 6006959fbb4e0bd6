"""TFLite-Micro, the interpreter that runs on microcontrollers, on the host: the reference for int8 results."""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, IntegrityError
from anynpu.runtime import tflite_form
from anynpu.tensors import Array

ARENA_LIMIT = 1 << 30


class TflmSession:
    """Runs TFLite models as a microcontroller would."""

    name = "tflm"
    formats = ("tflite", "tflite-float")
    rank = 0
    package = "tflite-micro"
    what = "TFLite-Micro interpreter on this host's CPU"
    packages = ("tflite-micro",)

    def __init__(self, artifact: Artifact) -> None:
        self.inputs = artifact.manifest.inputs
        self.outputs = artifact.manifest.outputs
        model = artifact.main.read_bytes()
        tflite_form.check(model, str(artifact.main))
        self._interpreter = _interpreter(model)

    @staticmethod
    def missing() -> str:
        return "" if importlib.util.find_spec("tflite_micro") else "tflite-micro is not installed (x86-64, Python 3.11)"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for index, spec in enumerate(self.inputs):
            self._interpreter.set_input(np.ascontiguousarray(inputs[spec.name]), index)
        try:
            self._interpreter.invoke()
        except RuntimeError as error:
            raise DeviceError(f"TFLite-Micro failed: {error}", call="invoke") from error
        return {spec.name: self._interpreter.get_output(i).copy() for i, spec in enumerate(self.outputs)}

    def arena_bytes(self) -> int | None:
        """Returns the arena that TFLite-Micro recorded on this 64-bit host, or None if it did not say."""
        match = re.search(r"Arena allocation total (\d+) bytes", _printed(self._interpreter.print_allocations))
        return int(match.group(1)) if match else None

    def close(self) -> None:
        self._interpreter = None


def _interpreter(model: bytes) -> Any:
    """Returns an interpreter with an arena large enough: the package's own guess fails on wide activations."""
    from tflite_micro import runtime

    arena = max(4 << 20, 4 * len(model))
    while True:
        try:
            return runtime.Interpreter.from_bytes(model, arena_size=arena)
        except (RuntimeError, ValueError, struct.error) as error:
            arena *= 4
            if arena > ARENA_LIMIT:
                raise IntegrityError(
                    "TFLite-Micro refuses the model", "an operator it does not know, or a damaged file"
                ) from error


def _printed(action: Any) -> str:
    """Returns what native code prints to stdout and stderr while `action` runs."""
    with tempfile.TemporaryFile() as sink:
        saved = [(fd, os.dup(fd)) for fd in (1, 2)]
        try:
            for fd, _ in saved:
                os.dup2(sink.fileno(), fd)
            action()
        finally:
            for fd, copy in saved:
                os.dup2(copy, fd)
                os.close(copy)
        sink.seek(0)
        return sink.read().decode("utf-8", "replace")

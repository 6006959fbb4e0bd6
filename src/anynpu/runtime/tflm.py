"""TFLite-Micro, the interpreter that runs on microcontrollers, on the host: the reference for int8 results."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, ModelRefused, ToolMissing
from anynpu.foreign import TFLITE_MICRO
from anynpu.runtime import tflite_file, tflite_form
from anynpu.tensors import Array

ARENA_LIMIT = 1 << 30
NO_KERNEL = "Didn't find op"
"""What it prints about an operator that no arena is large enough for."""


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
        self._model = model
        self._interpreter = open_micro(model)

    @staticmethod
    def missing() -> str:
        return "" if importlib.util.find_spec("tflite_micro") else "tflite-micro is not installed (Linux on x86-64)"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        for index, spec in enumerate(self.inputs):
            self._interpreter.set_input(np.ascontiguousarray(inputs[spec.name]), index)
        try:
            self._interpreter.invoke()
        except TFLITE_MICRO as error:
            raise DeviceError(
                f"TFLite-Micro failed: {reason_of(self._model, self._interpreter.invoke) or error}", call="invoke"
            ) from error
        return {spec.name: self._interpreter.get_output(i).copy() for i, spec in enumerate(self.outputs)}

    def arena_bytes(self) -> int | None:
        """Returns the arena that TFLite-Micro recorded on this 64-bit host, or None if it did not say."""
        match = re.search(r"Arena allocation total (\d+) bytes", _printed(self._interpreter.print_allocations))
        return int(match.group(1)) if match else None

    def close(self) -> None:
        self._interpreter = None


def open_micro(model: bytes, keeps_tensors: bool = False) -> Any:
    """Returns an interpreter with an arena large enough: the package's own guess fails on wide activations. One that
    keeps all tensors has memory for each of them."""
    from tflite_micro import runtime

    kinds = runtime.InterpreterConfig
    kind = kinds.kPreserveAllTensors if keeps_tensors else kinds.kAllocationRecording
    arena = max(4 << 20, 4 * len(model))
    while True:
        opening = functools.partial(runtime.Interpreter.from_bytes, model, arena_size=arena, intrepreter_config=kind)
        try:
            return opening()
        except TFLITE_MICRO as error:
            reason = reason_of(model, opening)
            arena *= 4
            if arena > ARENA_LIMIT or NO_KERNEL in reason:
                raise ModelRefused(
                    f"TFLite-Micro refuses the model: {reason or error}", "anynpu check lists what it does not run"
                ) from error


def reason_of(model: bytes, action: Any) -> str:
    """Returns the operator and layer at which an action fails, and what TFLite-Micro prints about it."""
    with contextlib.suppress(ToolMissing):
        graph = tflite_file.read_model(model)
        printed = [line.strip() for line in _printed(action).splitlines() if line.strip()]
        number, kind = -1, re.search(r"builtin opcode '(\w+)'", " ".join(printed))
        if kind:
            from ai_edge_litert.schema_py_generated import BuiltinOperator

            wanted = getattr(BuiltinOperator, kind[1], -1)
            codes = [graph.operatorCodes[each.opcodeIndex].builtinCode for each in graph.subgraphs[0].operators]
            number = codes.index(wanted) if wanted in codes else -1
        elif node := re.search(r"\(number (\d+)", " ".join(printed)):
            number = int(node[1])
        main = graph.subgraphs[0]
        layer = main.tensors[main.operators[number].outputs[0]].name.decode() + ": " if number >= 0 else ""
        return layer + "; ".join(printed[:2])
    return ""


def _printed(action: Any) -> str:
    """Returns what native code prints to stdout and stderr while `action` runs, which may fail."""
    with tempfile.TemporaryFile() as sink:
        saved = [(fd, os.dup(fd)) for fd in (1, 2)]
        try:
            for fd, _ in saved:
                os.dup2(sink.fileno(), fd)
            with contextlib.suppress(*TFLITE_MICRO):
                action()
        finally:
            for fd, copy in saved:
                os.dup2(copy, fd)
                os.close(copy)
        sink.seek(0)
        return sink.read().decode("utf-8", "replace")

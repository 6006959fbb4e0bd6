"""A TFLite model in TFLite-Micro, with LiteRT's reference kernels for the operators that it has no kernel for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.errors import DeviceError, ModelRefused
from anynpu.foreign import LITERT, TFLITE_MICRO, mapped
from anynpu.runtime.litert import REFERENCE, LiteRtSession, open_interpreter
from anynpu.runtime.tflite_file import is_stateless, operator_names, shared_model
from anynpu.runtime.tflite_halves import part_of
from anynpu.runtime.tflm import TflmSession, open_micro, reason_of
from anynpu.tensors import Array

_REFUSED = re.compile(r"Node (\w+) \(number \d+\)|builtin opcode '(\w+)'")


@dataclass(frozen=True)
class _Stretch:
    """Operators behind one another that one of the runtimes has, and the tensors that they read and give."""

    lacking: bool
    model: bytes
    interpreter: Any
    fed: list[int]
    kept: list[int]

    def run(self, values: Mapping[int, Array]) -> dict[int, Array]:
        runtime, fed = self.interpreter, [np.ascontiguousarray(values[index]) for index in self.fed]
        if self.lacking:
            with mapped(LITERT, "LiteRT fails"):
                for index, value in zip(self.fed, fed, strict=True):
                    runtime.set_tensor(index, value)
                runtime.invoke()
            return {index: runtime.get_tensor(index).copy() for index in self.kept}
        for place, value in enumerate(fed):
            runtime.set_input(value, place)
        try:
            runtime.invoke()
        except TFLITE_MICRO as error:
            said = reason_of(self.model, runtime.invoke) or error
            raise DeviceError(f"TFLite-Micro failed: {said}", call="invoke") from error
        return {index: runtime.get_output(place).copy() for place, index in enumerate(self.kept)}


class FilledSession:
    """Runs each operator in TFLite-Micro, and the kinds that it refuses in LiteRT."""

    def __init__(self, artifact: Artifact) -> None:
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        self._model = shared_model(artifact.main.read_bytes(), str(artifact.main))
        if not is_stateless(self._model):
            raise ModelRefused("TFLite-Micro has no kernel for an operator of a model with states")
        self._lacking: set[str] = set()
        self._stretches: list[_Stretch] = []

    @staticmethod
    def missing() -> str:
        return LiteRtSession.missing() or TflmSession.missing()

    @property
    def what(self) -> str:
        """What executes the model, once it has."""
        return f"{TflmSession.what} with LiteRT's reference kernels for {', '.join(sorted(self._lacking))}"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        graph = self._model.subgraphs[0]
        while True:
            values = {int(index): inputs[spec.name] for index, spec in zip(graph.inputs, self.inputs, strict=True)}
            try:
                self._stretches = self._stretches or self._opened()
                for stretch in self._stretches:
                    values |= stretch.run(values)
                return {spec.name: values[int(i)] for i, spec in zip(graph.outputs, self.outputs, strict=True)}
            except (ModelRefused, DeviceError) as refusal:
                kinds = _REFUSED.search(refusal.message)
                kind = (kinds[1] or kinds[2]) if kinds else ""
                if not kind or kind in self._lacking:
                    raise
                self._lacking.add(kind)
                self._stretches = []

    def _opened(self) -> list[_Stretch]:
        graph, names = self._model.subgraphs[0], operator_names(self._model)
        known = {int(index) for op in graph.operators for index in op.outputs} | {int(i) for i in graph.inputs}
        stretches = []
        for lacking, numbered in groupby(range(len(names)), lambda number: names[number] in self._lacking):
            numbers = list(numbered)
            operators = graph.operators[numbers[0] : numbers[-1] + 1]
            computed = {int(index) for op in operators for index in op.outputs}
            fed = sorted({int(index) for op in operators for index in op.inputs} & known - computed)
            behind = {int(index) for op in graph.operators[numbers[-1] + 1 :] for index in op.inputs}
            kept = sorted(computed & (behind | {int(index) for index in graph.outputs}))
            part = part_of(self._model, operators, fed, kept)
            interpreter = open_interpreter(part, REFERENCE) if lacking else open_micro(part)
            stretches.append(_Stretch(lacking, part, interpreter, fed, kept))
        return stretches

    def close(self) -> None:
        self._stretches = []

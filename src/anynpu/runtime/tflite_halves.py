"""A TFLite model in two runtimes: LiteRT's reference kernels for what costs most, TFLite-Micro for what comes after.

LiteRT takes a third of the time. Convolutions, sums and paddings give the same integers in both; a mean at the end of a
model may differ by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anynpu.artifact import Artifact
from anynpu.foreign import LITERT, TFLITE_MICRO, mapped
from anynpu.runtime.litert import REFERENCE, LiteRtSession, open_interpreter
from anynpu.runtime.tflite_file import is_stateless, operator_names, pack_model, shared_model, with_own_buffers
from anynpu.runtime.tflm import TflmSession, open_micro
from anynpu.tensors import Array

TAIL_SHARE = 0.05
"""TFLite-Micro runs as many of the last operators as have at most this share of the work."""


class HalvesSession:
    """Runs the head of a model in LiteRT and its tail in TFLite-Micro."""

    def __init__(self, artifact: Artifact) -> None:
        self.inputs, self.outputs = artifact.manifest.inputs, artifact.manifest.outputs
        model = shared_model(artifact.main.read_bytes(), str(artifact.main))
        graph, begin = model.subgraphs[0], tail_begin(model)
        self._fed, self._given = list(map(int, graph.inputs)), list(map(int, graph.outputs))
        computed = {int(index) for op in graph.operators[:begin] for index in op.outputs}
        read = {int(index) for op in graph.operators[begin:] for index in op.inputs}
        self._crossing = sorted(computed & read) + sorted({*self._fed} & read)
        self._kept = sorted(computed & {*read, *self._given})
        self._last = [index for index in self._given if index not in computed]
        head, tail = graph.operators[:begin], graph.operators[begin:]
        self._head = open_interpreter(part_of(model, head, self._fed, self._kept), REFERENCE)
        self._tail = open_micro(part_of(model, tail, self._crossing, self._last)) if self._last else None
        self.what = f"{LiteRtSession.what}, with TFLite-Micro for the last {len(tail)} operators,"

    @staticmethod
    def missing() -> str:
        return LiteRtSession.missing() or TflmSession.missing()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        values = {index: inputs[spec.name] for index, spec in zip(self._fed, self.inputs, strict=True)}
        with mapped((*LITERT, *TFLITE_MICRO), "LiteRT and TFLite-Micro fail"):
            for index, value in values.items():
                self._head.set_tensor(index, value)
            self._head.invoke()
            values |= {index: self._head.get_tensor(index) for index in self._kept}
            if self._tail is not None:
                for place, index in enumerate(self._crossing):
                    self._tail.set_input(np.ascontiguousarray(values[index]), place)
                self._tail.invoke()
                values |= {index: self._tail.get_output(place).copy() for place, index in enumerate(self._last)}
        return {spec.name: values[index] for index, spec in zip(self._given, self.outputs, strict=True)}

    def close(self) -> None:
        self._head = self._tail = None


def can_halve(artifact: Artifact) -> bool:
    """Tells whether a model has a head that is worth another runtime: one graph, and no state from run to run."""
    model = shared_model(artifact.main.read_bytes(), str(artifact.main))
    return is_stateless(model) and tail_begin(model) > 0


def tail_begin(model: Any) -> int:
    """Returns the first operator of the tail."""
    graph = model.subgraphs[0]

    def shape(index: int) -> list[int]:
        return [int(size) for size in (graph.tensors[index].shape if graph.tensors[index].shape is not None else ())]

    work = []
    for name, op in zip(operator_names(model), graph.operators, strict=True):
        outputs = sum(math.prod(shape(int(index))) for index in op.outputs)
        taps = shape(int(op.inputs[1])) if name in ("CONV_2D", "FULLY_CONNECTED", "DEPTHWISE_CONV_2D") else [1]
        work.append(outputs * math.prod(taps[1:-1] if name == "DEPTHWISE_CONV_2D" else taps[1:]))
    begin, left = len(work), TAIL_SHARE * sum(work)
    while begin and work[begin - 1] <= left:
        begin -= 1
        left -= work[begin]
    return begin


def part_of(model: Any, operators: Sequence[Any], inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
    """Returns a file with some of the operators; tensors keep their numbers."""
    own = with_own_buffers(model)
    graph = own.subgraphs[0]
    graph.operators, graph.inputs, graph.outputs = list(operators), list(inputs), list(outputs)
    own.signatureDefs = own.metadata = None
    read = {graph.tensors[int(index)].buffer for op in operators for index in op.inputs if index >= 0}
    for number, buffer in enumerate(own.buffers):
        if number not in read:
            buffer.data = None
    return pack_model(own)

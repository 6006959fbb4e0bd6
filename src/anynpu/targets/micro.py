"""Which operators TFLite-Micro does not run: it is asked about each by itself, since it stops at a model's first."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import tool
from anynpu.errors import Finding, ToolFailed
from anynpu.foreign import TFLITE_MICRO
from anynpu.lowering.emit import integer_graph
from anynpu.lowering.graph import Graph, Operator, pruned
from anynpu.lowering.read import from_bytes
from anynpu.lowering.wide_forms import as_micro_has
from anynpu.lowering.write import to_bytes
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range
from anynpu.runtime.tflm import TflmSession

ARENA = 16 << 20


def lacking(path: Path, plan: QuantPlan, tables: bool) -> tuple[Finding, ...]:
    """Returns the operators of a float file that TFLite-Micro has no kernel for once they are quantised.

    The ranges are made up: they decide the scales, not the types and operators that are asked about.
    """
    if TflmSession.missing():
        return ()
    content = path.read_bytes()
    if plan.activations != "float32":
        graph, plan = as_micro_has(from_bytes(content), plan)
        ranges = {name: Range(0.0, 1.0) for name, tensor in graph.tensors.items() if tensor.data is None}
        content = to_bytes(integer_graph(graph, ranges, plan, tables)[0])
    return refused(content)


def refused(content: bytes) -> tuple[Finding, ...]:
    """Returns the operators of a file that TFLite-Micro does not run, each with its reason."""
    with tempfile.TemporaryDirectory(prefix="anynpu-micro-") as name:
        return _asked(content, Path(name))


def _asked(content: bytes, folder: Path) -> tuple[Finding, ...]:
    model, answers = folder / "model.tflite", folder / "answers"
    model.write_bytes(content)
    graph = from_bytes(content)
    operators = graph.operators
    findings, start = list[Finding](), 0
    while start < len(operators):
        answers.write_text("")
        arguments = {"model": str(model), "start": start, "answers": str(answers)}
        died = False
        try:
            tool.call("anynpu.targets.micro:try_operators", arguments, scratch=folder, log=folder / "log")
        except ToolFailed:
            died = True
            if not answers.read_text("utf-8"):  # it did not come to an operator
                raise
        lines = answers.read_text("utf-8").splitlines()
        for line in lines:
            number, _, reason = line.partition(" ")
            start = int(number) + 1
            if reason and (reason != "?" or line is lines[-1]):
                operator = operators[int(number)]
                types = ", ".join(graph.tensors[each].dtype for each in operator.inputs if each)
                why = reason if reason != "?" else "aborts"
                what = f"{operator.kind} of {types} does not run on TFLite-Micro: {why}"
                findings.append(Finding("tflm-kernel", what, operator.outputs[0]))
        if not died:
            break
    return tuple(findings)


def try_operators(model: str, start: int, answers: str) -> int:
    """Writes for each operator from `start` on its number and why it does not run (in a child, which it may end)."""
    graph = from_bytes(Path(model).read_bytes())
    answers_by_kind: dict[Any, str] = {}
    with Path(answers).open("a", encoding="utf-8") as file:
        for number, operator in enumerate(graph.operators[start:], start):
            tensors = [graph.tensors[name] for name in (*operator.inputs, *operator.outputs) if name]
            kind = operator.kind, operator.options, *((t.dtype, len(t.shape), t.data is None) for t in tensors)
            if kind not in answers_by_kind:
                file.write(f"{number} ?\n")  # what stands there if it ends the process
                file.flush()
                answers_by_kind[kind] = _refusal(operator, graph)
                file.write(f"{number} {answers_by_kind[kind]}\n")
                file.flush()
            elif answers_by_kind[kind]:
                file.write(f"{number} {answers_by_kind[kind]}\n")
    return len(answers_by_kind)


def _refusal(operator: Operator, graph: Graph) -> str:
    """Returns what TFLite-Micro says against an operator, or nothing."""
    from tflite_micro import runtime

    from anynpu.runtime.tflm import _printed

    fed = tuple(dict.fromkeys(name for name in operator.inputs if name and graph.constant(name) is None))
    if not fed:
        return ""
    single = to_bytes(pruned([operator], graph.tensors, fed, operator.outputs))
    failure: list[str] = []

    def attempt() -> None:
        try:
            interpreter = runtime.Interpreter.from_bytes(single, arena_size=ARENA + 8 * len(single))
            for place, name in enumerate(fed):
                # What any operator takes: of reals the smallest above zero, of numbers of places the first
                tensor = graph.tensors[name]
                form = tensor.quantization
                value: int = 0 if form is None else form.zero_point[0]
                steps: Mapping[str, int] = {"int8": 127, "int16": 32767}
                code = min(value + 1, steps.get(tensor.dtype, value)) if form is not None else 0
                interpreter.set_input(np.full(tensor.shape, code, np.dtype(tensor.dtype)), place)
            interpreter.invoke()
        except TFLITE_MICRO as error:
            failure.append(str(error))

    printed = _printed(attempt)
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    if not failure or "arena" in printed.lower():
        return ""
    return (lines[0] if lines else failure[0]).replace("\n", " ")

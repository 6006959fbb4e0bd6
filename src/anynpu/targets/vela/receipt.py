"""What Vela put where: read from what it printed and from the file it wrote, which must agree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

from anynpu.artifact import OperatorPlacement, Placement
from anynpu.errors import Finding, ToolFailed, Unsupported
from anynpu.targets.flatbuffer import TfliteOperator

CPU_COUNT = re.compile(r"^CPU operators = (\d+)", re.MULTILINE)
WARNING = re.compile(r"^Warning \(supported operators\) operator: (\w+), ofm: '(.*)'$")
NPU_OPERATOR = "ethos-u"
FUSED = "_act"
"""Vela splits a fused activation off and gives the operator before it this suffix."""


@dataclass(frozen=True)
class Refusal:
    """An operator that Vela leaves to the CPU, with its words."""

    kind: str
    name: str
    words: list[str]

    @property
    def reason(self) -> str:
        return "; ".join(self.words)


def refusals(output: str) -> tuple[Refusal, ...]:
    """Returns every `Warning (supported operators)` of Vela's output with its reason in one line."""
    refused: list[Refusal] = []
    words: list[str] | None = None
    for line in output.splitlines():
        if match := WARNING.match(line):
            words = []
            refused.append(Refusal(match[1], match[2], words))
        elif not line.strip() or line.startswith("Warning"):
            words = None
        elif words is not None:
            words.append(line.strip().removeprefix("Reason: "))
    return tuple(refused)


def cpu_count(output: str) -> int:
    """Returns the number of operators that Vela says it leaves to the CPU."""
    if not (match := CPU_COUNT.search(output)):
        raise ToolFailed("Vela did not say how many operators run on the CPU", last_lines=output.splitlines()[-20:])
    return int(match[1])


def placement(
    npu: str,
    model: Sequence[TfliteOperator],
    compiled: Sequence[TfliteOperator],
    output: str,
    ignored: Container[str] = (),
) -> Placement:
    """Returns the receipt of every operator of `model`; the user wants the kinds in `ignored` on the CPU."""
    ordinary = [op for op in compiled if op.custom_code != NPU_OPERATOR]
    if (count := cpu_count(output)) != len(ordinary):
        raise ToolFailed(f"Vela says {count} operators run on the CPU, but its file holds {len(ordinary)}")
    refused = refusals(output)
    on_cpu = _left_over(model, ordinary)
    cpu_names = {op.name for op in model if op.index in on_cpu}
    for refusal in refused:
        if refusal.name.removesuffix(FUSED) not in cpu_names and refusal.name not in cpu_names:
            raise ToolFailed(f"Vela refuses {refusal.kind} {refusal.name}, but its file runs it on the NPU")
    placed = []
    for op in model:
        if op.index not in on_cpu:
            placed.append(OperatorPlacement(op.name, op.kind, "npu", macs=op.macs))
            continue
        reason = "left to the CPU as ignore_ops says"
        if op.kind not in ignored:
            mine = [r for r in refused if r.name in (op.name, op.name + FUSED)]
            reasons = [r.reason for r in mine if r.kind == op.kind] or [r.reason for r in mine]
            reason = reasons[0] if reasons else "Vela gives no reason"
        placed.append(OperatorPlacement(op.name, op.kind, "cpu", reason, op.macs))
    return Placement(npu, tuple(placed))


def _left_over(model: Sequence[TfliteOperator], ordinary: Sequence[TfliteOperator]) -> set[int]:
    """Returns the indices of the model's operators that the compiled file still holds as they were."""
    exact = Counter((op.kind, op.name) for op in ordinary)
    on_cpu: set[int] = set()
    for op in model:
        if exact[op.kind, op.name] > 0:
            exact[op.kind, op.name] -= 1
            on_cpu.add(op.index)
    # An activation that was fused comes back as an operator of its own with the name of the whole.
    rest = Counter({name: n for (_, name), n in exact.items() if n > 0})
    for op in model:
        if rest[op.name] > 0 and op.index not in on_cpu:
            rest[op.name] -= 1
            on_cpu.add(op.index)
    for stranger in [op for op in ordinary if rest[op.name] > 0]:
        rest[stranger.name] -= 1
        # Of what a GATHER or SCATTER reads and gives Vela makes tensors of its own on the U85, with names of its own.
        alike = (op for op in model if op.index not in on_cpu and _form(op) == _form(stranger))
        if (mine := next(alike, None)) is None:
            message = f"Vela's file runs {stranger.name} on the CPU, an operator that the model does not have"
            raise ToolFailed(message)
        on_cpu.add(mine.index)
    return on_cpu


def _form(op: TfliteOperator) -> tuple[object, ...]:
    """Returns what an operator is where its results have other names."""
    return (op.kind, [(each.dtype, each.shape) for each in op.outputs if each])


def require_npu(receipt: Placement, model: Sequence[TfliteOperator]) -> None:
    """Raises Unsupported, with a finding per operator kind, when nothing of the model runs on the NPU."""
    if receipt.on_npu:
        return
    kinds = Counter(op.kind for op in receipt.operators)
    reasons = {op.kind: op.reason for op in reversed(receipt.operators)}
    findings = [Finding("npu", reasons[kind], f"{kind} ({n} times)") for kind, n in kinds.items()]
    message = f"none of this model would run on the {receipt.npu}"
    if model and all(op.outputs and op.outputs[0].dtype == "float32" for op in model):
        hint = "Ethos-U computes in integers only; this model is float32: quantise it"
        raise Unsupported(f"{message}: Ethos-U computes in integers only; this model is float32", findings, hint)
    raise Unsupported(message, findings)

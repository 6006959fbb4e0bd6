"""What runs on the Neutron: read from the compiled file; where the converter printed something else, a note says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anynpu.artifact import OperatorPlacement, Placement
from anynpu.errors import Finding, Unsupported
from anynpu.targets.flatbuffer import TfliteOperator
from anynpu.targets.neutron.log import Statistics

NPU_OPERATOR = "NeutronGraph"
LEFT = "neutron-converter leaves it to the CPU and gives no reason"
NOT_INT8 = "holds {}, and Neutron computes in 8-bit integers only"
ADDED = "neutron-converter has put it in; the model has no such operator"


def on_npu(compiled: Sequence[TfliteOperator]) -> list[TfliteOperator]:
    """Returns the operators that are work for the NPU."""
    return [op for op in compiled if op.custom_code == NPU_OPERATOR]


def placement(npu: str, model: Sequence[TfliteOperator], compiled: Sequence[TfliteOperator]) -> Placement:
    """Returns where every operator of `model` runs, and those that the converter added."""
    rest = [op for op in compiled if op.custom_code != NPU_OPERATOR]
    on_cpu, added = left_over(model, rest)
    operators = [
        OperatorPlacement(op.name, op.kind, "cpu", reason(op), op.macs)
        if op.index in on_cpu
        else OperatorPlacement(op.name, op.kind, "npu", macs=op.macs)
        for op in model
    ]
    operators += [OperatorPlacement(op.name, op.custom_code or op.kind, "cpu", ADDED, op.macs) for op in added]
    return Placement(npu, tuple(operators), "read from the compiled file")


def left_over(model: Sequence[TfliteOperator], rest: Sequence[TfliteOperator]) -> tuple[set[int], list[TfliteOperator]]:
    """Returns the indices of the model's operators that the file still holds, and the file's that the model lacks.

    By kind and name first. The converter may rename tensors: what is left is the same where kind, shapes and types are.
    """
    keys: tuple[Callable[[TfliteOperator], object], ...] = (
        lambda op: (op.kind, op.custom_code, op.name),
        lambda op: (op.kind, op.custom_code, [(t.dtype, t.shape) for t in op.outputs]),
    )
    matched: set[int] = set()
    for key in keys:
        unmatched = []
        for op in rest:
            twin = next((m.index for m in model if m.index not in matched and key(m) == key(op)), None)
            if twin is None:
                unmatched.append(op)
            else:
                matched.add(twin)
        rest = unmatched
    return matched, list(rest)


def reason(op: TfliteOperator) -> str:
    """Returns why an operator is not on the NPU, as far as its tensors tell."""
    return NOT_INT8.format(strange) if (strange := not_int8(op)) else LEFT


def not_int8(op: TfliteOperator) -> str:
    """Returns the type of an activation that is not of 8 bits, or an empty string; indices and shapes are constant."""
    types = [t.dtype for t in op.tensors if not t.constant]
    return next((dtype for dtype in types if dtype not in ("int8", "uint8", "bool")), "")


def disagreements(statistics: Statistics, compiled: Sequence[TfliteOperator]) -> tuple[str, ...]:
    """Returns where the converter's own words and its file differ; the file is right."""
    graphs = len(on_npu(compiled))
    notes = []
    for what, stated, held in (
        ("Neutron graphs", statistics.graphs, graphs),
        ("operators left to the CPU", statistics.left, len(compiled) - graphs),
    ):
        if stated is None:
            notes.append(f"neutron-converter did not say how many {what} there are; its file holds {held}")
        elif stated != held:
            notes.append(f"neutron-converter says {stated} {what}, its file holds {held}: the receipt follows the file")
    return tuple(notes)


def require_npu(npu: str, model: Sequence[TfliteOperator], compiled: Sequence[TfliteOperator]) -> None:
    """Raises Unsupported, with a finding per operator kind, when the file holds no work for the NPU."""
    if on_npu(compiled):
        return
    reasons = {op.kind: reason(op) for op in model}
    findings = [Finding("npu", words, kind) for kind, words in reasons.items()]
    floats = bool(model) and all(not_int8(op).startswith("float") for op in model)
    hint = "quantise it to int8, which -O activations=int8 does" if floats else ""
    raise Unsupported(f"none of this model would run on the {npu}: the file has no {NPU_OPERATOR}", findings, hint)

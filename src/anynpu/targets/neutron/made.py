"""What neutron-converter wrote: is it a whole model, of the same tensors, with a program for the NPU?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anynpu.artifact import Manifest
from anynpu.errors import IntegrityError
from anynpu.targets.flatbuffer import TfliteOperator, operators
from anynpu.targets.neutron.receipt import on_npu
from anynpu.tensors import TensorSpec

PROGRAM = 3
"""How many of the last inputs of a NeutronGraph are its program; one of them may be empty."""


def read_made(path: Path, promised: Manifest) -> tuple[TfliteOperator, ...]:
    """Returns the operators of the converted file; one that is damaged or of another network raises IntegrityError."""
    from anynpu.runtime.tflite_file import read_specs

    compiled = operators(path)
    inputs, outputs = read_specs(path)
    check_border("inputs", inputs, promised.inputs)
    check_border("outputs", outputs, promised.outputs)
    check_wiring(compiled, inputs, outputs)
    for op in on_npu(compiled):
        check_program(op)
    return compiled


def check_program(op: TfliteOperator) -> None:
    """Raises unless an operator for the NPU has microcode: its last inputs are microcode, weights and kernels."""
    microcode = op.inputs[-PROGRAM] if len(op.inputs) >= PROGRAM else None
    if microcode is None or not microcode.constant:
        raise IntegrityError(f"operator {op.index} for the NPU, {op.name}, has no microcode in it")


def check_border(what: str, specs: Sequence[TensorSpec], promised: Sequence[TensorSpec]) -> None:
    """Raises unless the tensors are those of the model; the converter may change their order."""
    wanted = {spec.name: spec for spec in promised}
    if sorted(spec.name for spec in specs) != sorted(wanted):
        names = ", ".join(spec.name for spec in specs) or "none"
        raise IntegrityError(f"its {what} are {names}, the model's are {', '.join(wanted)}")
    for spec in specs:
        for field in ("shape", "dtype", "quantization"):
            got, asked = getattr(spec, field), getattr(wanted[spec.name], field)
            if got != asked:
                raise IntegrityError(f"tensor {spec.name} has {field} {_shown(got)}, the model's has {_shown(asked)}")


def _shown(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def check_wiring(
    compiled: Sequence[TfliteOperator], inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
) -> None:
    """Raises unless every tensor is there before it is read and something makes every output."""
    there = {spec.name for spec in inputs}
    programs = on_npu(compiled)
    for op in compiled:
        for tensor in op.inputs[:-PROGRAM] if op in programs else op.inputs:
            if tensor is not None and not tensor.constant and tensor.name not in there:
                raise IntegrityError(f"operator {op.index}, {op.name}, reads {tensor.name}, which nothing makes")
        there |= {tensor.name for tensor in op.outputs}
    for spec in outputs:
        if spec.name not in there:
            raise IntegrityError(f"nothing makes output {spec.name}")

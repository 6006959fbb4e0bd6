"""What the compiler made: its tensors under the float model's names, its receipt, and what it estimates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anynpu.artifact import Estimates, OperatorPlacement, Placement
from anynpu.errors import IntegrityError
from anynpu.targets.cvi.mlir import Operation
from anynpu.tensors import Quantization, StoredTensor, TensorSpec

DTYPES = {
    "f32": "float32",
    "f16": "float16",
    "i8": "int8",
    "si8": "int8",
    "u8": "uint8",
    "ui8": "uint8",
    "i16": "int16",
    "si16": "int16",
    "u16": "uint16",
    "ui16": "uint16",
    "i32": "int32",
    "si32": "int32",
    "u32": "uint32",
    "ui32": "uint32",
}
_RUNTIME = re.compile(r"runtime: ([\d.eE+-]+)ms")
_CYCLES = re.compile(r"^TCYC : (\d+)", re.MULTILINE)
_CONVERSIONS = {"quant": "the input is converted to integers on the CPU: -O quant_input=integer takes that out"}


def pair(compiled: Sequence[StoredTensor], asked: Sequence[TensorSpec]) -> dict[str, StoredTensor]:
    """Returns the compiled tensor of each tensor of the float model: NAME, NAME_Operator or NAME_Operator_f32."""
    if len(compiled) != len(asked):
        raise IntegrityError(f"the compiled model has {len(compiled)} tensors where the float model has {len(asked)}")
    pairs: dict[str, StoredTensor] = {}
    unpaired = list(compiled)
    # The longest names first: `y_1_Add` is not the `y` of another output.
    for spec in sorted(asked, key=lambda s: -len(s.name)):
        near = [t for t in unpaired if t.name == spec.name or t.name.startswith(spec.name + "_")]
        if len(near) == 1:
            pairs[spec.name] = near[0]
            unpaired.remove(near[0])
    rest = [spec for spec in asked if spec.name not in pairs]
    pairs |= {spec.name: tensor for spec, tensor in zip(rest, unpaired, strict=True)}
    for spec in asked:
        tensor = pairs[spec.name]
        if math.prod(tensor.shape) != spec.size:
            raise IntegrityError(
                f"tensor {spec.name} has shape {list(tensor.shape)}, the float model's {list(spec.shape)}"
            )
    return pairs


def input_spec(spec: TensorSpec, tensor: StoredTensor) -> TensorSpec:
    """Returns an input as it is stored; the runtime's scale multiplies real numbers there."""
    return _spec(spec, tensor, 1 / tensor.scale if tensor.scale else 0.0)


def output_spec(spec: TensorSpec, tensor: StoredTensor) -> TensorSpec:
    """Returns an output as it is stored."""
    return _spec(spec, tensor, tensor.scale)


def _spec(spec: TensorSpec, tensor: StoredTensor, scale: float) -> TensorSpec:
    dtype = DTYPES.get(tensor.dtype, "")
    if not dtype:
        raise IntegrityError(f"tensor {spec.name} of the compiled model holds {tensor.dtype}")
    real = spec.dtype.startswith("float")
    if real and not dtype.startswith("float"):
        if scale <= 0:
            raise IntegrityError(f"tensor {spec.name} of the compiled model holds {dtype} without a scale")
        return replace(spec, dtype=dtype, quantization=Quantization((scale,), (tensor.zero_point,)))
    return replace(spec, dtype=dtype, quantization=None)


def placement(graph: Any, operations: Iterable[Operation], npu: str) -> Placement:
    """Returns the receipt: the model's operators, and those that the compiler put on the CPU by itself.

    A tensor's name with the kind of operator behind it is what the compiler calls an operator; one that it has fused
    into the next has no name of its own and runs where that one runs.
    """
    from anynpu.graph.cost import cost

    away = {name: op.kind for op in operations if not op.on_tpu for name in op.names}
    outputs = {node.name: [f"{o}_{node.op_type}" for o in node.output] for node in graph.graph.node}
    listed, seen = [], set()
    for node in cost(graph).nodes:
        own = outputs.get(node.name, [])
        names = [name for name in away if any(name == o or name.startswith(o + "_") for o in own)]
        seen.update(names)
        reason = f"the chip's TPU has no {away[names[0]]}" if names else ""
        listed.append(OperatorPlacement(node.name, node.op_type, "cpu" if names else "npu", reason, node.macs))
    for name, kind in away.items():
        if name not in seen:
            reason = _CONVERSIONS.get(kind, f"the compiler put in {kind}, which its runtime computes on the CPU")
            listed.append(OperatorPlacement(name, kind, "cpu", reason, 0))
    return Placement(npu, tuple(listed))


def estimates(counted: Estimates | None, result: Path, profiles: Sequence[Path]) -> Estimates:
    """Returns what is counted, and the cycles that the compiler expects where it says so (BM chips)."""
    text = "\n".join(path.read_text("utf-8", "replace") for path in profiles)
    cycles = [int(number) for number in _CYCLES.findall(text)]
    times = [float(number) for number in _RUNTIME.findall(text)]
    source = "MACs and parameters counted from the graph; flash is the file's size"
    source += "; cycles and latency are TPU-MLIR's own estimate" if times else ""
    return replace(
        counted or Estimates(""),
        source=source,
        flash_bytes=result.stat().st_size,
        sram_bytes=None,
        cycles=sum(cycles) if cycles else None,
        latency_ms=sum(times) if times else None,
    )

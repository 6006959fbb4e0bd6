"""The arena of a compiled TFLite model, measured: TFLite-Micro on this host plans and allocates it."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from anynpu import tool
from anynpu.errors import AnyNpuError, ToolMissing, Unsupported
from anynpu.targets.flatbuffer import operators

ALIGNMENT = 16
STEP = 1024
FIGURE = re.compile(r"Arena allocation (total|head|tail) (\d+) bytes")


def measure(model: Path, npu_operator: str, planned_bytes: int) -> int:
    """Returns the arena that the compiled model needs on a 32-bit chip.

    The host's TFLite-Micro has no NPU. It gets a copy in which a plain operator with the same tensors stands in for
    each NPU operator: memory plan, tensors and bookkeeping are the real ones. The host's pointers are twice as long as
    the chip's, so its bookkeeping bounds the chip's from above. Base addresses of the NPU's tensors come on top.
    """
    if importlib.util.find_spec("tflite_micro") is None:
        raise ToolMissing("the arena cannot be measured: tflite-micro is not installed", "pip install 'anynpu[build]'")
    with tempfile.TemporaryDirectory(prefix="anynpu-") as folder:
        scratch = Path(folder)
        arguments = {"model": str(model), "npu_operator": npu_operator}
        try:
            total, head = tool.call(
                "anynpu.firmware.project.arena:record", arguments, scratch=scratch, log=scratch / "log", timeout_s=120
            )
        except AnyNpuError as error:
            hint = "an operator that it does not know is left to the CPU"
            raise Unsupported(f"the arena cannot be measured: {error.message}", hint=hint) from error
    tail = total - head
    addresses = sum(
        2 * _aligned(8 * len(op.tensors)) for op in operators(model) if op.custom_code == npu_operator
    )
    return _aligned(max(head, planned_bytes)) + _aligned(tail) + addresses


def record(model: str, npu_operator: str) -> tuple[int, int]:
    """Returns the bytes in total and those of the memory plan, as TFLite-Micro recorded them (runs in a child)."""
    from anynpu.runtime.tflm import _interpreter, _printed

    raw = stand_in(Path(model), npu_operator)
    figures = dict(FIGURE.findall(_printed(_interpreter(raw).print_allocations)))
    total, head = int(figures["total"]), int(figures["head"])
    return _smallest(raw, total), head


def _smallest(raw: bytes, arena: int) -> int:
    """Returns an arena that is proven to be enough: planning needs memory of its own before the plan is in place."""
    from tflite_micro import runtime

    while True:
        with contextlib.suppress(RuntimeError):
            runtime.Interpreter.from_bytes(raw, arena_size=arena)
            return arena
        arena += STEP


def stand_in(path: Path, npu_operator: str) -> bytes:
    """Returns the model with a concatenation of the same tensors in place of each NPU operator."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CONCATENATION
    code.version = 1
    model.operatorCodes.append(code)
    graph = model.subgraphs[0]
    for operator in graph.operators:
        if model.operatorCodes[operator.opcodeIndex].customCode == npu_operator.encode():
            operator.opcodeIndex = len(model.operatorCodes) - 1
            operator.builtinOptionsType = schema.BuiltinOptions.ConcatenationOptions
            operator.builtinOptions = schema.ConcatenationOptionsT()
            operator.customOptions = None
            for index in (*operator.inputs, *operator.outputs):
                _as_bytes(graph.tensors[index], schema)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _as_bytes(tensor: Any, schema: Any) -> None:
    """Makes the tensor one that a concatenation takes: int8 of the same size, quantised as all the others."""
    types = schema.TensorType
    width = {types.INT16: 2, types.INT32: 4, types.FLOAT32: 4, types.INT64: 8}.get(tensor.type, 1)
    if width > 1:
        tensor.shape = np.array([math.prod(tensor.shape) * width], np.int32)
    tensor.type = types.INT8
    # The values that SOFTMAX and LOGISTIC, which may be left to the CPU, ask of their outputs.
    tensor.quantization = schema.QuantizationParametersT()
    tensor.quantization.scale = [1 / 256]
    tensor.quantization.zeroPoint = [-128]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

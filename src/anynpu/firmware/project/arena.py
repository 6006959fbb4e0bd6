"""The arena of a compiled TFLite model, measured: TFLite-Micro on this host plans and allocates it."""

from __future__ import annotations

import importlib.util
import math
import tempfile
from pathlib import Path

import numpy as np

from anynpu import tool
from anynpu.errors import AnyNpuError, ToolMissing, Unsupported
from anynpu.foreign import TFLITE_MICRO
from anynpu.runtime.tflite_file import pack_model, read_model
from anynpu.targets.flatbuffer import operators

ALIGNMENT = 16
LIMIT = 1 << 28
MOST_INPUTS = 10
"""TFLite-Micro's CONCATENATION takes no more."""


def measure(model: Path, npu_operator: str) -> int:
    """Returns the arena that the compiled model needs on a 32-bit chip.

    The host's TFLite-Micro has no NPU. It gets a copy in which a plain operator with the same tensors stands in for
    each NPU operator: memory plan, tensors and bookkeeping are the real ones. The host's pointers are twice as long as
    the chip's, so its bookkeeping bounds the chip's from above. Base addresses of the NPU's tensors come on top.
    """
    if importlib.util.find_spec("tflite_micro") is None:
        raise ToolMissing("the arena cannot be measured: tflite-micro is not installed", "pip install 'anynpu[build]'")
    with tempfile.TemporaryDirectory(prefix="anynpu-") as folder:
        scratch = Path(folder)
        arguments = {"model": str(model.absolute()), "npu_operator": npu_operator}
        try:
            smallest: int = tool.call(
                "anynpu.firmware.project.arena:smallest", arguments, scratch=scratch, log=scratch / "log", timeout_s=120
            )
        except AnyNpuError as error:
            raise Unsupported(f"{model}: the arena cannot be measured: {error.message}", hint=error.hint) from None
    calls = [op for op in operators(model) if op.custom_code == npu_operator]
    return smallest + sum(2 * aligned(8 * len(op.tensors)) for op in calls)


def smallest(model: str, npu_operator: str) -> int:
    """Returns the smallest arena in which TFLite-Micro starts the model (runs in a child process)."""
    raw = stand_in(Path(model), npu_operator)
    low, high = 0, LIMIT
    if not _starts(raw, high):
        raise Unsupported(
            "TFLite-Micro does not start the model", hint="an operator it does not know is left to the CPU"
        )
    while high - low > ALIGNMENT:
        middle = aligned((low + high) // 2)
        low, high = (low, middle) if _starts(raw, middle) else (middle, high)
    return high


def _starts(raw: bytes, arena: int) -> bool:
    from tflite_micro import runtime

    try:
        runtime.Interpreter.from_bytes(raw, arena_size=arena)
    except TFLITE_MICRO:
        return False
    return True


def aligned(size: int) -> int:
    """Returns the size rounded up to what TFLite-Micro aligns buffers to."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def stand_in(path: Path, npu_operator: str) -> bytes:
    """Returns the model with a concatenation of the same tensors in place of each NPU operator."""
    from ai_edge_litert import schema_py_generated as schema

    model = read_model(path.read_bytes(), str(path))
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
            operator.inputs = operator.inputs[:MOST_INPUTS]
            for index in (*operator.inputs, *operator.outputs):
                tensor = graph.tensors[index]
                types = schema.TensorType
                width = {types.INT16: 2, types.INT32: 4, types.FLOAT32: 4, types.INT64: 8}.get(tensor.type, 1)
                if width > 1:
                    tensor.shape = np.array([math.prod(tensor.shape) * width], np.int32)
                tensor.type = types.INT8
                # The values that SOFTMAX and LOGISTIC, which may be left to the CPU, ask of their outputs.
                tensor.quantization = schema.QuantizationParametersT()
                tensor.quantization.scale = [1 / 256]
                tensor.quantization.zeroPoint = [-128]
    return pack_model(model)

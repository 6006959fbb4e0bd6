"""The operators of a .tflite file, read with the schema that LiteRT ships."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.errors import ConfigError
from anynpu.runtime.tflite_file import damage_reported, shared_model, text
from anynpu.tensors import Array


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor of the file; `data` is there when it is a constant, `signature` has -1 for a dynamic dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    signature: tuple[int, ...] = ()
    data: Array | None = field(default=None, repr=False, compare=False)

    @property
    def constant(self) -> bool:
        return self.data is not None

    @property
    def bytes(self) -> int:
        """How much memory the tensor takes."""
        # Types that numpy does not know are handles or take a byte at most.
        width = np.dtype(self.dtype).itemsize if _is_plain(self.dtype) else 1
        return math.prod(self.shape) * width


@dataclass(frozen=True)
class TfliteOperator:
    """One operator of the main graph; an optional input that is left out is None."""

    index: int
    kind: str
    name: str
    inputs: tuple[TfliteTensor | None, ...]
    outputs: tuple[TfliteTensor, ...]
    macs: int = 0
    custom_code: str = ""
    options: Any = field(default=None, repr=False, compare=False)

    @property
    def tensors(self) -> tuple[TfliteTensor, ...]:
        """All inputs that are there and all outputs."""
        return (*(t for t in self.inputs if t is not None), *self.outputs)


def stored_form(model: Any, number: int) -> TfliteTensor:
    """Returns a tensor of the main graph by its number."""
    tensor = model.subgraphs[0].tensors[number]
    return _tensor(tensor, model.buffers[tensor.buffer].data)


def operators(path: Path) -> tuple[TfliteOperator, ...]:
    """Returns the operators of the main graph of a .tflite file in their order; a damaged file raises."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    model = shared_model(content, str(path))
    with damage_reported(str(path)):
        graph, kinds = model.subgraphs[0], _names("BuiltinOperator")
        tensors = [_tensor(tensor, model.buffers[tensor.buffer].data) for tensor in graph.tensors]
        listed = []
        for index, op in enumerate(graph.operators):
            code = model.operatorCodes[op.opcodeIndex]
            # Files before schema 3a keep the code in the old 8-bit field.
            kind = kinds[max(code.builtinCode, code.deprecatedBuiltinCode)]
            inputs = tuple(tensors[i] if i >= 0 else None for i in _tuple(op.inputs))
            outputs = tuple(tensors[i] for i in _tuple(op.outputs))
            name = outputs[0].name if outputs else f"operator {index}"
            custom = text(code.customCode) if kind == "CUSTOM" else ""
            macs = _macs(kind, inputs, outputs, op.builtinOptions)
            listed.append(TfliteOperator(index, kind, name, inputs, outputs, macs, custom, op.builtinOptions))
        return tuple(listed)


@functools.cache
def _names(enum: str) -> dict[int, str]:
    from ai_edge_litert import schema_py_generated as schema

    return {v: k for k, v in vars(getattr(schema, enum)).items() if isinstance(v, int)}


def _tuple(values: Any) -> tuple[Any, ...]:
    return () if values is None else tuple(np.asarray(values).tolist())


def _tensor(tensor: Any, content: Any) -> TfliteTensor:
    dtype, form = _names("TensorType")[tensor.type].lower(), tensor.quantization
    data = None if content is None or len(content) == 0 else np.asarray(content, np.uint8)
    return TfliteTensor(
        name=text(tensor.name),
        dtype=dtype,
        shape=_tuple(tensor.shape),
        scale=_tuple(form.scale) if form else (),
        zero_point=_tuple(form.zeroPoint) if form else (),
        signature=_tuple(tensor.shapeSignature),
        data=data.view(dtype) if data is not None and _is_plain(dtype) else data,
    )


def _is_plain(dtype: str) -> bool:
    return dtype in np.sctypeDict and dtype != "string"


def _macs(kind: str, inputs: Sequence[TfliteTensor | None], outputs: Sequence[TfliteTensor], options: Any) -> int:
    """Returns the multiply-accumulates of one operator; 0 for an operator without any."""
    shapes = [t.shape if t else () for t in inputs]
    match kind:
        case "CONV_2D":
            return math.prod(outputs[0].shape) * math.prod(shapes[1][1:])
        case "DEPTHWISE_CONV_2D":
            return math.prod(outputs[0].shape) * math.prod(shapes[1][1:3])
        case "FULLY_CONNECTED":
            return math.prod(outputs[0].shape) * shapes[1][-1]
        case "BATCH_MATMUL":
            return math.prod(outputs[0].shape) * shapes[0][-2 if options and options.adjX else -1]
        case "TRANSPOSE_CONV":
            return math.prod(shapes[2]) * math.prod(shapes[1][:3])
    return 0

"""TFLite files as data: buffers inside, aligned, borders named as the model names them. No interpreter is needed."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anynpu.errors import AnyNpuError, IntegrityError, ToolMissing, Unsupported
from anynpu.runtime.tflite_form import IDENTIFIER
from anynpu.tensors import Quantization, TensorSpec

# The schema forces this on buffer data; C++ writers obey, the Python object interface does not.
_ALIGNMENT = 16
_MOST_BYTES = 2**31
_BORDER_OPERATORS = ("QUANTIZE", "DEQUANTIZE")


def read_model(data: bytes, name: str = "model") -> Any:
    """Returns the model as a mutable object with every buffer inside it."""
    return _checked(data, name, lambda: _parsed(bytearray(data)))


def shared_model(data: bytes, name: str = "model") -> Any:
    """Returns what `read_model` does, one object for all who read the same bytes: nobody may change it."""
    return _checked(data, name, lambda: _kept(data))


def with_own_buffers(model: Any) -> Any:
    """Returns a model whose buffers and borders may be set anew; its tensors and operators are those of the first."""
    own = copy.copy(model)
    own.subgraphs = [copy.copy(graph) for graph in model.subgraphs]
    own.buffers = [copy.copy(buffer) for buffer in model.buffers]
    return own


def _checked(data: bytes, name: str, parse: Callable[[], Any]) -> Any:
    if data[4:8] != IDENTIFIER:
        raise IntegrityError(f"{name}: is not a TFLite file", "its bytes 4 to 7 should read TFL3")
    with damage_reported(name):
        model = parse()
    if not model.subgraphs or not model.subgraphs[0].tensors:
        raise IntegrityError(f"{name}: is a TFLite file without a graph")
    return model


def _parsed(data: bytes | bytearray) -> Any:
    try:
        from ai_edge_litert.tools import flatbuffer_utils
    except ImportError as error:
        raise ToolMissing("ai-edge-litert is not installed", "pip install anynpu[build]") from error
    return flatbuffer_utils.read_model_from_bytearray(data)


# The files before and after a pass are read in turn; more than those would only take memory.
_kept = functools.lru_cache(maxsize=2)(_parsed)


@contextmanager
def damage_reported(name: str) -> Iterator[None]:
    """Raises IntegrityError for whatever the offsets and indices of a damaged file lead its reader to raise."""
    try:
        yield
    except AnyNpuError:
        raise
    except Exception as error:  # the generated reader and struct, numpy and Python's lists have no class in common
        raise IntegrityError(f"{name}: is a damaged TFLite file ({type(error).__name__}: {error})") from error


def pack_model(model: Any) -> bytes:
    """Returns the bytes of the model: buffers inside the flatbuffer and aligned as the schema demands."""
    import flatbuffers

    class Builder(flatbuffers.Builder):  # type: ignore[misc, name-defined, unused-ignore]
        def StartVector(self, elemSize: int, numElems: int, alignment: int) -> int:
            wanted = _ALIGNMENT if elemSize == 1 else alignment
            return int(super().StartVector(elemSize, numElems, max(alignment, wanted)))

    size = 65536 + sum(len(buffer.data) for buffer in model.buffers if buffer.data is not None)
    if size >= _MOST_BYTES:
        raise Unsupported(f"the model holds {size / 2**30:.1f} GiB in constants, a TFLite file less than 2")
    builder = Builder(size)
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def external_buffers(data: bytes) -> int:
    """Returns how many buffers lie behind the flatbuffer: TFLite-Micro misreads them without an error."""
    from ai_edge_litert import schema_py_generated as schema

    model = schema.Model.GetRootAs(data, 0)
    return sum(model.Buffers(index).Offset() > 1 for index in range(model.BuffersLength()))


def operator_names(model: Any) -> list[str]:
    """Returns the name of every operator of the main graph, in order."""
    from ai_edge_litert.tools import flatbuffer_utils

    return [str(flatbuffer_utils.opcode_to_name(model, op.opcodeIndex)) for op in model.subgraphs[0].operators]


def is_stateless(model: Any) -> bool:
    """Tells whether a model is one graph that keeps nothing from run to run."""
    return len(model.subgraphs) == 1 and not any(tensor.isVariable for tensor in model.subgraphs[0].tensors)


def free_name(stem: str, taken: set[str]) -> str:
    """Returns a name that is not taken yet, and takes it."""
    number = 0
    while f"{stem}_{number}" in taken:
        number += 1
    taken.add(f"{stem}_{number}")
    return f"{stem}_{number}"


def border_names(model: Any) -> tuple[list[str], list[str]]:
    """Returns the names of inputs and outputs, in order."""
    graph = model.subgraphs[0]
    inputs, outputs = ([text(graph.tensors[i].name) for i in part] for part in (graph.inputs, graph.outputs))
    return inputs, outputs


def text(name: bytes | str | None) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name or ""


def float_operators(model: Any) -> list[dict[str, str]]:
    """Returns every operator that computes in floating point, with the first tensor it makes."""
    from ai_edge_litert.schema_py_generated import TensorType

    graph = model.subgraphs[0]
    floats = {i for i, t in enumerate(graph.tensors) if t.type in (TensorType.FLOAT32, TensorType.FLOAT16)}
    operators = []
    for name, op in zip(operator_names(model), graph.operators, strict=True):
        if name not in _BORDER_OPERATORS and floats & {int(i) for i in [*op.inputs, *op.outputs]}:
            operators.append({"operator": name, "tensor": text(graph.tensors[op.outputs[0]].name)})
    return operators


def operator_counts(model: Any) -> dict[str, int]:
    """Returns how often each operator occurs."""
    return dict(sorted(Counter(operator_names(model)).items()))


def activation_indices(model: Any) -> dict[int, str]:
    """Returns index and name of each tensor that is fed or computed, not stored."""
    graph = model.subgraphs[0]
    computed = {int(i) for op in graph.operators for i in op.outputs} | {int(i) for i in graph.inputs}
    return {index: text(graph.tensors[index].name) for index in sorted(computed)}


def read_specs(
    path: Path, layouts: Mapping[str, str] | None = None, channels: Mapping[str, str] | None = None
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Returns inputs and outputs of a TFLite file with their quantisation; layouts and channel orders are stated."""
    return specs_of(shared_model(path.read_bytes(), str(path)), layouts, channels)


def specs_of(
    model: Any, layouts: Mapping[str, str] | None = None, channels: Mapping[str, str] | None = None
) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Returns inputs and outputs of a model with their quantisation."""
    graph = model.subgraphs[0]

    def spec(index: int) -> TensorSpec:
        tensor = graph.tensors[index]
        name = text(tensor.name)
        shape = tuple(int(size) for size in (tensor.shape if tensor.shape is not None else ()))
        kind, quantization = type_name(tensor.type), read_quantization(tensor.quantization)
        return TensorSpec(
            name, shape, kind, (layouts or {}).get(name, ""), (channels or {}).get(name, ""), quantization
        )

    return [spec(index) for index in graph.inputs], [spec(index) for index in graph.outputs]


def type_name(code: int) -> str:
    """Returns the name of a tensor's type, such as int8."""
    from ai_edge_litert.schema_py_generated import TensorType

    names = {value: name.lower() for name, value in vars(TensorType).items() if isinstance(value, int)}
    return str(names.get(code, code))


def read_quantization(parameters: Any) -> Quantization | None:
    """Returns how a tensor of the file is quantised, or None."""
    if parameters is None or parameters.scale is None or not len(parameters.scale):
        return None
    scales = tuple(float(scale) for scale in parameters.scale)
    points = parameters.zeroPoint if parameters.zeroPoint is not None else ()
    zero_points = tuple(int(point) for point in points) or (0,) * len(scales)
    axis = int(parameters.quantizedDimension) if len(scales) > 1 else None
    return Quantization(scales, zero_points, axis)

"""Reads an ONNX file that nobody vouches for: the result is whole, finite and self-contained, or an error says why.

Truncated protobuf often parses, so the graph is checked as well: nodes, producers, and the bytes of every tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from anynpu.errors import AnyNpuError, ConfigError, IntegrityError, first_line
from anynpu.foreign import ONNX
from anynpu.graph.fold import initializer_names, names_read
from anynpu.graph.groups import write_groups
from anynpu.source.kinds import EXPORT_AGAIN, not_onnx, reject_other_kinds

# Protobuf cannot hold or write more in one message.
MAX_BYTES = 2**31 - 1

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
# Values a typed field holds for one element, where it is not one; names follow the wire format of TensorProto.
_WORDS_PER_ELEMENT: dict[int, int] = {TensorProto.COMPLEX64: 2, TensorProto.COMPLEX128: 2}


def read(path: Path) -> ModelProto:
    """Returns the model in `path` with all its weights inside, checked for damage."""
    data = _bytes(path)
    reject_other_kinds(path, data)
    try:
        model = ModelProto()
        model.ParseFromString(data)
        _check_strings(model)
        if not model.graph.node:
            raise not_onnx(path, "the graph has no nodes")
        if not model.graph.output:
            raise not_onnx(path, "the graph has no outputs")
        if not model.opset_import:
            raise not_onnx(path, "no opset is stated")
        newest = onnx.defs.onnx_opset_version()
        for opset in model.opset_import:
            if opset.domain in ("", "ai.onnx") and opset.version > newest:
                raise ConfigError(
                    f"{path}: opset {opset.version} is newer than this onnx {onnx.__version__} knows ({newest})",
                    f"export with opset {newest} or lower, or install a newer onnx",
                )
        if model.ir_version > onnx.IR_VERSION:
            raise ConfigError(
                f"{path}: ONNX IR version {model.ir_version} is newer than this onnx {onnx.__version__} knows"
                f" ({int(onnx.IR_VERSION)})",
                "install a newer onnx, or export with an older one",
            )
        _load_external(path, model, budget=MAX_BYTES - len(data))
        for name, tensor in _tensors(model.graph):
            _check_tensor(f"{path}: tensor '{name}'", tensor)
        for graph in _graphs(model.graph):  # ONNX Runtime takes one without a name, and nodes in any order
            graph.name = graph.name or "graph"
            _sort(graph)
        write_groups(model)
        if any(_is_shapeless(value) for value in model.graph.output):  # ONNX Runtime needs none, the checker does
            model = onnx.shape_inference.infer_shapes(model)
        bare = [value for value in model.graph.output if _is_shapeless(value)]
        for value in bare:
            value.type.tensor_type.shape.SetInParent()  # it takes a result whose shape is left open too
        onnx.checker.check_model(model)
        for value in bare:
            value.type.tensor_type.ClearField("shape")
        names = {name for node in model.graph.node for name in node.output}
        names |= {value.name for value in model.graph.input} | initializer_names(model.graph)
        for output in model.graph.output:
            if output.name not in names:
                raise IntegrityError(f"{path}: output '{output.name}' is produced by no node", EXPORT_AGAIN)
    except AnyNpuError:
        raise
    except ONNX as error:
        raise not_onnx(path, first_line(error)) from error
    return model


def _is_shapeless(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder, not an ONNX file", "name the .onnx file inside it")
        if not path.exists():
            others = sorted(p.name for p in path.parent.glob("*.onnx"))[:5] if path.parent.is_dir() else []
            raise ConfigError(
                f"{path}: no such file",
                f"ONNX files in that folder: {', '.join(others)}." if others else "Check the path.",
            )
        if not path.is_file():
            raise ConfigError(f"{path}: is not a regular file", "copy the model to a file first")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise IntegrityError(
                f"{path}: {size} bytes is more than one ONNX file can hold (2 GiB)",
                "save the weights as external data next to the model",
            )
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", "check its permissions") from error


def _check_strings(model: ModelProto) -> None:
    """Raises ValueError for a string that is not UTF-8, which would fail much later."""
    stack: list[object] = [model]
    while stack:
        message = stack.pop()
        for field, value in message.ListFields():  # type: ignore[attr-defined]
            if field.message_type is not None:
                stack.extend([value] if hasattr(value, "ListFields") else value)
            elif field.type == field.TYPE_STRING:
                # protobuf hands out bytes instead of text when the encoding is broken
                for text in [value] if isinstance(value, str | bytes) else value:
                    if isinstance(text, bytes):
                        raise ValueError(f"{field.name} is not UTF-8 text")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)


def _sort(graph: onnx.GraphProto) -> None:
    """Puts every node behind those whose results it reads; nodes that wait for each other stay where they are."""
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    reads = [{makers[name] for name in names_read(node) if name in makers} for node in graph.node]
    if all(before < place for place, each in enumerate(reads) for before in each):
        return
    order, done, waiting = list[int](), set[int](), list(range(len(graph.node)))
    while ready := [place for place in waiting if reads[place] <= done]:
        order += ready
        done.update(ready)
        waiting = [place for place in waiting if place not in done]
    nodes = [onnx.NodeProto.FromString(graph.node[place].SerializeToString()) for place in (*order, *waiting)]
    del graph.node[:]
    graph.node.extend(nodes)


def _tensors(root: onnx.GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Yields every tensor that holds data, with the name a message should use; subgraphs included."""
    for graph in _graphs(root):
        yield from ((tensor.name, tensor) for tensor in graph.initializer)
        for sparse in graph.sparse_initializer:
            yield sparse.values.name, sparse.values
            yield sparse.values.name, sparse.indices
        for node in graph.node:
            for attribute in node.attribute:
                name = next(iter(node.output), node.name)
                if attribute.HasField("t"):
                    yield attribute.t.name or name, attribute.t
                yield from ((tensor.name or name, tensor) for tensor in attribute.tensors)


def _load_external(path: Path, model: ModelProto, budget: int) -> None:
    """Moves external data into the model, from files inside the model's own folder only."""
    folder = path.parent.resolve()
    for name, tensor in _tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        data = _external_bytes(f"{path}: tensor '{name}'", folder, tensor, budget)
        budget -= len(data)
        tensor.raw_data = data
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT


def _external_bytes(where: str, folder: Path, tensor: TensorProto, budget: int) -> bytes:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if not location:
        raise IntegrityError(f"{where}: external data without a location", EXPORT_AGAIN)
    file = folder / location
    # resolve() follows symbolic links, so one test covers absolute paths, '..' and links.
    if not file.resolve().is_relative_to(folder) or Path(location).is_absolute() or ".." in Path(location).parts:
        raise IntegrityError(
            f"{where}: external data '{location}' lies outside the model's folder",
            "keep the weight files next to the model",
        )
    if not file.is_file():
        raise IntegrityError(
            f"{where}: external data file '{location}' is missing", f"copy {location} next to the model"
        )
    needed = _needed_bytes(where, tensor)
    size = file.stat().st_size
    offset = int(entries.get("offset") or 0)
    length = int(entries.get("length") or needed)
    if offset < 0 or length != needed or offset + length > size:
        raise IntegrityError(
            f"{where}: needs {needed} bytes, its external data gives {length} at {offset} of {size}", EXPORT_AGAIN
        )
    if length > budget:
        raise IntegrityError(f"{where}: with its external data the model exceeds 2 GiB", "use a smaller model")
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            data: bytes = stream.read(length)
        return data
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}", "check its permissions") from error


def _needed_bytes(where: str, tensor: TensorProto) -> int:
    if any(dim < 0 for dim in tensor.dims):
        raise IntegrityError(f"{where}: has a negative dimension {list(tensor.dims)}", EXPORT_AGAIN)
    # integers only: damaged dimensions can be too large for a float
    bits = int(math.prod(tensor.dims)) * _bits(where, tensor)
    return (bits + 7) // 8


def _bits(where: str, tensor: TensorProto) -> int:
    name = TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in TensorProto.DataType.values() else ""
    if name in ("", "UNDEFINED"):
        raise IntegrityError(f"{where}: has no known data type ({tensor.data_type})", EXPORT_AGAIN)
    if name.endswith("INT2"):
        return 2
    if name.endswith("INT4") or name.startswith("FLOAT4"):
        return 4
    if tensor.data_type == TensorProto.STRING:
        return 0
    return int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize) * 8


def _check_tensor(where: str, tensor: TensorProto) -> None:
    needed = _needed_bytes(where, tensor)
    if tensor.HasField("raw_data"):
        got, unit = len(tensor.raw_data), "bytes"
    else:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        count = math.prod(tensor.dims) * _WORDS_PER_ELEMENT.get(tensor.data_type, 1)
        bits = _bits("", tensor)
        if 0 < bits < 8:
            count = (count * bits + 7) // 8
        got, needed, unit = len(getattr(tensor, field)), count, "values"
    if got != needed:
        raise IntegrityError(f"{where}: needs {needed} {unit} for {list(tensor.dims)}, has {got}", EXPORT_AGAIN)
    if tensor.data_type not in _FLOATS:
        return
    values = numpy_helper.to_array(tensor)
    if np.isfinite(values).all():
        return
    nan = bool(np.isnan(values).any())
    # Attention adds or selects -inf on purpose: one number, or nothing but 0 and -inf. No weight is so.
    mask = values.size == 1 or np.all((values == 0) | np.isneginf(values.astype(np.float32)))
    if nan or not mask:
        raise IntegrityError(
            f"{where}: holds {'NaN' if nan else 'Inf'}", "train or export the model again; these weights are damaged"
        )

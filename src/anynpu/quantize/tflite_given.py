"""A .tflite file that somebody gives us: read without trust, told what it is, refused by name where it cannot be used.

Three forms come in. A float file is one to quantise. Weights that are stored in fewer bits (float16, int8 with float
activations) are widened to the float32 that they stand for. A file with quantised activations is taken with its own
integers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.errors import ConfigError, Finding, IntegrityError, Unsupported, first_line
from anynpu.quantize.tflite_folded import store_known
from anynpu.quantize.tflite_plain import State, make_plain
from anynpu.quantize.tflite_sparse import AGAIN
from anynpu.runtime import tflite_form
from anynpu.runtime.litert import REFERENCE, open_interpreter
from anynpu.runtime.tflite_file import (
    activation_indices,
    damage_reported,
    external_buffers,
    float_operators,
    free_name,
    operator_names,
    pack_model,
    read_model,
    read_quantization,
    text,
    type_name,
)
from anynpu.tensors import DTYPES, Array

FLOAT, GIVEN = "tflite-float", "tflite-given"
MAX_BYTES = 2**31 - 1
MAX_ACTIVATIONS = 4 << 30
"""Bytes that all tensors of one run may take together: more is a mistake or an attack."""
LONGEST_NAME = 400
STORED = ("int8", "uint8", "int16", "int4", "float16")
"""Types of numbers that stand for others."""
COMPILED = {
    "ethos-u": "it was compiled by Vela for an Ethos-U already: give the file before that",
    "edgetpu-custom-op": "it was compiled for a Coral Edge TPU already: give the file before that",
    "NeutronGraph": "it was compiled for NXP's Neutron already: give the file before that",
}
LOOP = "convert the model with its loop written out (Keras: unroll=True)"
CONTROL_FLOW = {
    "IF": "the shapes of its two sides differ, or one of them keeps a state",
    "WHILE": LOOP,
    "CALL": "the graphs of the file call each other without end",
    "STABLEHLO_WHILE": LOOP,
    "STABLEHLO_COMPOSITE": "it names no graph of the file that says what it computes",
    "STABLEHLO_CASE": "convert the model for one case",
}
"""What is left of control flow once branches and called graphs are written out, and why."""
RANDOM = ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR")
STATE = (
    "CALL_ONCE",
    "VAR_HANDLE",
    "READ_VARIABLE",
    "ASSIGN_VARIABLE",
    "HASHTABLE",
    "HASHTABLE_FIND",
    "HASHTABLE_IMPORT",
)


@dataclass(frozen=True)
class GivenFile:
    """A file as a build takes it: its bytes, what it is in words, and whether it computes just what the file does."""

    content: bytes
    format: str
    what: str
    notes: tuple[str, ...] = ()
    same_values: bool = True
    """False where int8 weights were widened: the file's own kernels round activations to int8 as they go."""
    loads: bool = True
    """False where LiteRT refuses the file as it was, for something that changes no number."""
    custom: tuple[str, ...] = ()
    """Operators outside TFLite's own set, which LiteRT may or may not have."""
    states: tuple[State, ...] = ()
    """What the file keeps from one run to the next, as the inputs and outputs that stand for it in `content`."""
    original: bytes = b""
    """The file as it was, up to where it ends now."""


def read_whole(path: Path) -> Any:
    """Returns the model in a file as a mutable object, after every offset and index in it was found to be sound."""
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: is not a regular file", "copy the model to a file first")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise IntegrityError(f"{path}: {size} bytes is more than a TFLite file can hold (2 GiB)", AGAIN)
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}", "check its permissions") from error
    if data[4:8] != tflite_form.IDENTIFIER:
        from anynpu.source.kinds import TFLITE_ENDINGS, reject_other_kinds

        reject_other_kinds(path, data, "a TFLite file", TFLITE_ENDINGS)
        raise IntegrityError(f"{path}: is not a TFLite file: its bytes 4 to 7 should read TFL3", AGAIN)
    tflite_form.check(data, str(path))
    model = read_model(data, str(path))
    for graph in model.subgraphs:
        graph.operators = graph.operators or []
        for holder in (graph, *graph.operators):
            holder.inputs, holder.outputs = _indices(holder.inputs), _indices(holder.outputs)
    _require_sound(path, model)
    return model


def _indices(part: Any) -> list[int]:
    return [] if part is None else [int(index) for index in part]


def given_format(path: Path) -> str:
    """Returns the format of a file as a build takes it."""
    return GIVEN if _quantised_types(read_whole(path)) else FLOAT


def read_given(path: Path, end_at: Sequence[str] = ()) -> GivenFile:
    """Returns a file in the form that a build takes, or raises with everything that is in the way; with `end_at` it
    ends at these tensors."""
    from anynpu.quantize.tflite_end import end

    model = read_whole(path)
    ended = (end(model, end_at),) if end_at else ()
    data = pack_model(model) if ended else path.read_bytes()
    with damage_reported(str(path)):
        plain = make_plain(model)
    if obstacles := list(_obstacles(model)):
        raise Unsupported(
            f"{path}: {obstacles[0]}", obstacles, "convert the model without it" if len(obstacles) == 1 else ""
        )
    codes = [model.operatorCodes[op.opcodeIndex] for op in model.subgraphs[0].operators]
    custom = tuple(sorted({text(code.customCode) for code in codes if code.customCode}))
    repaired = _axes_of_scales(path, model)
    notes, loads = (*ended, *plain.notes, *_named(model), *repaired), plain.loads and not repaired
    left_open = any(open_axes(model.subgraphs[0].tensors[index]) for index in model.subgraphs[0].inputs)
    if not custom and not left_open and (spared := store_known(model)):
        notes = (*notes, f"{spared} operators read shapes and constants alone: their results are stored")
    if types := _quantised_types(model):
        floats, total = len(float_operators(model)), len(model.subgraphs[0].operators)
        what = f"an {'/'.join(types)} model".replace("an uint", "a uint")
        if floats:
            what = f"a mixed model: {'/'.join(types)}, and {floats} of {total} operators in floating point"
        kept = not notes and not external_buffers(data)
        content = data if kept else pack_model(model)
        return GivenFile(content, GIVEN, what, notes, loads=loads, custom=custom, states=plain.states, original=data)
    what, same_values = _widened(model)
    return GivenFile(pack_model(model), FLOAT, what, notes, same_values, loads, custom, plain.states, data)


def _require_sound(path: Path, model: Any) -> None:
    """Raises for a graph without operators or borders, numbers that are none, and sizes that no machine has."""
    graph = model.subgraphs[0]
    for what, part in (("operators", graph.operators), ("inputs", graph.inputs), ("outputs", graph.outputs)):
        if not part:
            raise IntegrityError(f"{path}: the graph has no {what}", AGAIN)
    if both := {*graph.inputs} & {*graph.outputs}:
        name = text(graph.tensors[min(both)].name)
        raise IntegrityError(f"{path}: '{name}' is an input and an output: nothing computes it", AGAIN)
    total = 0
    for index in activation_indices(model):
        shape = _shape(graph.tensors[index])
        total += math.prod(max(size, 1) for size in shape) * 4
    if total > MAX_ACTIVATIONS:
        raise IntegrityError(f"{path}: its tensors take {total / 2**30:,.0f} GiB in one run", AGAIN)
    for tensor in graph.tensors:
        where = f"{path}: tensor '{text(tensor.name)}'"
        try:
            read_quantization(tensor.quantization)
        except ConfigError as error:
            raise IntegrityError(f"{where}: {error.message}", AGAIN) from None
        values = _constant(model, tensor) if type_name(tensor.type) in ("float32", "float16") else None
        if values is not None and np.isnan(values).any():
            raise IntegrityError(f"{where}: holds NaN", AGAIN)


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in (tensor.shape if tensor.shape is not None else ()))


def open_axes(tensor: Any) -> tuple[int, ...]:
    """Returns the axes of an input, except that of the batch, whose size the file leaves open."""
    signature = tensor.shapeSignature if tensor.shapeSignature is not None else ()
    left_open = {axis for axis, size in enumerate(signature) if axis and int(size) < 0}
    return tuple(sorted(left_open | {axis for axis, size in enumerate(_shape(tensor)) if size < 1}))


def _obstacles(model: Any) -> Iterator[Finding]:
    """Yields what nothing here can run or prove, by operator and tensor."""
    graph = model.subgraphs[0]
    names = operator_names(model)
    for kind, op in zip(names, graph.operators, strict=True):
        where = text(graph.tensors[op.outputs[0]].name) if op.outputs else kind
        code = model.operatorCodes[op.opcodeIndex]
        custom = text(code.customCode)
        if kind == "None":
            yield Finding("operator", f"operator {code.builtinCode} is newer than the installed LiteRT", where)
        elif custom in COMPILED:
            yield Finding("compiled", f"operator {custom}: {COMPILED[custom]}", where)
        elif custom.startswith("Flex"):
            yield Finding("flex", f"operator {custom} needs TensorFlow itself (Flex): no chip has it", where)
        elif kind in CONTROL_FLOW:
            yield Finding("control-flow", f"operator {kind} is control flow: {CONTROL_FLOW[kind]}", where)
        elif kind in RANDOM:
            yield Finding("random", f"operator {kind} gives other results each time", where)
        elif kind in STATE:
            yield Finding("state", f"operator {kind} keeps state from one run to the next", where)
        if kind == "FULLY_CONNECTED" and op.builtinOptions and op.builtinOptions.weightsFormat:
            yield Finding("weights", "its weights are stored shuffled, for kernels that no longer exist", where)
    if len(model.subgraphs) > 1 and not {*CONTROL_FLOW, *STATE} & {*names}:
        signatures = ", ".join(text(s.signatureKey) for s in model.signatureDefs or []) or "no signature names them"
        yield Finding("graphs", f"the file holds {len(model.subgraphs)} graphs, one is taken ({signatures})")
    used = {i for op in graph.operators for i in (*op.inputs, *op.outputs) if i >= 0} | {*graph.inputs}
    for index in sorted(used):
        tensor, kind = graph.tensors[index], type_name(graph.tensors[index].type)
        if tensor.isVariable:
            yield Finding("state", "keeps its values from one run to the next", text(tensor.name))
        if kind not in (*DTYPES, "int4"):
            yield Finding("type", f"holds {kind}, which nothing here computes with", text(tensor.name))
        if tensor.sparsity is not None:
            yield Finding("sparse", "is stored sparse: convert the model without sparsity", text(tensor.name))
    for index in (*graph.inputs, *graph.outputs):
        if type_name(graph.tensors[index].type) == "int4":
            yield Finding("type", "is an int4 input or output", text(graph.tensors[index].name))


def _quantised_types(model: Any) -> list[str]:
    """Returns the integer types that stand for real numbers in the tensors that are computed or fed."""
    tensors = model.subgraphs[0].tensors
    held = (tensors[index] for index in activation_indices(model))
    kinds = {type_name(t.type) for t in held if read_quantization(t.quantization) is not None}
    return [kind for kind in STORED if kind in kinds]


def _axes_of_scales(path: Path, model: Any) -> tuple[str, ...]:
    """Corrects the axis of scales where a tensor does not have it and only one can be meant, and says so.

    TensorFlow's old converter gave biases the axis of their weights; LiteRT refuses it, TFLite-Micro never looks.
    """
    corrected = 0
    for tensor in model.subgraphs[0].tensors:
        quantization, shape = read_quantization(tensor.quantization), _shape(tensor)
        if quantization is None or tensor.quantization.quantizedDimension < max(len(shape), 1):
            continue
        if len(quantization.scale) != 1 and shape != (len(quantization.scale),):
            axis = tensor.quantization.quantizedDimension
            raise IntegrityError(f"{path}: tensor '{text(tensor.name)}' has scales along axis {axis} of {shape}", AGAIN)
        tensor.quantization.quantizedDimension = 0
        corrected += 1
    said = f"{corrected} tensors name an axis for their scales that they do not have: the one that they have is taken"
    return (said,) if corrected else ()


def _named(model: Any) -> tuple[str, ...]:
    """Gives a name to every tensor that has none of its own or one that cannot be shown, and says so."""
    graph = model.subgraphs[0]
    kinds = zip(operator_names(model), graph.operators, strict=True)
    stems = {index: kind.lower() for kind, op in kinds for index in op.outputs}
    stems |= dict.fromkeys(graph.inputs, "input") | dict.fromkeys(graph.outputs, "output")
    taken: set[str] = set()
    order = [*graph.inputs, *graph.outputs, *range(len(graph.tensors))]
    renamed = 0
    for index in dict.fromkeys(order):
        name = text(graph.tensors[index].name)
        if name and name not in taken and len(name) <= LONGEST_NAME and name.isprintable():
            taken.add(name)
            continue
        graph.tensors[index].name = free_name(stems.get(index, "constant"), taken)
        renamed += 1
    return (f"{renamed} tensors have no usable name of their own and were given one",) if renamed else ()


def _constant(model: Any, tensor: Any) -> Array | None:
    """Returns what a constant holds, in its own type, or None for a tensor that is computed."""
    data = model.buffers[tensor.buffer].data
    if data is None or not len(data) or tensor.sparsity is not None:
        return None
    raw, kind, count = np.asarray(data, np.uint8), type_name(tensor.type), math.prod(_shape(tensor))
    if kind not in (*DTYPES, "int4"):
        return None
    needed = (count + 1) // 2 if kind == "int4" else count * np.dtype(kind).itemsize
    if len(raw) < needed or min(_shape(tensor), default=1) < 0:
        raise IntegrityError(
            f"tensor '{text(tensor.name)}' of shape {list(_shape(tensor))} has {len(raw)} bytes", AGAIN
        )
    if kind == "int4":
        nibbles = np.stack([raw & 15, raw >> 4], 1).reshape(-1)[:count]
        return ((nibbles.astype(np.int8) ^ 8) - 8).reshape(_shape(tensor))
    return raw[:needed].view(kind).reshape(_shape(tensor))


def _widened(model: Any) -> tuple[str, bool]:
    """Turns stored weights into the float32 that they stand for; returns what the file is, and whether its own kernels
    compute just that."""
    graph = model.subgraphs[0]
    kept, unpacked, hybrid = [], set[str](), set[str]()
    for kind, op in zip(operator_names(model), graph.operators, strict=True):
        tensors = [graph.tensors[i] for i in op.inputs if i >= 0]
        if kind == "DEQUANTIZE" and _constant(model, tensors[0]) is not None and op.outputs[0] not in graph.outputs:
            unpacked.add(type_name(tensors[0].type))
            _store(model, graph.tensors[op.outputs[0]], _real(model, tensors[0]))
            continue
        kept.append(op)
        for tensor in tensors:
            stored = type_name(tensor.type) in STORED and read_quantization(tensor.quantization) is not None
            if stored and _constant(model, tensor) is not None:
                hybrid.add(type_name(tensor.type))
                _store(model, tensor, _real(model, tensor))
    graph.operators = kept
    if hybrid:
        return f"a dynamic-range model ({', '.join(sorted(hybrid))} weights, float activations)", False
    if unpacked:
        return f"a float model with {', '.join(sorted(unpacked))} weights", True
    return "a float model", True


def _real(model: Any, tensor: Any) -> Array:
    values, quantization = _constant(model, tensor), read_quantization(tensor.quantization)
    assert values is not None
    return values.astype(np.float32) if quantization is None else quantization.dequantize(values)


def _store(model: Any, tensor: Any, values: Array) -> None:
    """Makes a tensor a constant of float32."""
    from ai_edge_litert.schema_py_generated import BufferT, TensorType

    buffer = BufferT()
    buffer.data = np.frombuffer(np.ascontiguousarray(values, np.float32).tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor.type, tensor.buffer, tensor.quantization = TensorType.FLOAT32, len(model.buffers) - 1, None


def with_shapes(content: bytes, shapes: dict[str, tuple[int, ...]]) -> bytes:
    """Returns a file whose inputs have the stated shapes, and every other tensor the one that follows from them."""
    model = read_model(content)
    graph = model.subgraphs[0]
    try:
        interpreter = open_interpreter(content, REFERENCE, keep=True, shapes=shapes)
        interpreter.invoke()
    except (IntegrityError, ValueError, RuntimeError) as error:
        stated = " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())
        raise ConfigError(f"the model does not accept the shape {stated}: {first_line(error)}") from error
    for detail in interpreter.get_tensor_details():
        if detail["index"] < len(graph.tensors):
            graph.tensors[detail["index"]].shape = np.asarray(detail["shape"], np.int32)
            graph.tensors[detail["index"]].shapeSignature = None
    store_known(model)
    return pack_model(model)

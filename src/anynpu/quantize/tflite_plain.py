"""Writes the special forms of a given .tflite file as one plain graph: stored sparse, in branches, with states.

A branch is computed whatever its condition says, and a choice follows. A state becomes an input and an output: whoever
runs the model hands what one run gives to the next.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anynpu.errors import Finding, IntegrityError, Unsupported
from anynpu.quantize.tflite_sparse import dense_values
from anynpu.runtime.litert import REFERENCE, open_interpreter
from anynpu.runtime.tflite_file import pack_model, read_quantization, text
from anynpu.tensors import Array

TRANSPOSED = "Convolution2DTransposeBias"
"""MediaPipe's own operator: a transposed convolution with a bias, which TFLite has had since."""
CALLS = {"CALL": "subgraph", "STABLEHLO_COMPOSITE": "decompositionSubgraphIndex"}
"""Operators that stand for another graph of the file, and the setting that names it."""
VARIABLES = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE")
DEEPEST, MOST_CALLS = 16, 4096
"""How deep and how often graphs may call each other: a file whose graphs call themselves has no end."""


@dataclass(frozen=True)
class State:
    """What a model keeps from one run to the next: the input and the output that stand for it now, and its start."""

    input: str
    output: str
    start: Array
    """The values before the first run, as they are stored."""
    zero_point: int = 0


@dataclass(frozen=True)
class Plain:
    """What was written otherwise."""

    notes: tuple[str, ...]
    states: tuple[State, ...]
    loads: bool
    """False where LiteRT has no kernel for what the file held."""


def make_plain(model: Any) -> Plain:
    """Changes a model to one graph without special forms, as far as that is possible; the rest stays as it is."""
    graph, notes = model.subgraphs[0], list[str]()
    if count := densify(model):
        notes.append(f"weights that are stored sparse are taken with their zeros: {count}")
    before = [kind_of(model, op) for op in graph.operators]
    if {*before} & {"IF", *CALLS}:
        graph.operators = list(written_out(model, graph.operators, iter(range(MOST_CALLS))))
        after = [kind_of(model, op) for op in graph.operators]
        if called := sum(before.count(kind) - after.count(kind) for kind in CALLS):
            notes.append(f"graphs that the main one calls are part of it now: {called}")
        if chosen := before.count("IF") - after.count("IF"):
            notes.append(f"branches of which both sides are computed and one is chosen: {chosen}")
    states = variables_to_borders(model)
    if states:
        names = ", ".join(f"{state.input} -> {state.output}" for state in states)
        still = not any(np.any(state.start.astype(np.float64) - state.zero_point) for state in states)
        start = "zeros" if still else "the start that the file sets (not zero)"
        notes.append(
            f"what the file keeps from one run to the next is {len(states)} inputs and outputs now: "
            f"hand each output to its input in the next run ({names}), and {start} to the first"
        )
    if replaced := transposed_convolutions(model):
        notes.append(f"{TRANSPOSED} is computed by TRANSPOSE_CONV; LiteRT cannot run the file as it was")
    if notes:
        drop_unused(model)
    return Plain(tuple(notes), states, not replaced)


def kind_of(model: Any, op: Any) -> str:
    """Returns the name of an operator, of a custom one its own."""
    from ai_edge_litert.tools import flatbuffer_utils

    custom = text(model.operatorCodes[op.opcodeIndex].customCode)
    return custom or str(flatbuffer_utils.opcode_to_name(model, op.opcodeIndex))


def densify(model: Any) -> int:
    """Stores sparse constants of the main graph with their zeros, and returns how many there were."""
    from ai_edge_litert.schema_py_generated import BufferT

    graph, count, spared = model.subgraphs[0], 0, []
    for tensor in graph.tensors:
        values = dense_values(model, tensor)
        if values is None:
            continue
        buffer = BufferT()
        buffer.data = np.frombuffer(values.tobytes(), np.uint8)
        model.buffers.append(buffer)
        tensor.buffer, tensor.sparsity, count = len(model.buffers) - 1, None, count + 1
    for op in graph.operators:
        source = graph.tensors[op.inputs[0]] if kind_of(model, op) == "DENSIFY" else None
        if source is not None and source.sparsity is None and len(op.outputs) == 1:
            result = graph.tensors[op.outputs[0]]
            result.buffer, result.type, result.quantization = source.buffer, source.type, source.quantization
            spared.append(op)
    graph.operators = [op for op in graph.operators if not any(op is other for other in spared)]
    return count


def written_out(model: Any, operators: Sequence[Any], left: Iterator[int], depth: int = 0) -> Iterator[Any]:
    """Yields operators of the main graph, those of called graphs and of both sides of a branch in place of the call, as
    many calls as are `left`."""
    graph = model.subgraphs[0]
    for op in operators:
        kind, settings = kind_of(model, op), op.builtinOptions or op.builtinOptions2
        called = kind in ("IF", *CALLS) and settings is not None and depth < DEEPEST
        if not called or next(left, None) is None:
            yield op
        elif kind in CALLS:
            yield from _inlined(model, getattr(settings, CALLS[kind]), op.inputs, op.outputs, left, depth)
        else:
            sides = (settings.thenSubgraphIndex, settings.elseSubgraphIndex)
            stored = model.buffers[graph.tensors[op.inputs[0]].buffer].data
            if stored is not None and len(stored):
                yield from _inlined(model, sides[0 if any(stored) else 1], op.inputs[1:], op.outputs, left, depth)
                continue
            shapes = [
                [_shape(model.subgraphs[side].tensors[i]) for i in model.subgraphs[side].outputs] for side in sides
            ]
            inside = {kind_of(model, each) for side in sides for each in model.subgraphs[side].operators}
            if shapes[0] != shapes[1] or inside & {*VARIABLES}:
                yield op
                continue
            results = []
            for side in sides:
                results.append([_copied(graph, graph.tensors[index]) for index in op.outputs])
                yield from _inlined(model, side, op.inputs[1:], results[-1], left, depth)
            for first, second, result in zip(*results, op.outputs, strict=True):
                condition = _copied(graph, graph.tensors[op.inputs[0]])  # with axes: NPUs have no tensors without
                graph.tensors[condition].shape = np.ones(len(_shape(graph.tensors[result])), np.int32)
                yield _reshape(model, op.inputs[0], condition)
                yield _operator(model, "SELECT_V2", [condition, first, second], [result], "SelectV2Options")


def _shape(tensor: Any) -> list[int]:
    return [int(size) for size in (tensor.shape if tensor.shape is not None else ())]


def _copied(graph: Any, tensor: Any) -> int:
    """Adds a tensor of the same form and returns its index; its name is settled with those of all others."""
    twin = copy.copy(tensor)
    twin.name, twin.buffer = b"", tensor.buffer
    graph.tensors.append(twin)
    return len(graph.tensors) - 1


def _inlined(
    model: Any, number: int, inputs: Sequence[int], outputs: Sequence[int], left: Iterator[int], depth: int
) -> Iterator[Any]:
    """Yields the operators of another graph as ones of the main graph, its borders bound to tensors there."""
    graph, called = model.subgraphs[0], model.subgraphs[number]
    places = dict(zip(called.inputs, inputs, strict=True)) | {-1: -1}
    results = {index for op in called.operators for index in op.outputs}
    kept = []
    for index, result in zip(called.outputs, outputs, strict=True):
        if index in results and index not in places:
            places[index] = result
        else:  # a border that no operator makes, or one result under two names
            kept.append((index, result))
    for index, tensor in enumerate(called.tensors):
        if index not in places:
            places[index] = _copied(graph, tensor)
            graph.tensors[-1].name = tensor.name
    operators = []
    for op in called.operators:
        twin = copy.copy(op)
        twin.inputs, twin.outputs = [places[i] for i in op.inputs], [places[i] for i in op.outputs]
        operators.append(twin)
    yield from written_out(model, operators, left, depth + 1)
    for index, result in kept:
        yield _reshape(model, places[index], result)


def _reshape(model: Any, source: int, result: int) -> Any:
    """Returns the operator that hands values on under the shape of another tensor."""
    from ai_edge_litert.schema_py_generated import BufferT, TensorT, TensorType

    graph, buffer, wanted = model.subgraphs[0], BufferT(), TensorT()
    shape = np.asarray(_shape(graph.tensors[result]), np.int32)
    buffer.data = np.frombuffer(shape.tobytes(), np.uint8)
    model.buffers.append(buffer)
    wanted.name, wanted.type, wanted.buffer = b"", TensorType.INT32, len(model.buffers) - 1
    wanted.shape = np.asarray([len(shape)], np.int32)
    graph.tensors.append(wanted)
    return _operator(
        model, "RESHAPE", [source, len(graph.tensors) - 1], [result], "ReshapeOptions", newShape=shape.tolist()
    )


def _operator(
    model: Any, kind: str, inputs: list[int], outputs: list[int], table: str, version: int = 1, **settings: Any
) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    code, op = schema.OperatorCodeT(), schema.OperatorT()
    code.builtinCode = getattr(schema.BuiltinOperator, kind)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), version
    model.operatorCodes.append(code)
    op.opcodeIndex, op.inputs, op.outputs = len(model.operatorCodes) - 1, inputs, outputs
    op.builtinOptionsType = getattr(schema.BuiltinOptions, table)
    op.builtinOptions = getattr(schema, f"{table}T")()
    for name, value in settings.items():
        setattr(op.builtinOptions, name, value)
    return op


def variables_to_borders(model: Any) -> tuple[State, ...]:
    """Makes each variable that a run reads and sets an input and an output of the main graph."""
    graph = model.subgraphs[0]
    kinds = [kind_of(model, op) for op in graph.operators]
    if not {*kinds} & {*VARIABLES} or not (starts := starts_of(model, kinds)):
        return ()
    handles = {
        op.outputs[0]: (text(op.builtinOptions.container), text(op.builtinOptions.sharedName))
        for kind, op in zip(kinds, graph.operators, strict=True)
        if kind == "VAR_HANDLE"
    }
    now, fed, same, kept = dict[Any, int](), dict[Any, int](), dict[int, int](), []
    for kind, op in zip(kinds, graph.operators, strict=True):
        op.inputs = [same.get(index, index) for index in op.inputs]
        if kind == "READ_VARIABLE":
            variable, result = handles[op.inputs[0]], op.outputs[0]
            if variable not in now:
                now[variable] = fed[variable] = result
            same[result] = now[variable]
        elif kind == "ASSIGN_VARIABLE":
            now[handles[op.inputs[0]]] = op.inputs[1]
        elif kind not in VARIABLES:
            kept.append(op)
    states = list[State]()
    borders = {*graph.inputs, *fed.values(), *(same.get(i, i) for i in graph.outputs)}
    for variable, index in fed.items():
        result = now[variable]
        stored = model.buffers[graph.tensors[result].buffer].data
        if result in borders or (stored is not None and len(stored)):
            kept.append(_reshape(model, result, twin := _copied(graph, graph.tensors[index])))
            result = twin
        borders.add(result)
        names = variable[1] or f"state_{len(states)}", f"{variable[1] or f'state_{len(states)}'}/next"
        graph.tensors[index].name, graph.tensors[result].name = names
        graph.inputs, graph.outputs = [*graph.inputs, index], [*graph.outputs, result]
        quantization = read_quantization(graph.tensors[index].quantization)
        if quantization != read_quantization(graph.tensors[result].quantization):
            finding = Finding("state", "is set with other scales than it is read with", names[0])
            raise Unsupported(str(finding), [finding], "convert the model again")
        states.append(State(*names, starts[index], quantization.zero_point[0] if quantization else 0))
    graph.operators, graph.outputs = kept, [same.get(i, i) for i in graph.outputs]
    return tuple(states)


def starts_of(model: Any, kinds: Sequence[str]) -> dict[int, Array]:
    """Returns what the first run reads from each variable, by the tensor that it is read into."""
    graph = model.subgraphs[0]
    try:
        interpreter = open_interpreter(pack_model(model), REFERENCE, keep=True)
        for detail in interpreter.get_input_details():
            interpreter.set_tensor(detail["index"], np.zeros(detail["shape"], detail["dtype"]))
        interpreter.invoke()
    except (IntegrityError, ValueError, RuntimeError):  # the operators stay, and are refused by their names
        return {}
    reads = [op.outputs[0] for kind, op in zip(kinds, graph.operators, strict=True) if kind == "READ_VARIABLE"]
    return {index: interpreter.get_tensor(index) for index in reads}


def transposed_convolutions(model: Any) -> int:
    """Writes MediaPipe's transposed convolutions as TFLite's own, and returns how many there were."""
    graph, count = model.subgraphs[0], 0
    for place, op in enumerate(graph.operators):
        if kind_of(model, op) != TRANSPOSED or len(op.inputs) != 3 or op.customOptions is None:
            continue
        settings = bytes(np.asarray(op.customOptions, np.uint8))
        if len(settings) < 12:
            continue
        padding, across, down = struct.unpack("<3i", settings[:12])
        source, weights, bias = op.inputs
        (_, *size, _), (_, *window, _) = _shape(graph.tensors[source]), _shape(graph.tensors[weights])
        result = graph.tensors[op.outputs[0]]
        shape = _shape(result)
        pads = [
            max(0, kernel - (extent - 1) % stride - 1) if padding == 1 else 0
            for kernel, extent, stride in zip(window, size, (down, across), strict=True)
        ]
        # TFLite derives the pads from the size of the result, MediaPipe that size from the pads
        own = [
            max(0, (-(-extent // stride) - 1) * stride + kernel - extent)
            for kernel, extent, stride in zip(window, shape[1:3], (down, across), strict=True)
        ]
        if any(pads) and [pad // 2 for pad in pads] != [pad // 2 for pad in own]:
            continue
        written = _reshape(model, source, op.outputs[0])  # holds the shape of the result as a constant
        graph.operators[place] = _operator(
            model,
            "TRANSPOSE_CONV",
            [written.inputs[1], weights, source, bias],
            [*op.outputs],
            "TransposeConvOptions",
            version=3,
            padding=0 if any(pads) else 1,
            strideW=across,
            strideH=down,
        )
        count += 1
    return count


def drop_unused(model: Any) -> None:
    """Drops graphs that are part of the main one now, and tensors that no operator touches any longer."""
    graph = model.subgraphs[0]
    named = {signature.subgraphIndex for signature in model.signatureDefs or ()}
    if named <= {0} and not {kind_of(model, op) for op in graph.operators} & {"IF", "WHILE", *CALLS, *VARIABLES}:
        model.subgraphs = [graph]
    used = {*graph.inputs, *graph.outputs} | {i for op in graph.operators for i in (*op.inputs, *op.outputs)} - {-1}
    places = {index: place for place, index in enumerate(sorted(used))} | {-1: -1}
    graph.tensors = [graph.tensors[index] for index in sorted(used)]
    for holder in (graph, *graph.operators):
        holder.inputs, holder.outputs = ([places[i] for i in part] for part in (holder.inputs, holder.outputs))
    # Signatures name tensors by number, and these are others now
    model.signatureDefs = None if named <= {0} else model.signatureDefs

"""Moves of whole numbers and truth values, for which TFLite-Micro has fewer kernels than for quantised numbers."""

from __future__ import annotations

from dataclasses import replace

from anynpu.lowering.graph import Graph, int32, pruned
from anynpu.lowering.moves import MOST_JOINED, exchanges, merged
from anynpu.lowering.options import Cast, Concatenation
from anynpu.lowering.rewriting import Rewriting

MOST_SLICES = 64
"""How many slices a transposition may be made of."""


_WHOLE = ("uint8", "int8", "int16", "int32")
_MOVED = frozenset(("RESHAPE", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "GATHER", "REVERSE_V2", "PAD", "MIRROR_PAD"))
"""Moves of one tensor, whose other inputs say where to."""


def casts_first(graph: Graph) -> Graph:
    """What is fed as whole numbers becomes real before it is moved: the moves of quantised numbers have kernels."""
    at = Rewriting(graph, lambda *_: True, 0, dict(graph.tensors), [])
    makers, real = graph.makers(), dict[str, str]()

    def is_fed(name: str) -> bool:
        maker = makers.get(name)
        if maker is None:
            return name in graph.inputs or graph.constant(name) is not None
        if maker.kind == "CONCATENATION":
            return all(is_fed(each) for each in maker.inputs)
        return maker.kind in _MOVED and len(maker.outputs) == 1 and is_fed(maker.inputs[0])

    def made_real(name: str) -> str:
        maker, shape = makers.get(name), graph.tensors[name].shape
        if name in real:
            return real[name]
        if (stored := graph.constant(name)) is not None:
            real[name] = at.store(stored.astype("float32"), f"{name}/real")
        elif maker is None:
            real[name] = at.emit("CAST", (name,), shape, Cast(graph.tensors[name].dtype, "float32"), f"{name}/real")
            at.tensors[real[name]] = replace(at.tensors[real[name]], dtype="float32")
        else:
            count = len(maker.inputs) if maker.kind == "CONCATENATION" else 1
            inputs = (*map(made_real, maker.inputs[:count]), *maker.inputs[count:])
            real[name] = at.emit(maker.kind, inputs, shape, maker.options, f"{name}/real")
        return real[name]

    for operator in graph.operators:
        source = operator.inputs[0]
        whole = graph.tensors[source].dtype in _WHOLE and graph.tensors[source].quantization is None
        to_real = operator.kind == "CAST" and graph.tensors[operator.outputs[0]].dtype == "float32"
        if to_real and whole and source in makers and is_fed(source):
            at.give(operator, made_real(source))
            real[source] = operator.outputs[0]
        else:
            at.operators.append(operator)
    return pruned(at.operators, at.tensors, graph.inputs, graph.outputs) if real else graph


def whole_transposes(graph: Graph) -> Graph:
    """A TRANSPOSE of whole numbers or truth values is slices that are joined again: TFLite-Micro moves none."""
    at = Rewriting(graph, lambda *_: True, 0, dict(graph.tensors), [])
    for operator in graph.operators:
        order = graph.constant(operator.inputs[1]) if operator.kind == "TRANSPOSE" else None
        if order is None or graph.tensors[operator.inputs[0]].dtype not in ("int32", "bool"):
            at.operators.append(operator)
            continue
        sizes, target = merged(graph.tensors[operator.inputs[0]].shape, [int(axis) for axis in order])
        steps = exchanges(sizes, target)
        if not steps or max(min(first, second) for _, first, second, _ in steps) > MOST_SLICES:
            at.operators.append(operator)
            continue
        name = operator.inputs[0]
        for shape in steps:
            name = _exchanged(at, name, shape, operator.outputs[0])
        at.give(operator, at.reshape(name, graph.tensors[operator.outputs[0]].shape, f"{operator.outputs[0]}/shaped"))
    return pruned(at.operators, at.tensors, graph.inputs, graph.outputs)


def _exchanged(at: Rewriting, name: str, shape: tuple[int, ...], result: str) -> str:
    """Returns a tensor with its inner two of four axes exchanged: the shorter one is cut up."""
    outer, first, second, inner = shape
    whole = at.reshape(name, shape, f"{result}/before")
    cut, count = (1, first) if first <= second else (2, second)
    extent = (outer, 1, second, inner) if cut == 1 else (outer, first, 1, inner)
    turned = (outer, second, 1, inner) if cut == 1 else (outer, 1, first, inner)
    parts = []
    for number in range(count):
        begin = [number if axis == cut else 0 for axis in range(4)]
        bounds = [at.store(int32(each), f"{result}/bound") for each in (begin, extent)]
        part = at.emit("SLICE", (whole, *bounds), extent, None, f"{result}/part")
        parts.append(at.reshape(part, turned, f"{result}/turned"))
    axis = 3 - cut
    while len(parts) > 1:
        groups = [parts[place : place + MOST_JOINED] for place in range(0, len(parts), MOST_JOINED)]
        parts = [_joined(at, group, axis, result) for group in groups]
    return parts[0]


def _joined(at: Rewriting, parts: list[str], axis: int, result: str) -> str:
    if len(parts) == 1:
        return parts[0]
    shape = list(at.shape(parts[0]))
    shape[axis] = sum(at.shape(part)[axis] for part in parts)
    return at.emit("CONCATENATION", parts, shape, Concatenation(axis=axis), f"{result}/joined")

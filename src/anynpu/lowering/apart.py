"""Keeps operators apart that Vela 5.2.0 compiles wrongly as neighbours: a copy of the tensor goes between them.

Vela lets an operator write straight into the tensor that a CONCATENATION or PAD makes of its result, and lets one read
straight from the tensor that a slice was cut from. Where it computes the result in pieces, or the slice steps over
rows, the registers are then those of the larger tensor; and the pieces of a mirrored border, or of a minimum on the U55
and U65, are laid where the shape behind a RESHAPE has them. On U55 and U65 it spreads an operand in the shape that
another reader of the tensor has, and takes what a slice steps over for an axis that broadcasts; on U85 it reads the
half of a slice that a RESHAPE gives a fifth axis, and loads both tables of 16 bits of a chain of element-wise operators
to one place (docs/ethos-u.md has a row for each). The copy is the larger of a tensor and itself: exact in every type,
on every runtime, and left in place by Vela.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from anynpu.lowering.graph import Graph, Operator, Tensor
from anynpu.lowering.options import Conv2D, Pool2D, ResizeBilinear, ResizeNearestNeighbor

_LAYING = ("CONCATENATION", "PAD", "PADV2")
"""What lays a tensor into a larger one."""
_CUTTING = ("SLICE", "STRIDED_SLICE", "SPLIT")
_PICTURE = 4
"""How many axes a batch of images has."""
_READ_UNCUT = ("REDUCE_MAX", "REDUCE_MIN", "SUM", "TRANSPOSE_CONV")
"""What reads the tensor that was not cut, on every chip."""
_PAIRING = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
_TABLED = ("RSQRT", "EXP", "LOG", "DIV")
"""What is a table at 16 bits, or a product with one."""
_CHAINED = (*_PAIRING, "ABS", "NEG", "LEAKY_RELU", "RESHAPE")
"""What Vela may compute in one chain with its neighbours, without memory in between."""


def apart(graph: Graph, family: str) -> Graph:
    """Returns the graph with a copy between the operators that one family of NPUs gets wrong as neighbours."""
    makers, tensors, operators = graph.makers(), dict(graph.tensors), list[Operator]()
    meeting = _before_tables(graph) if family == "EthosU85" else frozenset[str]()
    for operator in graph.operators:
        inputs = list(operator.inputs)
        for place, name in enumerate(operator.inputs):
            if name not in tensors:  # left out
                continue
            source = makers.get(name)
            while source is not None and source.kind == "RESHAPE":  # Vela sees through it
                source = makers.get(source.inputs[0])
            mixed_up = source is not None and _mixed_up(source, operator, graph, family)
            spread = place == 0 and family != "EthosU85" and _spread_from_a_view(operator, graph, makers)
            meets = source is not None and source.kind in _TABLED and operator.kind in _CHAINED and name in meeting
            if tensors[name].dtype != "float32" or not (mixed_up or spread or meets):
                continue
            copy = f"{name}/apart"
            if copy not in tensors:
                tensors[copy] = Tensor(copy, tensors[name].shape, tensors[name].dtype)
                operators.append(Operator("MAXIMUM", (name, name), (copy,)))
            inputs[place] = copy
        operators.append(replace(operator, inputs=tuple(inputs)))
    return (
        graph if len(operators) == len(graph.operators) else replace(graph, operators=tuple(operators), tensors=tensors)
    )


def _mixed_up(source: Operator, reader: Operator, graph: Graph, family: str) -> bool:
    if reader.kind == "RESHAPE":
        if family == "EthosU85":
            deep = len(graph.tensors[reader.outputs[0]].shape) > _PICTURE
            return source.kind == "MIRROR_PAD" or (deep and source.kind in _CUTTING)
        return source.kind in ("MIRROR_PAD", "REDUCE_MIN")
    if reader.kind in _LAYING:
        # Mixed up where Vela computes the result in several operations, each a part of it
        if source.kind in ("REDUCE_MAX", "REDUCE_MIN"):
            return True
        if source.kind == "DEPTHWISE_CONV_2D":
            return graph.tensors[source.outputs[0]].shape[-1] != graph.tensors[source.inputs[0]].shape[-1]
        if family == "EthosU85":
            return source.kind == "TRANSPOSE_CONV"
        if isinstance(source.options, ResizeBilinear):
            return source.options.half_pixel_centers
        if isinstance(source.options, ResizeNearestNeighbor):
            return source.options.align_corners
        return source.kind == "BATCH_MATMUL"
    small = family != "EthosU85"
    if source.kind in _CUTTING and (reader.kind in _READ_UNCUT or (small and reader.kind == "BATCH_MATMUL")):
        return True
    if small and source.kind == "STRIDED_SLICE" and reader.kind in _PAIRING and len(set(reader.inputs)) == 2:
        return True
    windows = isinstance(reader.options, Conv2D | Pool2D) or reader.kind in ("SOFTMAX", "BATCH_MATMUL")
    return windows and source.kind == "STRIDED_SLICE"


def _spread_from_a_view(reader: Operator, graph: Graph, makers: Mapping[str, Operator]) -> bool:
    """Tells whether both operands broadcast, and other shapes of the first one's values are in the graph."""
    if reader.kind not in _PAIRING:
        return False
    size = math.prod(graph.tensors[reader.outputs[0]].shape)
    if any(math.prod(graph.tensors[name].shape) == size for name in reader.inputs):
        return False
    first = reader.inputs[0]
    reshaped = first in makers and makers[first].kind == "RESHAPE"
    return reshaped or any(first in each.inputs for each in graph.operators if each.kind == "RESHAPE")


def _before_tables(graph: Graph) -> frozenset[str]:
    """Returns the tensors from which element-wise operators alone lead to what is a table at 16 bits."""
    leading: set[str] = set()
    for operator in reversed(graph.operators):
        if operator.kind in _TABLED:
            leading.add(operator.inputs[-1])  # a division has a table of what it divides by
        if operator.kind in _CHAINED and not leading.isdisjoint(operator.outputs):
            leading.update(operator.inputs)
    return frozenset(leading)

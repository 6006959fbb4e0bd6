"""Keeps operators apart that Vela 5.2.0 compiles wrongly as neighbours: a copy of the tensor goes between them.

Vela lets an operator write straight into the tensor that a CONCATENATION or PAD makes of its result, and lets one read
straight from the tensor that a slice was cut from. Where it computes the result in pieces, or the slice steps over
rows, the registers are then those of the larger tensor; and the pieces of a mirrored border, or of a minimum on the U55
and U65, are laid where the shape behind a RESHAPE has them, as is a slice on the U85 (docs/ethos-u.md has a row for
each). The copy is the larger of a tensor and itself: exact in every type, on every runtime, and left in place by Vela.
"""

from __future__ import annotations

from dataclasses import replace

from anynpu.lowering.graph import Graph, Operator, Tensor
from anynpu.lowering.options import Conv2D, Pool2D, ResizeBilinear, ResizeNearestNeighbor

_LAYING = ("CONCATENATION", "PAD", "PADV2")
"""What lays a tensor into a larger one."""
_CUTTING = ("SLICE", "STRIDED_SLICE", "SPLIT")
_MOST_AXES = 4
"""A slice that a RESHAPE gives more axes than these is cut short on the U85."""


def apart(graph: Graph, family: str) -> Graph:
    """Returns the graph with a copy between the operators that one family of NPUs gets wrong as neighbours."""
    makers, tensors, operators = graph.makers(), dict(graph.tensors), list[Operator]()
    for operator in graph.operators:
        inputs = list(operator.inputs)
        for place, name in enumerate(operator.inputs):
            source = makers.get(name)
            while source is not None and source.kind == "RESHAPE":  # Vela sees through it
                source = makers.get(source.inputs[0])
            if source is None or tensors[name].dtype != "float32" or not _mixed_up(source, operator, graph, family):
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
            deep = len(graph.tensors[reader.outputs[0]].shape) > _MOST_AXES
            return source.kind == "MIRROR_PAD" or (source.kind in _CUTTING and deep)
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
    if reader.kind == "BATCH_MATMUL" and family != "EthosU85" and source.kind in _CUTTING:
        return True
    windows = isinstance(reader.options, Conv2D | Pool2D) or reader.kind in ("SOFTMAX", "BATCH_MATMUL")
    return windows and source.kind == "STRIDED_SLICE"

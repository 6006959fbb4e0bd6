"""Operators that need not exist: PAD before a convolution, whose kernel pads, and the indices of a table of bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from anynpu.firmware.generator.graph import Graph, Node, values, zero_of
from anynpu.firmware.generator.layer import Refused
from anynpu.firmware.generator.movement import padding_value
from anynpu.firmware.generator.windows import VALID

CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D")
PADS = ("PAD", "PADV2")


def fold_padding(graph: Graph) -> Graph:
    """Returns the graph with each PAD that only convolutions read inside of these convolutions."""
    readers: dict[int, list[Node]] = {}
    for node in graph.nodes:
        for number in node.inputs:
            readers.setdefault(number, []).append(node)
    folded: dict[int, Node] = {}
    for node in graph.nodes:
        if node.kind in PADS and node.outputs[0] not in graph.outputs:
            number = node.outputs[0]
            if all(_takes(graph, node, reader, number) for reader in readers.get(number, ())):
                folded[number] = node
    nodes = []
    for node in graph.nodes:
        pad = folded.get(node.inputs[0]) if node.inputs else None
        if pad is not None:
            before = values(graph.input(pad, 1)).reshape(-1, 2)[:, 0]
            pads = int(before[1]), int(before[2])
            nodes.append(replace(node, inputs=(pad.inputs[0], *node.inputs[1:]), pads=pads))
        elif node not in folded.values():
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def fold_tables(graph: Graph) -> Graph:
    """Returns the graph with CAST, ADD and GATHER that read a table of 256 entries as one TABLE."""
    makers = {number: node for node in graph.nodes for number in node.outputs}
    reads = Counter(number for node in graph.nodes for number in node.inputs)
    alone = {number for number, count in reads.items() if count == 1 and number not in graph.outputs}
    nodes: dict[int, Node] = {}
    for node in graph.nodes:
        nodes[node.outputs[0]] = node
        place = makers.get(node.inputs[1]) if node.kind == "GATHER" and len(node.inputs) == 2 else None
        number = makers.get(place.inputs[0]) if place is not None and place.kind == "ADD" else None
        if place is None or number is None or not _reads_table(graph, node, place, number):
            continue
        if {place.outputs[0], number.outputs[0]} <= alone:
            del nodes[place.outputs[0]], nodes[number.outputs[0]]
            inputs = number.inputs[0], node.inputs[0]
            nodes[node.outputs[0]] = replace(node, kind="TABLE", inputs=inputs, options=None)
    return replace(graph, nodes=tuple(nodes.values()))


def _reads_table(graph: Graph, gather: Node, place: Node, number: Node) -> bool:
    """Whether GATHER reads entry x + 128 of a table for each byte x."""
    table, offset = graph.input(gather, 0), graph.input(place, 1)
    if number.kind != "CAST" or graph.input(number, 0).dtype != "int8" or graph.output(number).dtype != "int32":
        return False
    if not (table.constant and table.shape == (256,) and table.dtype == "int8" and offset.constant):
        return False
    if gather.options.batchDims or place.options.fusedActivationFunction or offset.dtype != "int32":
        return False
    return values(offset).reshape(-1).tolist() == [128]


def _takes(graph: Graph, pad: Node, reader: Node, number: int) -> bool:
    """Whether the convolution pads with the same values in the same places by itself."""
    image, padded = graph.input(pad, 0), graph.output(pad)
    widths = graph.input(pad, 1)
    if reader.kind not in CONVOLUTIONS or reader.inputs.index(number) != 0 or not widths.constant:
        return False
    if reader.options.padding != VALID or len(image.shape) != 4 or image.scale != padded.scale:
        return False
    outer = values(widths).reshape(-1, 2)[[0, 3]]
    try:
        same = padding_value(graph, pad) == zero_of(padded) == zero_of(image)
    except Refused:
        return False
    return bool(same and not outer.any())

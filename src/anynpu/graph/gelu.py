"""Recognises GELU written out with Erf, so that converters see one operator instead of a polynomial."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterable


class Wiring:
    """Who makes and who reads each tensor of a graph, and the numbers among its constants."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.maker = {name: node for node in graph.node for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self.readers[name].append(node)
        self.outputs = {output.name for output in graph.output}
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            values = [item.t for item in node.attribute if node.op_type == "Constant" and item.name == "value"]
            constants |= dict(zip(node.output, values, strict=False))
        self.numbers = {
            name: float(numpy_helper.to_array(tensor).reshape(-1)[0])
            for name, tensor in constants.items()
            if math.prod(tensor.dims) == 1 and tensor.data_type in (1, 10, 11)
        }

    def sole_reader(self, name: str, op: str) -> onnx.NodeProto | None:
        """The only node that reads a tensor, if it has this operator."""
        readers = self.readers[name]
        alone = len(readers) == 1 and name not in self.outputs and readers[0].op_type == op
        return readers[0] if alone else None

    def split(self, names: Iterable[str]) -> tuple[list[str], list[float]]:
        """Parts operands into tensors and known numbers."""
        tensors = [name for name in names if name not in self.numbers]
        return tensors, [self.numbers[name] for name in names if name in self.numbers]


def fuse(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Returns the nodes of a graph with every written-out GELU replaced by one Gelu node."""
    wiring = Wiring(graph)
    replaced: dict[str, onnx.NodeProto] = {}
    dropped: set[str] = set()
    for node in graph.node:
        match = _match(node, wiring) if node.op_type == "Erf" else None
        if match:
            source, chain = match
            last = chain[-1]
            replaced[last.output[0]] = helper.make_node("Gelu", [source], list(last.output), name=last.name)
            dropped.update(each.output[0] for each in chain[:-1])
    kept = (node for node in graph.node if not node.output or node.output[0] not in dropped)
    return [replaced.get(node.output[0], node) if node.output else node for node in kept]


def _match(erf: onnx.NodeProto, wiring: Wiring) -> tuple[str, list[onnx.NodeProto]] | None:
    """Returns x and the nodes of x * 0.5 * (1 + erf(x / sqrt(2))), in any order of the factors."""
    scaled = wiring.maker.get(erf.input[0])
    source = _source(scaled, wiring) if scaled else None
    added = wiring.sole_reader(erf.output[0], "Add")
    if not source or not added or wiring.split(added.input)[1] != [1.0]:
        return None
    chain, factor = [erf, added], 1.0
    tensors: list[str] = []
    while len(tensors) < 1 or factor == 1.0:
        product = wiring.sole_reader(chain[-1].output[0], "Mul")
        if not product:
            return None
        others, numbers = wiring.split([name for name in product.input if name != chain[-1].output[0]])
        maker = wiring.maker.get(others[0]) if len(others) == 1 else None
        half = bool(maker and maker.op_type == "Mul" and wiring.split(maker.input) == ([source], [0.5]))
        tensors += [source] if half else others
        factor *= math.prod(numbers) * (0.5 if half else 1.0)
        chain.append(product)
    return (source, chain) if tensors == [source] and factor == 0.5 else None


def _source(scaled: onnx.NodeProto, wiring: Wiring) -> str | None:
    tensors, numbers = wiring.split(scaled.input)
    if len(tensors) != 1 or len(numbers) != 1 or (scaled.op_type == "Div" and scaled.input[0] != tensors[0]):
        return None
    wanted = {"Div": math.sqrt(2), "Mul": math.sqrt(0.5)}.get(scaled.op_type)
    return tensors[0] if wanted and math.isclose(numbers[0], wanted, rel_tol=1e-5) else None

"""Operators of a QDQ model that are computed whole: nothing is rounded inside them.

Normalisations, the sums that they normalise, softmax with its scale and mask, and functions of one tensor lose what
they compute when each of their nodes is rounded on its own: the squares of a normalisation span twice the bits, and
one loud channel of a sum takes the integers of all others. ONNX Runtime computes them in floating point between the
products anyway, which are what eight bits are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from anynpu.graph.fold import copied
from anynpu.quantize.functions import functions, level_gates
from anynpu.quantize.onnx_net import MOVES, net_of

_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "GroupNormalization")
_PRODUCTS = ("Gemm", "MatMul", "Conv")
_BEFORE_SOFTMAX = ("Add", "Sub", "Mul", "Div", "Where")
_INSIDE_NORM = ("ReduceMean", "Sub", "Pow", "Mul", "Add", "Sqrt", "Reciprocal", "Div")
_RECTIFIERS = ("Relu", "Clip")
_PASS_ON = (*MOVES, "MaxPool", "Slice", "Split", "Gather", "Pad", "Resize")
# onnxruntime's quantiser names what it rounds for an output of the model by the output and this.
BEFORE_OUTPUT = "_QuantizeLinear_Input"
# A normalisation has at most this many nodes before and behind its root.
_NEAR = 6


@dataclass(frozen=True)
class Whole:
    """The names of nodes that are not quantised, and the results of products that are not rounded before them."""

    nodes: frozenset[str]
    unrounded: frozenset[str]


@dataclass(frozen=True)
class Wiring:
    """Who makes and who reads each tensor of a graph."""

    makers: Mapping[str, onnx.NodeProto]
    readers: Mapping[str, list[onnx.NodeProto]]
    outputs: frozenset[str]
    stored: frozenset[str]

    @staticmethod
    def of(graph: onnx.GraphProto) -> Wiring:
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                readers.setdefault(name, []).append(node)
        makers = {name: node for node in graph.node for name in node.output}
        outputs = frozenset(value.name for value in graph.output)
        return Wiring(makers, readers, outputs, frozenset(item.name for item in graph.initializer))

    def alone(self, name: str) -> bool:
        """Tells whether one node reads a tensor, and nobody else."""
        return len(self.readers.get(name, ())) == 1 and name not in self.outputs


def whole_operators(graph: onnx.GraphProto) -> Whole:
    """Returns what of a graph is computed whole; every node has a name."""
    wiring, net = Wiring.of(graph), net_of(graph)
    whole_nodes: dict[str, onnx.NodeProto] = {}
    for members, _ in functions(net).values():
        nodes = _named(wiring.makers[name] for name in members)
        # SiLU is merged behind the quantiser.
        if len(nodes) > 1 and sorted(node.op_type for node in nodes.values()) != ["Mul", "Sigmoid"]:
            whole_nodes |= nodes
    gates = {name for _, _, sigmoid in level_gates(net) for name in (sigmoid.inputs[0], sigmoid.result)}
    whole_nodes |= _named(wiring.makers[name] for name in gates)
    for node in graph.node:
        if node.op_type == "Softmax":
            whole_nodes |= _named([node, *_scores(node, wiring)])
        elif node.op_type in _NORMS:
            whole_nodes |= _named([node])
        elif node.op_type == "Sqrt":
            whole_nodes |= _named(_written_norm(node, wiring) or _magnitude(node, wiring))
    sums: dict[str, onnx.NodeProto] = {}
    for node in list(whole_nodes.values()):
        if node.op_type in (*_NORMS, "ReduceMean"):
            sums |= _named(_sums(node.input[0], wiring))
    if sums or any(node.op_type in _NORMS for node in whole_nodes.values()):
        # What lies behind the last products too, such as the pooling of a sentence's tokens.
        needed: set[str] = set()
        for node in reversed(graph.node):
            if node.op_type in _PRODUCTS or needed & {*node.output}:
                needed |= {*node.input}
        behind = (node for node in graph.node if node.op_type not in _PRODUCTS and not needed & {*node.output})
        whole_nodes |= _named(behind)
    # Rounded before and behind, a softmax becomes ONNX Runtime's integer one, which loses it over many places.
    whole = (*_NORMS, "ReduceMean", "Softmax")
    readers = [*sums.values(), *(node for node in whole_nodes.values() if node.op_type in whole)]
    unrounded = gates | {name for node in readers for name in _before(node, wiring)}
    return Whole(frozenset({**whole_nodes, **sums}), frozenset(unrounded))


def _named(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    return {node.name: node for node in nodes}


def _scores(softmax: onnx.NodeProto, wiring: Wiring) -> list[onnx.NodeProto]:
    """Returns the nodes that scale and mask what a softmax reads."""
    nodes: list[onnx.NodeProto] = []
    waiting = [softmax.input[0]]
    while waiting:
        name = waiting.pop()
        maker = wiring.makers.get(name)
        if maker is None or maker.op_type not in (*_BEFORE_SOFTMAX, *MOVES) or not wiring.alone(name):
            continue
        if maker.op_type in _BEFORE_SOFTMAX:
            nodes.append(maker)
        waiting += [each for each in maker.input if each not in wiring.stored]
    return nodes


def _written_norm(root: onnx.NodeProto, wiring: Wiring) -> list[onnx.NodeProto]:
    """Returns the nodes of a normalisation that is written out, by its root; nothing where there is no mean before."""
    before: list[onnx.NodeProto] = []
    waiting = [root.input[0]]
    while waiting and len(before) < _NEAR:
        maker = wiring.makers.get(waiting.pop())
        if maker is None or maker.op_type not in _INSIDE_NORM or maker in before:
            continue
        before.append(maker)
        if maker.op_type != "ReduceMean" or len([node for node in before if node.op_type == "ReduceMean"]) < 2:
            waiting += [name for name in maker.input if name not in wiring.stored]
    if not any(node.op_type == "ReduceMean" for node in before):
        return []
    behind: list[onnx.NodeProto] = []
    name = root.output[0]
    for _ in range(_NEAR):
        readers = wiring.readers.get(name, [])
        if len(readers) != 1 or readers[0].op_type not in ("Div", "Mul", "Reciprocal", "Add"):
            break
        behind.append(readers[0])
        name = readers[0].output[0]
    return [*before, root, *behind]


def _magnitude(root: onnx.NodeProto, wiring: Wiring) -> list[onnx.NodeProto]:
    """Returns the squares whose sum a root is taken of, as of a spectrum, the sum and the root; or nothing."""
    nodes: list[onnx.NodeProto] = []
    waiting, squares = [root.input[0]], False
    while waiting and len(nodes) < _NEAR:
        maker = wiring.makers.get(waiting.pop())
        if maker is None or maker in nodes:
            continue
        square = maker.op_type == "Pow" or (maker.op_type == "Mul" and len({*maker.input}) == 1)
        squares |= square
        if square or maker.op_type in ("Add", "ReduceSum", "ReduceMean", "Max", "Clip"):
            nodes.append(maker)
        if not square and maker.op_type in ("Add", "ReduceSum", "ReduceMean", "Max", "Clip", *MOVES):
            waiting += [name for name in maker.input if name not in wiring.stored]
    return [*nodes, root] if squares else []


def _sums(name: str, wiring: Wiring) -> list[onnx.NodeProto]:
    """Returns the sums that a normalisation reads, the sums that these are of, and on the way stored factors and joins:
    a class token may be a millionth of the words that it is joined with, until it is normalised."""
    nodes: list[onnx.NodeProto] = []
    waiting = [name]
    while waiting:
        maker = wiring.makers.get(waiting.pop())
        if maker is None or maker.op_type not in ("Add", "Mul", "Concat", *MOVES) or maker in nodes:
            continue
        if maker.op_type == "Mul" and not wiring.stored & {*maker.input}:
            continue
        nodes.append(maker)
        waiting += [each for each in maker.input if each not in wiring.stored]
    return [node for node in nodes if node.op_type not in MOVES]


def _before(reader: onnx.NodeProto, wiring: Wiring) -> set[str]:
    """Returns the tensors between a product and a whole operator that nothing else reads."""
    between: set[str] = set()
    for name in reader.input:
        path: list[str] = []
        maker = wiring.makers.get(name)
        while maker is not None and wiring.alone(name):
            path.append(name)
            if maker.op_type in _PRODUCTS:
                between |= {*path}
                break
            if maker.op_type not in MOVES:
                break
            name = maker.input[0]
            maker = wiring.makers.get(name)
    return between


def left_in_float(graph: onnx.GraphProto, tensors: Iterable[str]) -> Whole:
    """Returns what is not rounded so that the named tensors are float wherever they are read: as they are moved too,
    and before a rectifier, which the quantiser would leave to the rounding."""
    wiring = Wiring.of(graph)
    nodes: set[str] = set()
    unrounded: set[str] = set()
    for tensor in tensors:
        maker = wiring.makers.get(tensor)
        if maker is not None and maker.op_type in _RECTIFIERS:
            nodes.add(maker.name)
            unrounded |= {maker.input[0]} if wiring.alone(maker.input[0]) else set()
        waiting = [tensor]
        while waiting:
            name = waiting.pop()
            unrounded.add(name)
            moving = [node for node in wiring.readers.get(name, ()) if node.op_type in _PASS_ON]
            waiting += [each for node in moving for each in node.output if each not in unrounded]
    return Whole(frozenset(nodes), frozenset(unrounded))


def before_rectifiers(graph: onnx.GraphProto) -> frozenset[str]:
    """Returns what rectifiers alone read: chips compute these with the operator before them, and round once."""
    wiring = Wiring.of(graph)
    read = {node.input[0] for node in graph.node if node.op_type in _RECTIFIERS and node.input[0] in wiring.makers}
    return frozenset(name for name in read if wiring.alone(name))


def without_rounding(model: onnx.ModelProto, tensors: frozenset[str]) -> tuple[onnx.ModelProto, int]:
    """Returns a QDQ model without the pairs that round the named tensors, and how many nodes that takes away."""
    result = copied(model)
    graph = result.graph
    again: dict[str, str] = {}
    dropped: set[str] = set()
    results = {value.name + BEFORE_OUTPUT: value.name for value in graph.output if value.name in tensors}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in results:
            dropped |= {node.output[0], results[node.input[0]]}
        elif node.op_type == "QuantizeLinear" and node.input[0] in tensors:
            again[node.output[0]] = node.input[0]
            dropped.add(node.output[0])
        elif node.op_type == "DequantizeLinear" and node.input[0] in again:
            again[node.output[0]] = again[node.input[0]]
            dropped.add(node.output[0])
    kept = [node for node in graph.node if node.output[0] not in dropped]
    for node in kept:
        for place, name in enumerate(node.input):
            while name in again:
                name = again[name]
            node.input[place] = results.get(name, name)
        for place, name in enumerate(node.output):
            node.output[place] = results.get(name, name)
    del graph.node[:]
    graph.node.extend(kept)
    return result, len(dropped)

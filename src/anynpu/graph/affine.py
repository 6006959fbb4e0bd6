"""Factors and offsets of channels, those of a batch normalisation among them, go into the layer before them: its
weights and bias take them over. A product with a bias behind it is such a layer too."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from anynpu.graph.attributes import attribute, numbers
from anynpu.graph.fold import copied, names_read, static_shapes, with_nodes
from anynpu.graph.passes import Pass
from anynpu.tensors import Array

_EPSILON = 1e-5
_BY_CONSTANTS = ("Mul", "Div", "Add", "Sub")


class _Layers:
    """A graph in which layers take over what stands behind them."""

    def __init__(self, model: ModelProto) -> None:
        self.model = copied(model)
        self.graph = self.model.graph
        self.stored = {t.name: t for t in self.graph.initializer if t.data_type == TensorProto.FLOAT}
        self.makers = {name: node for node in self.graph.node for name in node.output}
        read = (names_read(node) for node in self.graph.node)
        self.uses = Counter(name for names in read for name in names) + Counter(v.name for v in self.graph.output)
        self.shapes = static_shapes(self.graph)

    def array(self, name: str) -> Array:
        return numpy_helper.to_array(self.stored[name])

    def before(self, node: NodeProto, place: int = 0) -> tuple[NodeProto, int] | None:
        """Returns the layer that nothing but a node reads, and the axis of its weights with its output channels."""
        layer = self.makers.get(node.input[place]) if not node.domain else None
        if layer is None or layer.domain or self.uses[node.input[place]] != 1 or len(node.output) != 1:
            return None
        rank, axis = len(self.shapes.get(layer.input[0], ())), None
        if layer.op_type == "Conv":
            axis = 0
        elif layer.op_type == "ConvTranspose":
            axis = 1 if attribute(layer, "group", 1) == 1 else None
        elif layer.op_type == "MatMul":
            axis = 1 if rank == 2 else None
        elif layer.op_type == "Gemm" and attribute(layer, "alpha", 1.0) == attribute(layer, "beta", 1.0) == 1.0:
            axis = 0 if attribute(layer, "transB", 0) else 1
        return None if axis is None or not {*layer.input[1:]} <= {*self.stored, ""} else (layer, axis)

    def take_over(
        self, layer: NodeProto, axis: int, node: NodeProto, factors: Array, offset: Array, mean: Array | float = 0
    ) -> bool:
        """Gives a layer the factors and offsets of a node behind the subtraction of a mean, and its result's name."""
        weights = self.array(layer.input[1])
        biased = len(layer.input) > 2 and layer.input[2]
        bias = self.array(layer.input[2]).reshape(-1) if biased else np.zeros(1, np.float32)
        if weights.ndim < 2 or weights.shape[axis] != len(factors) or bias.size not in (1, len(factors)):
            return False
        shape = [-1 if at == axis else 1 for at in range(weights.ndim)]
        name, new = node.output[0], (bias - mean) * factors + offset
        layer.input[1:] = [self.store(f"{name}/weights", weights * factors.reshape(shape))]
        if biased or new.any():
            layer.input.append(self.store(f"{name}/bias", new))
            layer.op_type = "Gemm" if layer.op_type == "MatMul" else layer.op_type  # which has no bias
        layer.output[0], self.makers[name] = name, layer
        return True

    def store(self, name: str, values: Array) -> str:
        tensor = numpy_helper.from_array(np.ascontiguousarray(values, np.float32), name)
        self.graph.initializer.append(tensor)
        self.stored[name] = tensor
        return name

    def without(self, nodes: Sequence[NodeProto]) -> ModelProto:
        """Returns the graph without nodes that layers have taken over, and what they alone read."""
        gone = {id(node) for node in nodes}
        return with_nodes(self.model, [node for node in self.graph.node if id(node) not in gone])


def with_folded_norms(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with batch normalisations in the layers before them, and how many."""
    at, folded = _Layers(model), list[NodeProto]()
    for norm in at.graph.node:
        before = at.before(norm) if norm.op_type == "BatchNormalization" else None
        if before is None or attribute(norm, "training_mode", 0) or not {*norm.input[1:]} <= at.stored.keys():
            continue
        scale, offset, mean, variance = (at.array(name) for name in norm.input[1:5])
        # In the order and precision of every exporter, so that a model has one fingerprint.
        factors = scale / np.sqrt(variance + np.float32(attribute(norm, "epsilon", _EPSILON)))
        if at.take_over(*before, norm, factors, offset, mean):
            folded.append(norm)
    return at.without(folded), len(folded)


def with_folded_constants(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with factors and offsets of channels in the layers before them, and how many."""
    at, folded = _Layers(model), list[NodeProto]()
    for node in at.graph.node:
        if node.op_type not in _BY_CONSTANTS or sum(name in at.stored for name in node.input) != 1:
            continue
        place = int(node.input[0] in at.stored)
        before = at.before(node, place) if not (place and node.op_type == "Div") else None
        if before is None or at.uses[before[0].input[1]] != 1:
            continue
        layer, axis = before
        count, values = at.stored[layer.input[1]].dims[axis], _by_channel(at, node, place, layer)
        if values is None:
            continue
        values, ones = np.broadcast_to(values, count), np.ones(count, np.float32)
        if node.op_type in ("Mul", "Div"):
            factors, offset = values if node.op_type == "Mul" else 1 / values, np.zeros(count, np.float32)
        else:
            negative = node.op_type == "Sub"
            factors, offset = -ones if negative and place else ones, -values if negative and not place else values
        if np.isfinite(factors).all() and at.take_over(layer, axis, node, factors, offset):
            folded.append(node)
    return at.without(folded), len(folded)


def _by_channel(at: _Layers, node: NodeProto, place: int, layer: NodeProto) -> Array | None:
    """Returns what a node multiplies or adds to each channel, or None where it is not one number for each."""
    values = at.array(node.input[1 - place])
    shape = at.shapes.get(node.output[0], ())
    if not shape or shape != at.shapes.get(node.input[place]) or values.size != max(values.shape, default=1):
        return None
    axis = len(shape) - 1 if layer.op_type in ("Gemm", "MatMul") else 1
    aligned = (1,) * (len(shape) - values.ndim) + values.shape
    return values.reshape(-1) if values.size == 1 or aligned[axis] == values.size else None


def with_plain_dense(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model whose dense layers have their factors in their constants, and how many had others than one."""
    at, changed = _Layers(model), 0
    for node in at.graph.node:
        operands = {"alpha": 1, "beta": 2} if node.op_type == "Gemm" and not node.domain else {}
        factors = {name: factor for name in operands if (factor := attribute(node, name, 1.0)) != 1}
        places = {name: operands[name] for name in factors if "".join(node.input[operands[name] :][:1])}
        if not factors or not {node.input[place] for place in places.values()} <= at.stored.keys():
            continue
        for name, place in places.items():
            values = at.array(node.input[place]) * np.float32(factors[name])
            node.input[place] = at.store(f"{node.output[0]}/{name}", values)
        plain = [item for item in node.attribute if item.name not in operands]
        del node.attribute[:]
        node.attribute.extend(plain)
        changed += 1
    return at.without([]), changed


def with_dense_layers(model: ModelProto) -> tuple[ModelProto, int]:
    """Returns the model with products and biases as layers, and how many."""
    at, written = _Layers(model), dict[int, list[NodeProto]]()
    for node in at.graph.node:
        place = int(node.input[0] in at.stored) if node.op_type == "Add" else 0
        product = at.makers.get(node.input[place]) if node.op_type == "Add" and not node.domain else None
        if product is None or product.op_type != "MatMul" or at.uses[node.input[place]] != 1:
            continue
        weights, taken = at.stored.get(product.input[1]), at.shapes.get(product.input[0], ())
        bias = _by_channel(at, node, place, product) if node.input[1 - place] in at.stored else None
        if bias is not None and weights is not None and len(weights.dims) == 2 and len(taken) > 1:
            written |= {id(product): [], id(node): _dense(at, product, node, bias)}
    nodes = [each for node in at.graph.node for each in written.get(id(node), [node])]
    return with_nodes(at.model, nodes), len(written) // 2


def _dense(at: _Layers, product: NodeProto, add: NodeProto, bias: Array) -> list[NodeProto]:
    """Returns a product and the bias behind it as one layer, on rows where it has more axes.

    Rows are turned behind the layer, where that is part of other moves, and not before it.
    """
    name, source, weights = add.output[0], product.input[0], product.input[1]
    turn = at.makers.get(source)
    order = numbers(turn, "perm") if turn is not None and turn.op_type == "Transpose" else ()
    turned = bool(order) and order[-1] == len(order) - 1 and at.uses[source] == 1
    if turn is not None and turned:
        source = turn.input[0]
    taken, size = at.shapes[source], at.shapes[name][-1]
    offset = at.store(f"{name}/bias", np.broadcast_to(bias, [size]))
    if len(taken) == 2:
        return [helper.make_node("Gemm", [source, weights, offset], [name], name=add.name)]
    rows, back, whole = f"{name}/rows_shape", f"{name}/shape", f"{name}/whole" if turned else name
    for target, shape in ((rows, (math.prod(taken[:-1]), taken[-1])), (back, (*taken[:-1], size))):
        at.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), target))
    count = math.prod(taken[:-1])
    inner = {"rows": (count, taken[-1]), "dense": (count, size), **({"whole": (*taken[:-1], size)} if turned else {})}
    for part, dims in inner.items():
        at.graph.value_info.append(helper.make_tensor_value_info(f"{name}/{part}", TensorProto.FLOAT, dims))
    nodes = [
        helper.make_node("Reshape", [source, rows], [f"{name}/rows"]),
        helper.make_node("Gemm", [f"{name}/rows", weights, offset], [f"{name}/dense"], name=add.name),
        helper.make_node("Reshape", [f"{name}/dense", back], [whole]),
    ]
    return [*nodes, helper.make_node("Transpose", [whole], [name], perm=order)] if turned else nodes


def _has(*kinds: str) -> Callable[[ModelProto], str]:
    return lambda model: "" if any(node.op_type in kinds for node in model.graph.node) else "it has none"


BATCH_NORM = Pass(
    "batch-norm",
    "a batch normalisation is folded into the layer before it",
    with_folded_norms,
    requires=_has("BatchNormalization"),
)
DENSE = Pass(
    "dense", "a product with constants and the bias behind it are one layer", with_dense_layers, requires=_has("MatMul")
)
PLAIN = Pass(
    "plain-dense", "factors of a dense layer go into its weights and bias", with_plain_dense, requires=_has("Gemm")
)
CONSTANTS = Pass(
    "layer-constants",
    "factors and offsets of channels are folded into the layer before them",
    with_folded_constants,
    requires=_has(*_BY_CONSTANTS),
)

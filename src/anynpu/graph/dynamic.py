"""Files whose scales are found at run time (`quantize_dynamic` of onnxruntime, files for browsers), as float models.

The weights are what their integers stand for, and activations are not rounded: DynamicQuantizeLinear hands on what it
reads, with a scale of one, and products of integers are products of real numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from anynpu.graph.fold import constant_value, copied, copied_without, with_nodes
from anynpu.tensors import Array

PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
"""Products of integers, and those of real numbers."""
FUSED = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM")
"""What ONNX Runtime has fused of a product, its scales and its bias, and a recurrent layer with rounded weights."""
_MOVES = frozenset(("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Gather", "Slice", "Cast"))


def in_floats(model: ModelProto) -> tuple[ModelProto, tuple[str, ...]]:
    """Returns a dynamically quantised model in floating point, and the sentence that says so; any other as it is."""
    if not {node.op_type for node in model.graph.node} & {*PRODUCTS, *FUSED}:
        return model, ()
    reads = Counter(name for node in model.graph.node for name in node.input)
    at = _Written({item.name: numpy_helper.to_array(item) for item in model.graph.initializer}, reads)
    for node in model.graph.node:
        at.write(copied(node))
    if at.left:
        return model, ()
    names = [value.name for value in model.graph.output]
    at.nodes += [helper.make_node("Identity", [at.same[name]], [name]) for name in names if name in at.same]
    stored = copied_without(model, ("node", "initializer", "value_info"))
    stored.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in at.constants.items())
    return with_nodes(stored, at.nodes), (
        "the file finds scales at run time: the float model that counts has its weights and rounds no activation",
    )


class _Written:
    """The float model as it is written, node by node."""

    def __init__(self, constants: Mapping[str, Array], reads: Mapping[str, int]) -> None:
        self.constants, self.reads = dict(constants), reads
        self.nodes: list[NodeProto] = []
        self.same: dict[str, str] = {}
        self.real: set[str] = set()
        self.products: dict[str, NodeProto] = {}
        self.steps: set[str] = set()
        """Scales that are found at run time, and their products with stored ones."""
        self.unrounded: set[str] = set()
        """Biases as multiples of such a scale."""
        self.left = False
        """Whether something computes on integers still."""

    def write(self, node: NodeProto) -> None:
        """Adds what stands for a node."""
        inputs = [self.same.get(name, name) for name in node.input]
        del node.input[:]
        node.input.extend(inputs)
        value = constant_value(node) if node.op_type == "Constant" else None
        if value is not None:
            self.constants[node.output[0]] = value
        elif node.op_type == "DynamicQuantizeLinear":
            values, scale, zero = node.output
            self.same[values] = node.input[0]
            self.real.add(node.input[0])
            self.constants |= {scale: np.asarray(1, np.float32), zero: np.asarray(0, np.uint8)}
            self.steps.add(scale)
        elif node.op_type in PRODUCTS:
            self._product(node)
        elif node.op_type == "DequantizeLinear" and node.input[0] in self.real:
            self.same[node.output[0]] = node.input[0]
        elif node.op_type == "DequantizeLinear" and self._table(node):
            return
        elif node.op_type == "Mul" and all(name in self.constants for name in node.input):
            first, second = (self.constants[name] for name in node.input)
            self.constants[node.output[0]] = np.asarray(first * second)
            self.steps |= {*node.output} if self.steps & {*node.input} else set()
        elif self._bias(node):
            return
        elif node.op_type in FUSED:
            self._fused(node)
        elif node.op_type == "Mul" and self._scaled(node):
            return
        else:
            if node.op_type in _MOVES and node.input[0] in self.real | {*self.products}:
                self.real.add(node.output[0])
                if node.op_type == "Cast" and node.input[0] in self.products:
                    self.products[node.output[0]] = self.products[node.input[0]]
                    self.same[node.output[0]] = node.input[0]
                    return
            self.nodes.append(node)

    def _product(self, node: NodeProto) -> None:
        """Adds a product of real numbers; stored integers are taken from their zero point."""
        names, zeros = list(node.input[:2]), [*node.input[2:], "", ""][:2]
        for place, (name, zero) in enumerate(zip(names, zeros, strict=True)):
            array = self.constants.get(name)
            if array is None:
                self.left |= name not in self.real
                continue
            offset = self.constants.get(zero, np.asarray(0)).astype(np.float32)
            if node.op_type == "ConvInteger" and offset.size > 1:
                offset = offset.reshape(-1, *(1 for _ in array.shape[1:]))
            names[place] = f"{node.output[0]}/real{place}"
            self.constants[names[place]] = array.astype(np.float32) - offset
        product = helper.make_node(PRODUCTS[node.op_type], names, list(node.output), name=node.name)
        product.attribute.extend(node.attribute)
        self.nodes.append(product)
        self.products[node.output[0]] = product

    def _bias(self, node: NodeProto) -> bool:
        """Takes in a bias that is brought to the scale of its product at run time, and adds it there unrounded."""
        if node.op_type == "Div" and node.input[1] in self.steps and node.input[0] in self.constants:
            array, step = (self.constants[name] for name in node.input)
            self.constants[node.output[0]] = np.asarray(array / step, np.float32)
            self.unrounded.add(node.output[0])
        elif node.op_type in ("Floor", "Round", "Cast", "Reshape", "Unsqueeze") and node.input[0] in self.unrounded:
            self.constants[node.output[0]] = self.constants[node.input[0]].reshape(-1)
            self.unrounded.add(node.output[0])
        elif node.op_type == "Add" and self.unrounded & {*node.input} and {*node.input} & {*self.products}:
            [bias], [name] = self.unrounded & {*node.input}, {*node.input} & {*self.products}
            product = self.products[node.output[0]] = self.products[name]
            product.input.append(bias)
            self.same[node.output[0]] = name
            self.real.add(node.output[0])
        else:
            return False
        return True

    def _stored(self, weights: str, scale: str, zero: str, along: int = -1) -> Array | None:
        """Returns the real numbers of stored integers with one scale, or one for each slice from an axis on."""
        array, step = self.constants.get(weights), self.constants.get(scale)
        offset = self.constants.get(zero, np.asarray(0)) if zero else np.asarray(0)
        if array is None or step is None:
            self.left = True
            return None
        if along == 0:
            step, offset = (each.reshape(*each.shape, *(1,) * (array.ndim - each.ndim)) for each in (step, offset))
        return np.asarray((array.astype(np.float32) - offset.astype(np.float32)) * step, np.float32)

    def _fused(self, node: NodeProto) -> None:
        """Adds a product or a recurrent layer of real numbers where ONNX Runtime has fused its quantisation in."""
        names = [*node.input, *[""] * 12]
        if node.op_type == "DynamicQuantizeLSTM":
            # Weights lie turned: (directions, inputs, gates); a scale is for a direction, or for each of its gates
            for place in (1, 2):
                scale, zero = names[6 + 2 * place : 8 + 2 * place]
                shaped = self.constants.get(scale, np.asarray(0))
                if shaped.ndim > 1:
                    self.constants |= {each: self.constants[each][:, np.newaxis] for each in (scale, zero) if each}
                array = self._stored(names[place], scale, zero, along=0)
                names[place] = f"{node.output[0]}/real{place}"
                if array is not None:
                    self.constants[names[place]] = np.ascontiguousarray(array.swapaxes(1, 2))
            layer = helper.make_node("LSTM", names[:8], list(node.output), name=node.name)
            layer.attribute.extend(node.attribute)
            self.nodes.append(layer)
            return
        dynamic = node.op_type == "DynamicQuantizeMatMul"
        scale, zero, bias = names[2:5] if dynamic else (names[3], names[5], names[6])
        array = self._stored(names[1], scale, zero)
        self.left |= not dynamic and names[0] not in self.real
        weights = f"{node.output[0]}/real1"
        if array is not None:
            self.constants[weights] = array
        product = f"{node.output[0]}/product" if bias else node.output[0]
        self.nodes.append(helper.make_node("MatMul", [names[0], weights], [product], name=node.name))
        if bias:
            self.nodes.append(helper.make_node("Add", [product, bias], list(node.output), name=f"{node.name}/bias"))

    def _scaled(self, node: NodeProto) -> bool:
        """Puts the scale behind a product into its stored weights, where it is one number or one for each column."""
        name = next((name for name in node.input if name in self.products), "")
        factor = next((self.constants[each] for each in node.input if each in self.constants), None)
        if not name or factor is None:
            return False
        product = self.products[name]
        weights = self.constants.get(product.input[1])
        along = 0 if product.op_type == "Conv" else -1
        alone = all(self.reads[each] == 1 for each in (name, *(new for new, old in self.same.items() if old == name)))
        if weights is None or not alone or factor.size not in (1, weights.shape[along]):
            return False
        shape = [1] * weights.ndim
        shape[along] = factor.size
        stored = f"{product.input[1]}/scaled"
        self.constants[stored] = np.asarray(weights * factor.reshape(shape), np.float32)
        product.input[1] = stored
        if len(product.input) > 2:
            scaled = f"{product.input[2]}/scaled"
            self.constants[scaled] = np.asarray(self.constants[product.input[2]] * factor.reshape(-1), np.float32)
            product.input[2] = scaled
        product.output[0] = node.output[0]
        del self.products[name]
        return True

    def _table(self, node: NodeProto) -> bool:
        """Reads words from a table of real numbers where rows of a stored one are made real."""
        maker = next((each for each in self.nodes if each.output[0] == node.input[0]), None)
        arrays = [self.constants.get(name) for name in (maker.input[0] if maker else "", *node.input[1:])]
        if maker is None or maker.op_type != "Gather" or any(each is None or each.size == 0 for each in arrays):
            return False
        table, scale, *zero = (np.asarray(each) for each in arrays)
        if scale.size > 1 or self.reads[node.input[0]] > 1:
            return False
        offset = zero[0].astype(np.float32) if zero else np.float32(0)
        stored = f"{maker.input[0]}/real"
        self.constants[stored] = np.asarray((table.astype(np.float32) - offset) * scale, np.float32)
        maker.input[0] = stored
        maker.output[0] = node.output[0]
        return True

"""Makes the channels around normalisations equally loud in a float graph, so that eight bits serve all of them.

What a normalisation gives is smoothed: its scale and bias take the factors, the matrix products behind it take them
back in their weights. The results of products that go into the sum before a normalisation are lifted: each of their
channels has a weight scale of its own, so that costs nothing. Products with the inverse factors stand before the sums,
where the graph computes in 16 bits anyway (`widen.py`). Gates between convolutions are levelled (`gates.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anynpu.lowering.gates import find_gates, level_gates
from anynpu.lowering.graph import Graph, Operator, Tensor, pruned
from anynpu.lowering.options import Mul
from anynpu.lowering.read import from_bytes
from anynpu.lowering.widen import wide_operators
from anynpu.lowering.write import to_bytes
from anynpu.quantize.equalize import ChannelPeaks, Floats, channel_factors, smoothing_factors
from anynpu.tensors import Array

Observe = Callable[[Sequence[str]], ChannelPeaks]


@dataclass(frozen=True)
class _Norm:
    """What a normalisation gives: the operators that scale and move it, and the products behind it."""

    result: str
    constants: tuple[str, ...]
    moved: tuple[str, ...]
    products: tuple[Operator, ...]
    others: tuple[Operator, ...]


@dataclass(frozen=True)
class _Branch:
    """A product whose result goes into a sum before a normalisation, directly or behind a RESHAPE."""

    product: Operator
    moved: tuple[str, ...]
    result: str
    sum: Operator


def smoothed(content: bytes, observe: Observe) -> tuple[bytes, dict[str, list[float]]]:
    """Returns a float .tflite file that computes the same with smoother channels, and the factors by tensor.

    `observe` gives the largest magnitudes of the channels of some tensors over the samples.
    """
    work = _Smoother(from_bytes(content))
    norms, branches, gates = work.norms(), work.branches(), find_gates(work.source)
    observed = [*(norm.result for norm in norms), *(branch.product.outputs[0] for branch in branches)]
    observed += [gate.result for gate in gates]
    if not observed:
        return content, {}
    peaks = observe(observed)
    for branch in branches:
        work.lift(branch, peaks.peak(branch.product.outputs[0]))
    for norm in norms:
        work.smooth(norm, peaks.peak(norm.result))
    graph, levelled = level_gates(work.graph(), gates, peaks)
    changed = work.factors | levelled
    return (to_bytes(graph), changed) if changed else (content, {})


class _Smoother:
    """The graph as it changes."""

    def __init__(self, source: Graph) -> None:
        self.source, self.tensors = source, dict(source.tensors)
        self.readers = source.readers()
        self.wide = wide_operators(source, {})
        self.factors: dict[str, list[float]] = {}
        self.swapped: dict[tuple[str, str], Operator] = {}
        """Products that stand between a tensor and one of its readers."""

    def norms(self) -> list[_Norm]:
        """Returns what normalisations give and products with stored weights read."""
        found = []
        for root in self.source.operators:
            users = self.readers.get(root.outputs[0], []) if root.kind == "RSQRT" else []
            norm = self._norm(users[0]) if len(users) == 1 and users[0].kind == "MUL" else None
            if norm is not None and norm.products and norm.result not in self.source.outputs:
                found.append(norm)
        return found

    def _norm(self, operator: Operator) -> _Norm | None:
        constants: list[str] = []
        channels = self.source.tensors[operator.outputs[0]].shape[-1]
        while True:
            users = self.readers.get(operator.outputs[0], [])
            wanted = ("ADD",) if constants else ("MUL",)
            stored = [n for n in users[0].inputs if self._own(n)] if len(users) == 1 else []
            whole = len(stored) == 1 and self.source.tensors[stored[0]].size == channels
            if len(constants) == 2 or not whole or users[0].kind not in wanted or users[0].activation != "NONE":
                break
            constants += stored
            operator = users[0]
        if not constants:
            return None
        result, products, moved, others = operator.outputs[0], list[Operator](), list[str](), list[Operator]()
        for user in self.readers.get(result, []):
            behind = self.readers.get(user.outputs[0], []) if user.kind == "RESHAPE" else []
            if self._takes(user, result):
                products.append(user)
            elif behind and all(self._takes(each, user.outputs[0]) for each in behind):
                moved.append(user.outputs[0])
                products += behind
            else:
                others.append(user)
        same = all(self.source.tensors[p.inputs[1]].shape[-1] == channels for p in products)
        return _Norm(result, tuple(constants), tuple(moved), tuple(products), tuple(others)) if same else None

    def _own(self, name: str) -> bool:
        """Tells whether a tensor is stored and read once."""
        return bool(name) and self.source.constant(name) is not None and len(self.readers[name]) == 1

    def _takes(self, operator: Operator, name: str) -> bool:
        """Tells whether an operator is a product of a tensor's channels with weights of its own."""
        return operator.kind == "FULLY_CONNECTED" and operator.inputs[0] == name and self._own(operator.inputs[1])

    def branches(self) -> list[_Branch]:
        """Returns the products whose results go into a sum that is computed in 16 bits, and nowhere else."""
        found = []
        for product in self.source.operators:
            if product.kind != "FULLY_CONNECTED" or product.activation != "NONE":
                continue
            own = [name for name in product.inputs[1:] if name]
            name, moved = product.outputs[0], list[str]()
            users = self.readers.get(name, [])
            if len(users) == 1 and users[0].kind == "RESHAPE" and name not in self.source.outputs:
                kept = self.source.tensors[users[0].outputs[0]].shape[-1] == self.source.tensors[name].shape[-1]
                name, users = users[0].outputs[0], self.readers.get(users[0].outputs[0], []) if kept else []
                moved.append(name)
            sums = len(users) == 1 and users[0].kind == "ADD" and users[0].outputs[0] in self.wide
            if sums and all(map(self._own, own)) and name not in self.source.outputs:
                found.append(_Branch(product, tuple(moved), name, users[0]))
        return found

    def lift(self, branch: _Branch, peak: Floats) -> None:
        """Lifts the quiet channels of a product to its loudest, and lowers them again before the sum."""
        factors = channel_factors(peak, 1.0)
        self._scale(branch.product.inputs[1], factors[:, np.newaxis])
        for bias in branch.product.inputs[2:3]:
            if bias:
                self._scale(bias, factors)
        self._restore(branch.result, factors, (branch.sum,))
        self.factors |= {name: factors.tolist() for name in (branch.product.outputs[0], *branch.moved)}

    def smooth(self, norm: _Norm, peak: Floats) -> None:
        """Shares the loudness of what a normalisation gives with the weights behind it."""
        weights = np.max([np.abs(self._values(p.inputs[1])).max(axis=0) for p in norm.products], axis=0)
        factors = smoothing_factors(peak, weights)
        for name in norm.constants:
            self._scale(name, factors.reshape(self._values(name).shape))
        for product in norm.products:
            self._scale(product.inputs[1], 1 / factors)
        self._restore(norm.result, factors, norm.others)
        self.factors |= {name: factors.tolist() for name in (norm.result, *norm.moved)}

    def _values(self, name: str) -> Array:
        data = self.tensors[name].data
        assert data is not None
        return data

    def _scale(self, name: str, factors: Array) -> None:
        values = np.asarray(self._values(name) * factors, np.float32)
        self.tensors[name] = replace(self.tensors[name], data=values)

    def _restore(self, name: str, factors: Floats, readers: Sequence[Operator]) -> None:
        """Puts a product with the inverse factors between a tensor and some of its readers."""
        tensor = self.tensors[name]
        inverse = (1 / factors).astype(np.float32).reshape((1,) * (len(tensor.shape) - 1) + (-1,))
        restored = Operator("MUL", (name, f"{name}/inverse"), (f"{name}/restored",), Mul())
        self.tensors[f"{name}/inverse"] = Tensor(f"{name}/inverse", inverse.shape, "float32", inverse)
        self.tensors[f"{name}/restored"] = replace(tensor, name=f"{name}/restored")
        for reader in readers:
            self.swapped[reader.outputs[0], name] = restored

    def graph(self) -> Graph:
        """Returns the changed graph; what is restored stands right before its first reader."""
        operators: list[Operator] = []
        written: set[str] = set()
        for operator in self.source.operators:
            inputs = []
            for name in operator.inputs:
                restored = self.swapped.get((operator.outputs[0], name))
                if restored is not None and restored.outputs[0] not in written:
                    operators.append(restored)
                    written.add(restored.outputs[0])
                inputs.append(name if restored is None else restored.outputs[0])
            operators.append(replace(operator, inputs=tuple(inputs)))
        return pruned(operators, self.tensors, self.source.inputs, self.source.outputs)

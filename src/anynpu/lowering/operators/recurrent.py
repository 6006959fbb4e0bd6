"""Recurrent nets, unrolled: one product for the inputs of all steps, then a few operators for each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from anynpu.lowering.lower import Lowering, plain
from anynpu.lowering.operators.linear import dense
from anynpu.lowering.operators.movement import joined, sliced
from anynpu.lowering.options import Add, LeakyRelu, Mul, Sub
from anynpu.lowering.table import Node, Refused, operator, required
from anynpu.tensors import Array

MOST_STEPS = 512
"""Beyond this an unrolled net has more operators than its weights have numbers."""
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_KINDS = {"Sigmoid": "LOGISTIC", "Tanh": "TANH", "Relu": "RELU"}
# Functions with numbers of their own: what these are where the node states none.
_NUMBERS = {"HardSigmoid": (0.2, 0.5), "LeakyRelu": (0.01,)}


@dataclass(frozen=True)
class _State:
    """What a step hands to the next: None stands for zeros."""

    hidden: str | None
    cell: str | None


class _Direction:
    """One direction of a recurrent layer: its weights, and what one step of it is."""

    def __init__(self, at: Lowering, node: Node, number: int) -> None:
        self.at, self.node, self.number = at, node, number
        self.functions = _functions(node, number)
        self.clip, self.coupled = node.get("clip"), bool(node.get("input_forget", 0))
        peepholes = required(at.constant(node.input(7)), "the peepholes") if node.input(7) else None
        self.peepholes = peepholes[number] if peepholes is not None and np.any(peepholes) else None
        self.size = int(node.attributes["hidden_size"])
        self.weights = required(at.constant(node.input(1)), "the weights")[number]
        self.recurrence = required(at.constant(node.input(2)), "the recurrence")[number]
        gates = _GATES[node.op] * self.size
        none = np.zeros((number + 1, 2 * gates), np.float32)
        both = required(at.constant(node.input(3)), "the bias") if node.input(3) else none
        self.bias, self.own_bias = both[number, :gates], both[number, gates:]
        self.linear = bool(node.get("linear_before_reset", 0))

    def apply(self, place: int, tensor: str) -> str:
        """Returns one of the functions of a tensor; a clip limits gates first, as in ONNX Runtime, and no cell."""
        at, shape, (name, *numbers) = self.at, self.at.tensors[tensor].shape, self.functions[place]
        stem = f"{self.node.name}/{name.lower()}"
        if self.clip is not None and place < 2:
            for kind, limit in (("MAXIMUM", -self.clip), ("MINIMUM", self.clip)):
                tensor = at.emit(kind, (tensor, at.value("limit", float(limit))), shape, stem=stem)
        if name == "LeakyRelu":
            return at.emit("LEAKY_RELU", (tensor,), shape, LeakyRelu(numbers[0]), stem)
        if name == "HardSigmoid":
            scaled = at.emit("MUL", (tensor, at.value("slope", 6 * numbers[0])), shape, Mul(), stem)
            moved = at.emit("ADD", (scaled, at.value("offset", 6 * numbers[1])), shape, Add("RELU6"), stem)
            return at.emit("MUL", (moved, at.value("sixth", 1 / 6)), shape, Mul(), stem)
        return at.emit(_KINDS[name], (tensor,), shape, stem=stem)

    def seen(self, gate: str, number: int, cell: str | None) -> str:
        """Returns a gate that sees the cell through its peephole."""
        if self.peepholes is None or cell is None:
            return gate
        weights = self.peepholes[number * self.size : (number + 1) * self.size].reshape(1, -1)
        return self.total(gate, self.product(cell, self.at.store(weights, f"{self.node.name}/peephole"), "peephole"))

    def product(self, first: str, second: str, stem: str = "product") -> str:
        name = f"{self.node.name}/{stem}"
        return self.at.emit("MUL", (first, second), self.at.tensors[first].shape, Mul(), name)

    def total(self, first: str, second: str, stem: str = "sum") -> str:
        name = f"{self.node.name}/{stem}"
        return self.at.emit("ADD", (first, second), self.at.tensors[first].shape, Add(), name)

    def part(self, tensor: str, start: int, count: int) -> str:
        """Returns some of the gates of a step."""
        rows = self.at.tensors[tensor].shape[0]
        return sliced(self.at, tensor, [0, start * self.size], [rows, count * self.size], f"{self.node.name}/gate")

    def recur(self, hidden: str | None, tensor: str, rows: slice = slice(None)) -> str:
        """Returns the gates of the inputs plus those of the hidden state."""
        if hidden is None:
            return tensor
        stem = f"{self.node.name}/recurrence"
        return self.total(tensor, dense(self.at, hidden, self.recurrence[rows], None, stem))

    def input_bias(self) -> Array:
        """Returns what is added to the product of the inputs: both biases, where the second is not inside a gate."""
        own = self.own_bias.copy()
        if self.node.op == "GRU" and self.linear:
            own[2 * self.size :] = 0
        return np.asarray(self.bias + own)

    def lstm(self, gates: str, state: _State) -> _State:
        inner = self.recur(state.hidden, gates)
        if self.peepholes is not None or self.coupled:
            return self.seeing(inner, state)
        switched = self.apply(0, self.part(inner, 0, 3))
        chosen, shown, kept = (self.part(switched, number, 1) for number in range(3))
        cell = self.product(chosen, self.apply(1, self.part(inner, 3, 1)), "new")
        if state.cell is not None:
            cell = self.total(cell, self.product(kept, state.cell, "kept"), "cell")
        return _State(self.product(shown, self.apply(2, cell), "hidden"), cell)

    def seeing(self, inner: str, state: _State) -> _State:
        """Returns the next state of an LSTM whose gates see its cell, or keep what the new value leaves."""
        chosen = self.apply(0, self.seen(self.part(inner, 0, 1), 0, state.cell))
        cell = self.product(chosen, self.apply(1, self.part(inner, 3, 1)), "new")
        if state.cell is not None:
            one, shape = self.at.value("one", 1.0), self.at.tensors[chosen].shape
            if self.coupled:
                kept = self.at.emit("SUB", (one, chosen), shape, Sub(), f"{self.node.name}/rest")
            else:
                kept = self.apply(0, self.seen(self.part(inner, 2, 1), 2, state.cell))
            cell = self.total(cell, self.product(kept, state.cell, "kept"), "cell")
        shown = self.apply(0, self.seen(self.part(inner, 1, 1), 1, cell))
        return _State(self.product(shown, self.apply(2, cell), "hidden"), cell)

    def gru(self, gates: str, state: _State) -> _State:
        size, hidden = self.size, state.hidden
        switched = self.apply(0, self.recur(hidden, self.part(gates, 0, 2), slice(0, 2 * size)))
        kept, reset = self.part(switched, 0, 1), self.part(switched, 1, 1)
        new, last = self.part(gates, 2, 1), slice(2 * size, None)
        stem = f"{self.node.name}/recurrence"
        if self.linear:
            offset = self.own_bias[last]
            if hidden is not None:
                new = self.total(new, self.product(reset, dense(self.at, hidden, self.recurrence[last], offset, stem)))
            elif np.any(offset):
                new = self.total(new, self.product(reset, self.at.store(offset.reshape(1, -1), "offset")))
        elif hidden is not None:
            new = self.recur(self.product(reset, hidden), new, last)
        new = self.apply(1, new)
        # (1 - z) * n + z * h = n + z * (h - n)
        shape = self.at.tensors[new].shape
        if hidden is None:
            return _State(self.at.emit("SUB", (new, self.product(kept, new)), shape, Sub(), stem), None)
        apart = self.at.emit("SUB", (hidden, new), shape, Sub(), f"{self.node.name}/apart")
        return _State(self.total(new, self.product(kept, apart), "hidden"), None)

    def rnn(self, gates: str, state: _State) -> _State:
        return _State(self.apply(0, self.recur(state.hidden, gates)), None)


@operator("LSTM", "GRU", "RNN")
def recurrent(at: Lowering, node: Node) -> None:
    """Unrolled: FULLY_CONNECTED, LOGISTIC, TANH, MUL and ADD for each step; a state of zeros costs nothing."""
    if int(node.get("layout", 0)):
        raise Refused("layout 1")
    steps, batch, width = at.shape(node.input(0))
    if steps > MOST_STEPS:
        raise Refused(f"{steps} steps: unrolled are at most {MOST_STEPS}")
    length = _length(at, node, steps)
    rows = at.stored(node.input(0), plain(3))
    direction = node.get("direction", "forward")
    ways = [False, True] if direction == "bidirectional" else [direction == "reverse"]
    outputs, hiddens, cells = [], [], []
    for number, backwards in enumerate(ways):
        way = _Direction(at, node, number)
        flat = at.reshape(rows, (steps * batch, width))
        order = range(length - 1, -1, -1) if backwards else range(length)
        gates = dense(at, flat, way.weights, way.input_bias(), f"{node.name}/inputs")
        wide = at.tensors[gates].shape[-1]
        state = _State(_initial(at, node.input(5), number), _initial(at, node.input(6), number))
        advance: Callable[[str, _State], _State] = {"LSTM": way.lstm, "GRU": way.gru, "RNN": way.rnn}[node.op]
        states = []
        for step in order:
            state = advance(sliced(at, gates, [step * batch, 0], [batch, wide], f"{node.name}/step"), state)
            states.append(state)
        ordered = states[::-1] if backwards else states
        last = states[-1]
        rest = [at.store(np.zeros((batch, way.size), np.float32), f"{node.name}/rest")] * (steps - length)
        outputs.append([*(state.hidden or "" for state in ordered), *rest])
        hiddens.append(last.hidden or "")
        cells.append(last.cell or "")
    _give(at, node, outputs, hiddens, cells, (steps, batch))


def _length(at: Lowering, node: Node, steps: int) -> int:
    """Returns how many steps are computed; results behind them are zeros."""
    if not node.input(4):
        return steps
    lengths = required(at.constant(node.input(4)), "the length of each sequence")
    if np.any(lengths != lengths[0]) or not 0 < int(lengths[0]) <= steps:
        raise Refused("sequences of different lengths")
    return int(lengths[0])


def _functions(node: Node, number: int) -> list[tuple[Any, ...]]:
    """Returns the functions of a direction, each with its numbers; the node lists those of all directions in a row."""
    default = _DEFAULTS[node.op]
    names = [name if isinstance(name, str) else name.decode() for name in node.get("activations", [])]
    stated = [[*node.get("activation_alpha", [])], [*node.get("activation_beta", [])]]
    functions: list[tuple[Any, ...]] = []
    for name in names or default * (number + 1):
        if name not in _KINDS and name not in _NUMBERS:
            raise Refused(f"activation {name}")
        usual = _NUMBERS.get(name, ())
        functions.append((name, *(row.pop(0) if row else each for row, each in zip(stated, usual, strict=False))))
    return functions[number * len(default) : (number + 1) * len(default)]


def _initial(at: Lowering, name: str, number: int) -> str | None:
    """Returns the first state of a direction, None where it is zero."""
    if not name:
        return None
    array = at.constant(name)
    if array is not None:
        return at.store(array[number], name) if np.any(array) else None
    _, batch, size = at.shape(name)
    tensor = at.stored(name, plain(3))
    return at.reshape(sliced(at, tensor, [number, 0, 0], [1, batch, size], name), (batch, size))


def _give(
    at: Lowering, node: Node, outputs: list[list[str]], hiddens: list[str], cells: list[str], shape: tuple[int, int]
) -> None:
    """Gives the hidden states of all steps (steps, ways, batch, size), and the last hidden and cell states."""
    names = [*node.outputs, "", "", ""]
    if names[0] and at.reads[names[0]]:
        steps = [
            joined(
                at, [at.reshape(way[number], (1, 1, *at.tensors[way[number]].shape)) for way in outputs], 1, names[0]
            )
            for number in range(shape[0])
        ]
        at.give(names[0], joined(at, steps, 0, names[0]))
    for name, states in ((names[1], hiddens), (names[2], cells)):
        if name and at.reads[name]:
            parts = [at.reshape(state, (1, *at.tensors[state].shape)) for state in states]
            at.give(name, joined(at, parts, 0, name))

"""A TFLite graph of integers that is executed piece by piece, for biases that are measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from anynpu.lowering.graph import Graph, Operator, pruned
from anynpu.lowering.write import to_bytes
from anynpu.quantize.bias import channel_mean, steps
from anynpu.quantize.measured import Place
from anynpu.quantize.net import Floats
from anynpu.runtime.litert import DELEGATED, lent_tensor, open_interpreter
from anynpu.tensors import Array


@dataclass(frozen=True)
class _Stretch:
    """The operators of a place: its layer, and the function behind it."""

    layer: Operator
    operators: tuple[Operator, ...]
    end: str


class IntegerPieces:
    """A graph of integers between two of its convolutions: what later operators read is kept for each sample.

    A function is executed as the graph has it, in however many operators, and once more with the new bias.
    """

    def __init__(self, graph: Graph, chosen: Sequence[Place], samples: Iterable[dict[str, Array]]) -> None:
        self._graph, self._tensors = graph, dict(graph.tensors)
        self._left = list(graph.operators)
        self._stretches = {place.result: each for place in chosen if (each := self._stretch(place))}
        self.places: Sequence[Place] = [place for place in chosen if place.result in self._stretches]
        self._alive: dict[str, list[Array]] = {name: [] for name in graph.inputs}
        for sample in samples:
            for name, stored in self._alive.items():
                form, dtype = graph.tensors[name].quantization, graph.tensors[name].dtype
                stored.append(sample[name] if form is None else steps(sample[name], form, dtype).astype(dtype))

    def mean(self, place: Place) -> Floats:
        stretch = self._stretches[place.result]
        self._execute(self._behind(stretch.layer.inputs[0]))
        means = self._computed(stretch.operators, [stretch.end], lambda values: channel_mean(values, place.axis))
        mean: Floats = np.mean(means[stretch.end], axis=0)
        form = self._tensors[stretch.end].quantization
        return mean if form is None else (mean - form.zero_point[0]) * form.scale[0]

    def shift(self, place: Place, by: Array) -> None:
        stretch = self._stretches[place.result]
        bias = self._tensors[stretch.layer.inputs[2]]
        assert bias.data is not None
        moved = by if bias.quantization is None else np.rint(by / np.asarray(bias.quantization.scale))
        self._tensors[bias.name] = replace(bias, data=(bias.data + moved).astype(bias.data.dtype))
        self._execute(stretch.operators)

    def _stretch(self, place: Place) -> _Stretch | None:
        """Returns the operators of a place, None where the graph of integers has it in another form."""
        layer = next((each for each in self._graph.operators if place.bias in each.inputs[2:3]), None)
        if layer is None or place.behind not in self._tensors:
            return None
        dependent, computed = [layer], {*layer.outputs}
        for operator in self._graph.operators:
            if computed & {*operator.inputs}:
                computed |= {*operator.outputs}
                dependent.append(operator)
        operators = [each for each in self._behind(place.behind) if each in dependent]
        whole = all(
            name in self._made(operators) or not name or self._tensors[name].data is not None
            for each in operators
            if each is not layer
            for name in each.inputs
        )
        return _Stretch(layer, tuple(operators), place.behind) if whole and layer in operators else None

    def _behind(self, name: str) -> list[Operator]:
        """Returns the operators that are still to be executed before a tensor is there."""
        needed, operators = {name}, list[Operator]()
        for operator in reversed(self._left):
            if needed & {*operator.outputs}:
                needed |= {*operator.inputs}
                operators.append(operator)
        return operators[::-1]

    @staticmethod
    def _made(operators: Collection[Operator]) -> set[str]:
        return {name for operator in operators for name in operator.outputs}

    def _execute(self, operators: Sequence[Operator]) -> None:
        """Executes operators, and forgets what nothing reads any more."""
        self._left = [each for each in self._left if each not in operators]
        later = {name for each in self._left for name in each.inputs}
        self._alive |= self._computed(operators, sorted(self._made(operators) & later), np.array)
        self._alive = {name: values for name, values in self._alive.items() if name in later}

    def _computed(
        self, operators: Sequence[Operator], wanted: Sequence[str], kept: Callable[[Array], Array]
    ) -> dict[str, list[Array]]:
        """Returns what is to be kept of what operators make of all that is alive, for each sample."""
        if not wanted:
            return {}
        read = {name for operator in operators for name in operator.inputs}
        fed = tuple(name for name in self._alive if name in read)
        piece = pruned(operators, self._tensors, fed, tuple(wanted))
        interpreter = open_interpreter(to_bytes(piece), DELEGATED, threads=1)
        inputs = {entry["name"]: entry["index"] for entry in interpreter.get_input_details()}
        outputs = {entry["name"]: entry["index"] for entry in interpreter.get_output_details()}
        rows: dict[str, list[Array]] = {name: [] for name in wanted}
        for at in range(len(next(iter(self._alive.values())))):
            for name in fed:
                interpreter.set_tensor(inputs[name], self._alive[name][at])
            interpreter.invoke()
            for name in wanted:
                rows[name].append(kept(lent_tensor(interpreter, outputs[name])))
        return rows

"""Functions of one tensor: operations that compute element by element from it and from stored numbers.

SiLU, GELU, hard swish or Mish are such functions, however an exporter writes them. Eight-bit hardware computes any of
them in one step, from integers to integers, so nothing is rounded between their operations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from anynpu.quantize.followers import Follower, Gate, Moved, Pointwise, Rows
from anynpu.quantize.net import Net, Operation
from anynpu.tensors import Array


def sources(net: Net, without: Collection[str] = ()) -> dict[str, str]:
    """Returns for each tensor that is a function of another, element by element, that other one; results named in
    `without` are not."""
    origins: dict[str, str] = {}
    for operation in net.operations:
        if operation.function is None or operation.result in without:
            continue
        read = {origins.get(name, name) for name in operation.inputs if name and name not in net.numbers}
        if len(read) == 1 and not any(name in net.stored for name in read):
            origins[operation.result] = read.pop()
    return origins


def leaves(name: str, origins: Mapping[str, str], net: Net) -> bool:
    """Tells whether something reads a tensor other than the function that it belongs to."""
    readers = net.readers.get(name, ())
    outside = any(origins.get(reader.result) != origins.get(name, name) for reader in readers)
    return name in net.outputs or not readers or outside


def functions(net: Net) -> dict[str, tuple[list[str], str]]:
    """Returns the functions with one result: by the tensor that they read, all that they compute, and their result.

    What has 16 bits is left out: an inverse root of next to nothing would take the range of all others.
    """
    origins = sources(net, net.fine)
    members: dict[str, list[str]] = {}
    for name, origin in origins.items():
        members.setdefault(origin, []).append(name)
    ends = {origin: [name for name in names if leaves(name, origins, net)] for origin, names in members.items()}
    return {origin: (names, ends[origin][0]) for origin, names in members.items() if len(ends[origin]) == 1}


def followers(net: Net) -> dict[str, Follower]:
    """Returns the function behind each tensor that nothing else reads."""
    behind: dict[str, Follower] = {}
    for source, (members, end) in functions(net).items():
        if source not in net.outputs and all(reader.result in members for reader in net.readers[source]):
            operations = tuple(net.makers[name] for name in members)
            evaluated = _Evaluated(operations, source, end, net.numbers)
            behind[source] = Pointwise(evaluated, evaluated.steps)
    for operation in net.operations:
        if operation.kind == "softmax" and net.alone(operation.inputs[0]):
            behind[operation.inputs[0]] = Rows(operation.axis)
        if operation.kind == "largest" and net.alone(operation.inputs[0]):
            behind[operation.inputs[0]] = Moved(operation.result)
    behind |= {source: Gate(largest) for source, largest, _ in level_gates(net)}
    for name, follower in list(behind.items()):
        maker = net.makers.get(name)
        # Channels would have another shape before they are moved.
        while not isinstance(follower, Gate) and maker is not None and maker.moves and net.alone(maker.moves):
            behind[maker.moves] = follower if isinstance(follower, Pointwise) else Moved(maker.result)
            maker = net.makers.get(maker.moves)
    return behind


def level_gates(net: Net) -> list[tuple[str, float, Operation]]:
    """Returns the tensors that meet their own sigmoid with a stored factor for each channel between, the largest
    inverse of a factor, and the sigmoid."""
    gates = []
    for sigmoid in net.operations:
        level = net.makers.get(sigmoid.inputs[0]) if sigmoid.kind == "sigmoid" and net.alone(sigmoid.result) else None
        if level is None or level.kind != "multiply" or level.inputs[1] not in net.stored:
            continue
        source, product = level.inputs[0], net.readers[sigmoid.result][0]
        gated = product.kind == "multiply" and {*product.inputs} == {source, sigmoid.result}
        factors = net.constant(level.inputs[1])
        if gated and net.uses[source] == 2 and source not in net.outputs and factors.size > 1 and factors.min() > 0:
            gates.append((source, 1 / float(factors.min()), sigmoid))
    return gates


@dataclass(frozen=True)
class _Evaluated:
    """A function of one tensor, given by its operations."""

    operations: tuple[Operation, ...]
    source: str
    end: str
    numbers: Mapping[str, Array]

    def __call__(self, x: Array) -> Array:
        """Returns the values in the precision of `x`; single precision, in a quarter of the time, where that is all
        there is and nothing on the way overflows."""
        if x.dtype == np.float32 and np.isfinite(result := self._computed(x)).all():
            return result
        return self._computed(np.asarray(x, np.float64))

    def steps(self, x: Array) -> list[Array]:
        """Returns the values of every operation in double precision."""
        values = self._values(np.asarray(x, np.float64))
        return [np.broadcast_to(values[operation.result], np.shape(x)) for operation in self.operations]

    def _computed(self, x: Array) -> Array:
        return np.broadcast_to(self._values(x)[self.end], np.shape(x))

    def _values(self, x: Array) -> dict[str, Array]:
        values = {name: np.asarray(number, x.dtype) for name, number in self.numbers.items()}
        values[self.source] = x
        with np.errstate(all="ignore"):
            for operation in self.operations:
                assert operation.function is not None
                computed = operation.function(*(values.get(name) for name in operation.inputs))
                values[operation.result] = np.asarray(computed, x.dtype)
        return values

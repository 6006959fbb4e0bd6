"""The search over cuts alone, on graphs that nobody executes: it ends in the fault, and takes few runs."""

from __future__ import annotations

import math

import pytest

from anynpu.graph.outline import NodeOutline, Outline
from anynpu.pipeline.bisect.search import Difference, expected_runs, find
from anynpu.pipeline.bisect.shared import Part, SharedGraph, share


def chain(length: int, skips: int = 0) -> SharedGraph:
    """Returns a graph of operators one after the other, each of which also reads the one `skips` before it."""
    nodes = []
    for i in range(length):
        before = (f"t{i - 1}" if i else "x", *([f"t{i - 1 - skips}"] if skips and i > skips else []))
        nodes.append(NodeOutline(f"n{i}", "Conv", before, (f"t{i}",)))
    names = [f"t{i}" for i in range(length)]
    return share(Outline(tuple(nodes), {}), ["x"], [names[-1]], names)


class Faulty:
    """Runs parts of a graph in which some operators are wrong; parts that read `barred` cannot be run."""

    def __init__(self, graph: SharedGraph, wrong: set[str], barred: frozenset[str] = frozenset()) -> None:
        self.graph, self.wrong, self.barred, self.runs = graph, wrong, barred, 0

    def __call__(self, part: Part) -> Difference | None:
        if self.barred & {*part.inputs}:
            return None
        self.runs += 1
        makers = {unit.tensor: unit for unit in self.graph.units}
        for output in part.outputs:
            waiting, seen = [output], set[str]()
            while waiting:
                name = waiting.pop()
                if name in part.inputs or name in seen or name not in makers:
                    continue
                seen.add(name)
                waiting += makers[name].parents
            if self.wrong & seen:
                return Difference(output, 3.0, True)
        return Difference(part.outputs[0], 60.0, False)


@pytest.mark.parametrize("skips", [0, 1, 3])
@pytest.mark.parametrize("length", [1, 2, 7, 64, 500])
def test_one_wrong_operator_is_found_in_logarithmically_many_runs(length, skips):
    graph = chain(length, skips)
    for place in {0, length // 3, length // 2, length - 1}:
        run = Faulty(graph, {f"t{place}"})
        found = find(graph, Difference(f"t{length - 1}", 3.0, True), run)
        assert [unit.tensor for unit in found.units] == [f"t{place}"] and found.alone
        assert run.runs + 1 <= expected_runs(length) <= 2 + math.ceil(math.log2(max(length, 1)))


def test_cuts_that_cannot_be_made_are_gone_around():
    graph = chain(40)
    run = Faulty(graph, {"t17"}, frozenset({f"t{i}" for i in range(15, 25)}))
    found = find(graph, Difference("t39", 3.0, True), run)
    assert "t17" in {unit.tensor for unit in found.units} and len(found.units) <= 12


def test_errors_that_add_up_leave_a_part_with_all_of_them():
    graph = chain(16)

    def run(part: Part) -> Difference:
        first = int(part.inputs[0][1:]) + 1 if part.inputs[0] != "x" else 0
        count = int(part.outputs[0][1:]) - first + 1
        return Difference(part.outputs[0], 30.0 - count, count > 5)

    found = find(graph, run(graph.whole), run)
    assert not found.alone and len(found.units) == 6


def test_a_part_reads_only_what_it_needs():
    nodes = (
        NodeOutline("a", "Conv", ("x",), ("p",)),
        NodeOutline("b", "Conv", ("x",), ("q",)),
        NodeOutline("c", "Relu", ("q",), ("hidden",)),
        NodeOutline("d", "Add", ("p", "hidden"), ("y",)),
    )
    graph = share(Outline(nodes, {}), ["x"], ["y"], ["p", "q", "y"])
    assert [unit.parents for unit in graph.units] == [("x",), ("x",), ("p", "q")]
    assert {node.name for node in graph.units[-1].nodes} == {"c", "d"}
    assert graph.tail(1) == Part(("x", "p"), ("y",)) and graph.block(1, 2) == Part(("x",), ("q",))

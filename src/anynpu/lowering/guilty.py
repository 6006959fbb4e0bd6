"""Which pass of the own writer makes a float TFLite model compute something else than its ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import onnx

from anynpu.graph.agreement import Feeds, difference
from anynpu.graph.passes import applications, first_fault
from anynpu.graph.proof import executed
from anynpu.graph.quantised import has_pairs, taken_apart
from anynpu.lowering.clean import CLEANING
from anynpu.lowering.graph import Graph
from anynpu.lowering.lower import CHANNELS_LAST, lower_nodes
from anynpu.lowering.net import runner
from anynpu.lowering.prepare import PREPARING
from anynpu.tensors import Array


def guilty_pass(
    model: onnx.ModelProto, feeds: Sequence[Feeds], turned: Collection[str], skipped: Collection[str], slack: float
) -> tuple[str, str] | None:
    """Returns the name of the first pass that changes results on `feeds`, and what differs; None where none does.

    Inputs and outputs that are `turned` have their channels last in TFLite.
    """
    source = taken_apart(model)[0] if has_pairs(model) else model
    steps = list(applications(PREPARING, source, skipped))
    if fault := first_fault(steps, executed(feeds)):
        return fault
    moved = [
        {name: array.transpose(CHANNELS_LAST[array.ndim]) if name in turned else array for name, array in feed.items()}
        for feed in feeds
    ]

    def compare(before: Graph, after: Graph) -> str:
        return difference(_real_outputs(before), _run(before), lambda: _run(after), moved, slack)

    graph = lower_nodes(steps[-1].after if steps else source, [*turned], [*turned])
    return first_fault(list(applications(CLEANING, graph, skipped)), compare)


def _real_outputs(graph: Graph) -> list[str]:
    return [name for name in graph.outputs if graph.tensors[name].dtype == "float32"]


def _run(graph: Graph) -> Callable[[Mapping[str, Array]], list[Array]]:
    names = _real_outputs(graph)
    answers = runner(graph, names)

    def run(feed: Mapping[str, Array]) -> list[Array]:
        results = answers({name: array.astype(graph.tensors[name].dtype) for name, array in feed.items()})
        return [results[name] for name in names]

    return run

"""Ends a .tflite file at tensors that the user names, so that a program of theirs computes what lies behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from anynpu.graph.end import MOST_NAMED, note, require_computed
from anynpu.quantize.tflite_plain import kind_of
from anynpu.runtime.tflite_file import text


def end(model: Any, names: Sequence[str]) -> str:
    """Gives the main graph these tensors as its outputs, in this order, and returns a note on what lies behind them.

    What gives nothing, and only keeps a state, stays.
    """
    graph = model.subgraphs[0]
    computed = {text(graph.tensors[index].name): index for op in graph.operators for index in op.outputs}
    require_computed(names, computed, _names(graph, graph.inputs))
    before, kept = {index for op in graph.operators for index in op.inputs}, []
    needed = {computed[name] for name in names}
    for op in reversed(graph.operators):
        if not op.outputs or needed & {*op.outputs}:
            needed |= {*op.inputs}
            kept.append(op)
    behind = Counter(kind_of(model, op) for op in graph.operators if not any(op is each for each in kept))
    graph.operators = kept[::-1]
    graph.outputs = [computed[name] for name in names]
    graph.inputs = [index for index in graph.inputs if index in needed or index not in before]
    model.signatureDefs = None
    return note(names, behind)


def places_before(model: Any, is_lost: Callable[[Any], bool]) -> list[str]:
    """Returns the last computed tensors before the operators that are lost, and the outputs that do not need one."""
    graph = model.subgraphs[0]
    computed, behind, front = {*graph.inputs}, set[int](), dict[int, None]()
    for op in graph.operators:
        reads = {index for index in op.inputs if index >= 0}
        if is_lost(op) or reads & behind:
            behind |= {*op.outputs}
            front |= dict.fromkeys(index for index in op.inputs if index in computed)
        elif reads & computed:
            computed |= {*op.outputs}
    front |= dict.fromkeys(graph.outputs)
    ends = [index for index in front if index in computed and index not in behind and index not in graph.inputs]
    names = _names(graph, ends)
    return names if all(names) and len({*names}) == len(names) <= MOST_NAMED else []


def _names(graph: Any, indices: Sequence[int]) -> list[str]:
    return [text(graph.tensors[index].name) for index in indices]

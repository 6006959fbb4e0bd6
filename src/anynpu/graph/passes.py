"""Passes: the one form of every change to a graph, and the runner that drops a pass that changes results.

Graphs are ONNX models or TFLite graphs (`lowering/graph.py`). A pass returns a new graph and leaves the one it was
given as it is. Those that keep results are executed next to the graph they began with, all together; only where that
shows a difference is the pass that makes it looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from anynpu.artifact import PassEffect

G = TypeVar("G")
Compare = Callable[[G, G], str]
"""Executes two graphs on the same inputs and says how their results differ, or nothing."""
ROUNDS = 1000


@dataclass(frozen=True)
class Pass(Generic[G]):
    """One change to a graph."""

    name: str
    does: str
    """What it does, as the user reads it."""
    call: Callable[[G], tuple[G, int]]
    """Returns the graph, and in how many places it differs from the given one."""
    requires: Callable[[G], str] = lambda _: ""
    """Says why the pass has nothing to do with a graph, or nothing; such a graph stays as it is."""
    ensures: Callable[[G], str] = lambda _: ""
    """Says what is wrong with a graph that came out of it, or nothing."""
    keeps_results: bool = True


@dataclass(frozen=True)
class Repeated(Generic[G]):
    """Passes that run in turn until none of them finds anything to do."""

    passes: tuple[Pass[G], ...]


Plan = Sequence[Pass[G] | Repeated[G]]


@dataclass(frozen=True)
class Application(Generic[G]):
    """One run of a pass: the graphs before and after it, and why what it made is not taken."""

    done: Pass[G]
    before: G
    after: G
    changed: int
    refused: str = ""


def passes_of(plan: Plan[G]) -> list[Pass[G]]:
    """Returns every pass of a plan once, in order."""
    every = [each for part in plan for each in (part.passes if isinstance(part, Repeated) else (part,))]
    return list({each.name: each for each in every}.values())


def applications(plan: Plan[G], graph: G, without: Collection[str] = ()) -> Iterator[Application[G]]:
    """Yields each run of a pass, those that change nothing too; passes named in `without` are left out."""

    def applied(each: Pass[G], graph: G) -> Application[G]:
        if each.requires(graph):
            return Application(each, graph, graph, 0)
        result, changed = each.call(graph)
        refused = each.ensures(result) if changed else ""
        return Application(each, graph, graph if refused or not changed else result, 0 if refused else changed, refused)

    for part in plan:
        members = [each for each in passes_of([part]) if each.name not in without]
        for _ in range(ROUNDS if isinstance(part, Repeated) else 1):
            settled = True
            for each in members:
                application = applied(each, graph)
                graph, settled = application.after, settled and not application.changed
                yield application
            if settled:
                break


def run(
    plan: Plan[G], graph: G, compare: Compare[G] | None = None, without: Collection[str] = ()
) -> tuple[G, tuple[PassEffect, ...]]:
    """Returns the graph after all passes of a plan, and what each of them did.

    With `compare`, passes that keep results are executed next to the graph they began with, and one that changes them
    is dropped; its effect says so.
    """
    dropped: dict[str, str] = {}
    while True:
        left_out, result, runs = {*without, *dropped}, graph, dict[str, list[PassEffect]]()
        spans: list[tuple[G, G] | None] = [None]  # only the ends are kept: graphs may be large
        for step in applications(plan, graph, left_out):
            grown = _size(step.after) - _size(step.before) if step.changed else 0
            runs.setdefault(step.done.name, []).append(PassEffect(step.done.name, step.changed, grown, step.refused))
            result = step.after
            if step.changed and step.done.keeps_results:
                spans[-1] = (spans[-1][0] if spans[-1] else step.before, step.after)
            elif step.changed:
                spans.append(None)
        differing = compare is not None and any(span is not None and compare(*span) for span in spans)
        fault = first_fault(list(applications(plan, graph, left_out)), compare) if compare and differing else None
        if fault is None:
            effects = []
            for name in (each.name for each in passes_of(plan) if each.name in {*runs, *dropped}):
                every = runs.get(name, [])
                changed, grown = sum(each.changed for each in every), sum(each.operators for each in every)
                refused = next((each.dropped for each in every if each.dropped), "")
                effects.append(PassEffect(name, changed, grown, dropped.get(name, refused)))
            return result, tuple(effects)
        dropped[fault[0]] = f"it would change {fault[1]}"


def first_fault(steps: Sequence[Application[G]], compare: Compare[G]) -> tuple[str, str] | None:
    """Returns the name of the first pass that changes results it must keep, and what differs; None where none does."""
    parts: list[list[Application[G]]] = [[]]
    for step in steps:
        if step.changed and step.done.keeps_results:
            parts[-1].append(step)
        elif step.changed:
            parts.append([])
    for part in parts:
        if not part or not (difference := compare(part[0].before, part[-1].after)):
            continue
        right, wrong = -1, len(part) - 1
        while wrong - right > 1:
            middle = (right + wrong) // 2
            if earlier := compare(part[0].before, part[middle].after):
                wrong, difference = middle, earlier
            else:
                right = middle
        return part[wrong].done.name, difference
    return None


def _size(graph: Any) -> int:
    """Returns how many operators a graph has, an ONNX model or a TFLite graph."""
    return len(graph.operators if hasattr(graph, "operators") else graph.graph.node)


def notes(effects: Sequence[PassEffect]) -> tuple[str, ...]:
    """Returns a sentence for each pass that was dropped."""
    return tuple(f"the pass {each.name} was left out, {each.dropped}" for each in effects if each.dropped)

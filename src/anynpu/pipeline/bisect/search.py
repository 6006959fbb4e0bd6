"""Binary search for the smallest sub-model on which two executions disagree.

Behind every cut both executions get the same recorded values. Where they agree behind one cut and disagree behind the
cut before it, the disagreement needs the operator between the two. The sub-model that begins with it is then shortened
from its end, with the same recorded values going in. What counts is the outputs of the model, where the user's
tolerance means something: an inner tensor may well be far off without any harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from anynpu.pipeline.bisect.shared import Part, SharedGraph, Unit, part_of


@dataclass(frozen=True)
class Difference:
    """How far two executions of a part are apart: the worst output and what it comes to."""

    tensor: str
    sqnr_db: float
    disagrees: bool


Try = Callable[[Part], Difference | None]
"""Runs a part on both sides; None says that one of them cannot be cut or run there."""


@dataclass(frozen=True)
class Culprit:
    """The smallest part that still disagrees; `units[0]` is the one that the disagreement needs."""

    units: tuple[Unit, ...]
    part: Part
    difference: Difference
    rounded_inputs: bool = False
    """Whether the two agree as soon as the inputs are not rounded, although the rounding itself is right."""

    @property
    def alone(self) -> bool:
        """Whether one operator disagrees by itself; otherwise the difference shows only behind several."""
        return len(self.units) == 1


def expected_runs(units: int) -> int:
    """Returns how many runs a search takes where one operator is to blame: the whole, the cuts, the operator alone."""
    return 2 + math.ceil(math.log2(max(units, 1)))


def find(graph: SharedGraph, whole: Difference, attempt: Try, pairs: Collection[str] = ()) -> Culprit:
    """Returns the smallest part that disagrees, given that the whole does.

    `pairs` are the tensors that a side rounds by operators of their own: those go with what reads the tensor as well.
    """
    start, behind = _boundary(0, len(graph), lambda cut: attempt(graph.tail(cut)))
    alone = attempt(graph.block(start, behind)) if behind < len(graph) or start else whole
    if alone is not None and alone.disagrees:
        culprit = _smallest(graph, start, behind, alone, attempt)
        return _before_rounding(graph, culprit, attempt, pairs)
    shortest: dict[int, Difference] = {}

    def shortened(cut: int) -> Difference | None:
        result = attempt(graph.block(start, cut))
        if result is not None and result.disagrees:
            shortest[cut] = result
        return None if result is None else replace(result, disagrees=not result.disagrees)

    _, end = _boundary(behind, len(graph), shortened)
    last = shortest.get(end) or (attempt(graph.tail(start)) if start else whole) or whole
    return _smallest(graph, start, end, last, attempt)


def _before_rounding(graph: SharedGraph, culprit: Culprit, attempt: Try, pairs: Collection[str]) -> Culprit:
    """Returns the operator before, where what disagrees is not an operator but how one of its inputs is rounded."""
    makers = {unit.tensor: unit for unit in graph.units}
    rounded = [name for name in culprit.part.inputs if name in pairs]
    behind = attempt(replace(culprit.part, rounded=tuple(rounded))) if rounded else None
    if behind is None or behind.disagrees:
        return culprit
    for name in rounded:
        if name not in makers:
            continue
        again = behind if len(rounded) == 1 else attempt(replace(culprit.part, rounded=(name,)))
        if again is not None and not again.disagrees:
            part = part_of([makers[name]], name)
            earlier = attempt(part)
            if earlier is not None and earlier.disagrees:
                return Culprit((makers[name],), part, earlier)
    return replace(culprit, rounded_inputs=True)


def _boundary(low: int, high: int, attempt: Callable[[int], Difference | None]) -> tuple[int, int]:
    """Returns two neighbouring cuts of which the lower one disagrees and the higher one does not.

    Where a cut cannot be made its neighbours are tried; cuts that nothing can be said of stay between the two.
    """
    barred: set[int] = set()
    while True:
        middle = (low + high) // 2
        open_cuts = sorted((cut for cut in range(low + 1, high) if cut not in barred), key=lambda c: abs(c - middle))
        if not open_cuts:
            return low, high
        result = attempt(open_cuts[0])
        if result is None:
            barred.add(open_cuts[0])
            if len(barred) > _MOST_BARRED:
                return low, high
        elif result.disagrees:
            low = open_cuts[0]
        else:
            high = open_cuts[0]


_MOST_BARRED = 16
"""Cuts that cannot be made before the search is content with what it has."""


def _smallest(graph: SharedGraph, start: int, end: int, difference: Difference, attempt: Try) -> Culprit:
    """Returns the part of a block that gives its worst output alone, as long as that still disagrees."""
    block = graph.block(start, end)
    units = graph.before(difference.tensor, start, end)
    part = part_of(units, difference.tensor)
    if part == block:
        return Culprit(units, part, difference)
    again = attempt(part)
    if again is not None and again.disagrees:
        return Culprit(units, part, again)
    return Culprit(tuple(graph.units[start:end]), block, difference)

"""Answers checked after the clock has stopped: what they hold, and whether one request always gets the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from anynpu.measure.web.forms import Payload, WrongAnswer, read_answer
from anynpu.measure.web.generator import Attempt, Traffic
from anynpu.tasks.space import row_cosines
from anynpu.tensors import Array

ALIKE = 0.999
"""Vectors of one text at a lower cosine are different answers; the last bits may change with the batch."""


@dataclass
class Checked:
    """What became of every request: `good` has the right answers, `outcomes` counts all by status and fault."""

    good: list[Attempt] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What is wrong with each distinct answer of the run; "" for a right one."""
    first: dict[int, Array] = field(default_factory=dict)
    """The vectors of every payload, as it was answered first."""
    width: int = 0
    least_cosine: float | None = None
    unchecked: int = 0
    distinct: int = 0
    example: str = ""
    """The beginning of the first answer that was not right."""

    @property
    def failed(self) -> int:
        return sum(count for name, count in self.outcomes.items() if name not in GOOD)


GOOD = frozenset(str(status) for status in range(200, 300))


def check(form: str, payloads: Sequence[Payload], traffic: Traffic) -> Checked:
    """Returns every request with what became of it."""
    checked = Checked(distinct=len(traffic.answers))
    for payload, answer in traffic.answers:
        fault = ""
        if 200 <= answer.status < 300:
            try:
                vectors = read_answer(form, answer.body, payloads[payload].items)
                if vectors is not None:
                    checked.width = checked.width or vectors.shape[1]
                    if vectors.shape[1] != checked.width:
                        raise WrongAnswer(f"width {vectors.shape[1]} after {checked.width}")
                    first = checked.first.setdefault(payload, vectors)
                    if first is not vectors:
                        lowest = float(row_cosines(first, vectors).min())
                        before = checked.least_cosine
                        checked.least_cosine = lowest if before is None else min(before, lowest)
            except WrongAnswer as error:
                fault = str(error)
        if (fault or not 200 <= answer.status < 300) and not checked.example:
            checked.example = answer.body[:200].decode("utf-8", "replace").strip()
        checked.faults.append(fault)
    for attempt in traffic.attempts:
        fault = checked.faults[attempt.answer] if attempt.answer >= 0 else ""
        checked.outcomes[f"{attempt.outcome}, {fault}" if fault else str(attempt.outcome)] += 1
        if not fault and str(attempt.outcome) in GOOD:
            checked.good.append(attempt)
            checked.unchecked += attempt.answer < 0
    return checked

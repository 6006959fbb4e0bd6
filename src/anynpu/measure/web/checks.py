"""Answers checked after the clock has stopped: what they hold, and whether one request always gets the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anynpu.measure.web.exchange import Answer
from anynpu.measure.web.forms import Payload, WrongAnswer, read_answer
from anynpu.measure.web.generator import Sample, Samples
from anynpu.tensors import Array

ALIKE = 0.999
"""Vectors of one text at a lower cosine are different answers; the last bits may change with the batch."""


@dataclass
class Checked:
    """What became of every request: `good` has the right answers, `outcomes` counts all by status and fault."""

    good: list[Sample] = field(default_factory=list)
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


def check(form: str, payloads: Sequence[Payload], samples: Samples) -> Checked:
    """Returns every request with what became of it."""
    checked = Checked(distinct=len(samples.answers))
    for payload, answer in samples.answers:
        checked.faults.append(_fault(form, payloads[payload], payload, answer, checked))
    for sample in samples.samples:
        fault = checked.faults[sample.answer] if sample.answer >= 0 else ""
        checked.outcomes[f"{sample.outcome}, {fault}" if fault else str(sample.outcome)] += 1
        if not fault and str(sample.outcome) in GOOD:
            checked.good.append(sample)
            checked.unchecked += sample.answer < 0
    return checked


def _fault(form: str, payload: Payload, number: int, answer: Answer, checked: Checked) -> str:
    """Returns what is wrong with an answer of a good status, and keeps the start of one that is not right."""
    fault = ""
    if 200 <= answer.status < 300:
        try:
            vectors = read_answer(form, answer.body, payload.items)
            fault = "" if vectors is None else _compared(vectors, number, checked)
        except WrongAnswer as error:
            fault = str(error)
    if (fault or not 200 <= answer.status < 300) and not checked.example:
        checked.example = answer.body[:200].decode("utf-8", "replace").strip()
    return fault


def _compared(vectors: Array, number: int, checked: Checked) -> str:
    """Compares vectors with the first of their payload; another width than before is wrong."""
    checked.width = checked.width or vectors.shape[1]
    if vectors.shape[1] != checked.width:
        return f"width {vectors.shape[1]} after {checked.width}"
    first = checked.first.setdefault(number, vectors)
    if first is not vectors:
        cosines = row_cosines(first, vectors)
        lowest = float(cosines.min())
        checked.least_cosine = lowest if checked.least_cosine is None else min(checked.least_cosine, lowest)
    return ""


def row_cosines(a: Array, b: Array) -> Array:
    """Returns the cosine of each row of one matrix with the same row of another; 1 for two zero rows."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    same = (a == b).all(axis=1)
    return np.asarray(np.where(same, 1.0, np.divide(products, norms, out=np.zeros_like(norms), where=norms > 0)))

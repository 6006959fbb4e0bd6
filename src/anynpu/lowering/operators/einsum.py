"""Einsum, as one product of matrices between two changes of order."""

from __future__ import annotations

import math

import numpy as np

from anynpu.lowering.lower import Lowering
from anynpu.lowering.operators.linear import batched, dense
from anynpu.lowering.operators.reduction import summed
from anynpu.lowering.table import Node, Refused, operator

_SPARE = "ZYXWVUTS"


@operator("Einsum")
def einsum(at: Lowering, node: Node) -> None:
    """BATCH_MATMUL, or FULLY_CONNECTED with one stored side, over the letters that both sides share."""
    text = node.attributes["equation"].replace(" ", "")
    sides, arrow, wanted = text.partition("->")
    terms = []
    for term, name in zip(sides.split(","), node.inputs, strict=True):
        # an ellipsis stands for letters of its own
        count = at.rank(name) - len(term.replace("...", ""))
        terms.append(term.replace("...", _SPARE[:count][::-1]) if "..." in term else term)
    if not arrow:
        letters = "".join(terms)
        wanted = "".join(sorted(c for c in {*letters} if letters.count(c) == 1))
    if "..." in wanted or ("..." in sides and not wanted):
        count = at.rank(node.output) - len(wanted.replace("...", ""))
        wanted = wanted.replace("...", _SPARE[:count][::-1])
    if any(len({*term}) != len(term) for term in terms) or len(terms) > 2:
        raise Refused(f"the equation {text}")
    if len(terms) == 1:
        # One operand, summed over the letters that the result lacks
        term = terms[0]
        gone = [letter for letter in term if letter not in wanted]
        tensor = at.stored(node.input(0), tuple(term.index(letter) for letter in (*wanted, *gone)))
        if gone:
            tensor = summed(at, tensor, list(range(len(wanted), len(term))), node.output)
        at.give(node.output, at.reshape(tensor, at.shape(node.output)))
        return
    _product(at, node, terms[0], terms[1], wanted)


def _product(at: Lowering, node: Node, first: str, second: str, wanted: str) -> None:
    names, sizes = node.inputs, dict[str, int]()
    for term, name in zip((first, second), names, strict=True):
        for letter, size in zip(term, at.shape(name), strict=True):
            if sizes.setdefault(letter, size) != size:
                raise Refused(f"sizes {sizes[letter]} and {size} of one letter")
    shared = [c for c in first if c in second and c in wanted]
    summed_over = [c for c in first if c in second and c not in wanted]
    rows = [c for c in first if c not in second]
    columns = [c for c in second if c not in first]
    if any(c not in wanted for c in (*rows, *columns)):
        raise Refused("a letter of one side alone is summed")

    def length(letters: list[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    def matrix(side: int, letters: list[list[str]]) -> str:
        term = (first, second)[side]
        flat = [c for part in letters for c in part]
        stored = at.stored(names[side], tuple(term.index(c) for c in flat))
        return at.reshape(stored, [length(part) for part in letters])

    stored = at.constant(names[1])
    if stored is not None and not shared:
        weights = np.transpose(stored, [second.index(c) for c in (*columns, *summed_over)])
        left = matrix(0, [rows, summed_over])
        flat = weights.reshape(length(columns), length(summed_over)).astype(np.float32)
        result = dense(at, left, flat, None, node.output)
    else:
        left = matrix(0, [shared, rows, summed_over])
        right = matrix(1, [shared, summed_over, columns])
        shape = (length(shared), length(rows), length(columns))
        result = batched(at, left, right, shape, node.output)
    letters = [*shared, *rows, *columns]
    result = at.reshape(result, [sizes[c] for c in letters])
    at.give(node.output, result, tuple(wanted.index(c) for c in letters))

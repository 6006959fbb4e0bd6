"""Operators that TFLite-Micro or an Ethos-U has in 8 bits and not in 16, as others that it has in both.

A bilinear resize is products with stored matrices, and so is a choice of many elements in disorder; a product of two
computed matrices is those of their elements, added up. All else is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from anynpu.lowering.choices import gather
from anynpu.lowering.ethos_u import MOST_SIDE, resize
from anynpu.lowering.graph import Graph, Operator, pruned
from anynpu.lowering.options import BatchMatMul, Concatenation, Mul, Pool2D
from anynpu.lowering.rewriting import Rewriting, Rule
from anynpu.lowering.widen import chosen_wide
from anynpu.quantize.plan import QuantPlan

AnyPlan = TypeVar("AnyPlan", bound=QuantPlan)


MOST_PRODUCTS = 1 << 20
"""How many products of elements a product of matrices may be written with: each takes two bytes of the arena."""


def as_micro_has(graph: Graph, plan: AnyPlan, rules: Mapping[str, Rule] | None = None) -> tuple[Graph, AnyPlan]:
    """Returns the graph with others for the operators of 16 bits that TFLite-Micro lacks, or those of other `rules`,
    and the plan that keeps what is computed between them in 16 bits too."""
    rules = RULES if rules is None else rules
    lacking = {each.outputs[0] for each in graph.operators if each.kind in rules}
    if not lacking or (plan.activations != "int16" and not plan.wide_tensors):
        return graph, plan
    wide = lacking if plan.activations == "int16" else lacking & chosen_wide(graph, plan.wide_tensors)
    if not wide:
        return graph, plan
    at = Rewriting(graph, lambda *_: False, 0, dict(graph.tensors), [])
    for operator in graph.operators:
        if operator.outputs[0] not in wide or not rules[operator.kind](at, operator):
            at.operators.append(operator)
    written = pruned(at.operators, at.tensors, graph.inputs, graph.outputs)
    between = [name for name, tensor in written.tensors.items() if name not in graph.tensors and tensor.data is None]
    if plan.activations == "int16":
        return written, plan
    return written, replace(plan, wide_tensors=(*plan.wide_tensors, *between))


def extreme(at: Rewriting, operator: Operator) -> bool:
    """The largest of some axes is a pool over each run of them; the smallest is the negative of the negative's."""
    source, result = operator.inputs[0], operator.outputs[0]
    axes, shape = at.graph.constant(operator.inputs[1]), at.shape(source)
    if axes is None or at.tensors[source].dtype != "float32":
        return False
    over = {int(axis) % len(shape) for axis in np.asarray(axes).reshape(-1)}
    runs: list[tuple[bool, int]] = []
    for axis, size in enumerate(shape):
        if runs and size > 1 and runs[-1][0] == (axis in over):
            runs[-1] = (runs[-1][0], runs[-1][1] * size)
        elif size > 1:
            runs.append((axis in over, size))
    if math.prod(shape) // min((size for each, size in runs if each), default=1) > MOST_SIDE:
        return False
    minus = at.store(np.asarray(-1, np.float32), f"{result}/minus") if operator.kind == "REDUCE_MIN" else ""
    tensor = at.emit("MUL", (source, minus), shape, Mul(), f"{result}/turned") if minus else source
    for place, (reduced, size) in enumerate(runs):
        if reduced:
            before, after = (math.prod(each for _, each in part) for part in (runs[:place], runs[place + 1 :]))
            image = at.reshape(tensor, (1, before, size, after), f"{result}/image")
            tensor = at.emit(
                "MAX_POOL_2D", (image,), (1, before, 1, after), Pool2D(filter_width=size), f"{result}/most"
            )
            runs[place] = (True, 1)
    if minus:
        tensor = at.emit("MUL", (tensor, minus), at.shape(tensor), Mul(), f"{result}/back")
    at.give(operator, at.reshape(tensor, at.shape(result), f"{result}/kept"))
    return True


def products(at: Rewriting, operator: Operator) -> bool:
    """A product of two computed matrices is the products of the elements of rows and columns, summed up."""
    (first, second), result, options = operator.inputs, operator.outputs[0], operator.options
    assert isinstance(options, BatchMatMul)
    *outer, rows, columns = at.shape(result)
    depth, groups = at.shape(first)[-2 if options.adj_x else -1], math.prod(outer)
    sides = math.prod(at.shape(first)[:-2]), math.prod(at.shape(second)[:-2])
    if sides != (groups, groups) or rows * columns * depth * groups > MOST_PRODUCTS:
        return False
    sizes = ((groups, depth, rows), (groups, columns, depth))
    left = at.reshape(first, sizes[0] if options.adj_x else (groups, rows, depth), f"{result}/left")
    right = at.reshape(second, sizes[1] if options.adj_y else (groups, depth, columns), f"{result}/right")
    # Every row once for each column; a group's columns lie behind one another
    left = at.transpose(left, (2, 0, 1) if options.adj_x else (1, 0, 2), f"{result}/rows")
    left = at.reshape(left, (rows, groups, 1, depth), f"{result}/row")
    size = (rows, groups, columns, depth)
    left = at.emit("CONCATENATION", [left] * columns, size, Concatenation(axis=2), f"{result}/repeated")
    left = at.reshape(left, (rows, groups * columns, depth), f"{result}/each")
    right = right if options.adj_y else at.transpose(right, (0, 2, 1), f"{result}/columns")
    right = at.reshape(right, (1, groups * columns, depth), f"{result}/column")
    each = at.emit("MUL", (left, right), (rows, groups * columns, depth), Mul(), f"{result}/products")
    total = at.multiply(each, np.ones((1, depth)), f"{result}/sums")
    total = at.transpose(at.reshape(total, (rows, groups, columns), f"{result}/sum"), (1, 0, 2), f"{result}/groups")
    at.give(operator, at.reshape(total, at.shape(result), f"{result}/whole"))
    return True


RULES: Mapping[str, Rule] = {
    "RESIZE_BILINEAR": resize,
    "REDUCE_MAX": extreme,
    "REDUCE_MIN": extreme,
    "GATHER": gather,
}
ON_ETHOS_U: Mapping[str, Rule] = {"BATCH_MATMUL": products}
"""What an Ethos-U55 or U65 lacks beside those."""

"""Operators that TFLite-Micro has in 8 bits and not in 16, as others that it has in both.

A bilinear resize is products with stored matrices, and so is a choice of many elements in disorder; all else is exact.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np

from anynpu.lowering.choices import gather
from anynpu.lowering.ethos_u import MOST_SIDE, resize
from anynpu.lowering.graph import Graph, Operator, pruned
from anynpu.lowering.options import Mul, Pool2D
from anynpu.lowering.rewriting import Rewriting, Rule
from anynpu.lowering.widen import chosen_wide
from anynpu.quantize.plan import QuantPlan

AnyPlan = TypeVar("AnyPlan", bound=QuantPlan)


def as_micro_has(graph: Graph, plan: AnyPlan) -> tuple[Graph, AnyPlan]:
    """Returns the graph with others for the operators of 16 bits that TFLite-Micro lacks, and the plan that keeps what
    is computed between them in 16 bits too."""
    lacking = {each.outputs[0] for each in graph.operators if each.kind in RULES}
    if not lacking or (plan.activations != "int16" and not plan.wide_tensors):
        return graph, plan
    wide = lacking if plan.activations == "int16" else lacking & chosen_wide(graph, plan.wide_tensors)
    if not wide:
        return graph, plan
    at = Rewriting(graph, lambda *_: False, 0, dict(graph.tensors), [])
    for operator in graph.operators:
        if operator.outputs[0] not in wide or not RULES[operator.kind](at, operator):
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
            tensor = at.emit("MAX_POOL_2D", (image,), (1, before, 1, after), Pool2D(filter_width=size), f"{result}/most")
            runs[place] = (True, 1)
    if minus:
        tensor = at.emit("MUL", (tensor, minus), at.shape(tensor), Mul(), f"{result}/back")
    at.give(operator, at.reshape(tensor, at.shape(result), f"{result}/kept"))
    return True


RULES: dict[str, Rule] = {
    "RESIZE_BILINEAR": resize,
    "REDUCE_MAX": extreme,
    "REDUCE_MIN": extreme,
    "GATHER": gather,
}

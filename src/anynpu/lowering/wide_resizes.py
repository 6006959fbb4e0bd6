"""A RESIZE_BILINEAR of 16 bits, for which neither TFLite-Micro nor the generated C has a kernel, as products."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from anynpu.lowering.ethos_u import resize
from anynpu.lowering.graph import Graph, pruned
from anynpu.lowering.rewriting import Rewriting
from anynpu.lowering.widen import chosen_wide
from anynpu.quantize.plan import QuantPlan

AnyPlan = TypeVar("AnyPlan", bound=QuantPlan)


def without_wide_resizes(graph: Graph, plan: AnyPlan) -> tuple[Graph, AnyPlan]:
    """Returns the graph with every bilinear resize that would have 16 bits as products along its axes, which have such
    kernels everywhere, and the plan that keeps what is computed between them in 16 bits too."""
    resizes = [each.outputs[0] for each in graph.operators if each.kind == "RESIZE_BILINEAR"]
    if not resizes or (plan.activations != "int16" and not plan.wide_tensors):
        return graph, plan
    wide = {*resizes} if plan.activations == "int16" else {*resizes} & chosen_wide(graph, plan.wide_tensors)
    if not wide:
        return graph, plan
    at = Rewriting(graph, lambda *_: False, 0, dict(graph.tensors), [])
    for operator in graph.operators:
        if operator.outputs[0] not in wide or not resize(at, operator):
            at.operators.append(operator)
    written = pruned(at.operators, at.tensors, graph.inputs, graph.outputs)
    between = [name for name, tensor in written.tensors.items() if name not in graph.tensors and tensor.data is None]
    if plan.activations == "int16":
        return written, plan
    return written, replace(plan, wide_tensors=(*plan.wide_tensors, *between))

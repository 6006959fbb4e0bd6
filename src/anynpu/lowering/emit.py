"""From a float graph and the ranges of its tensors to the graph of integers."""

from __future__ import annotations

from collections.abc import Mapping

from anynpu.lowering.apply import applied
from anynpu.lowering.compared import as_whole_numbers, comparable, sharpened
from anynpu.lowering.distinct import distinct
from anynpu.lowering.divide import divided
from anynpu.lowering.functions import ALWAYS, ON_MICRO
from anynpu.lowering.graph import Graph
from anynpu.lowering.levels import in_levels
from anynpu.lowering.quantise import quantised
from anynpu.lowering.slopes import without_slopes
from anynpu.lowering.steep import in_pieces
from anynpu.lowering.straight import straightened
from anynpu.lowering.swish import swishes_as_products
from anynpu.lowering.tables import collected, tabled
from anynpu.lowering.whole import without_casts
from anynpu.lowering.widen import around, chosen_wide, wide_operators
from anynpu.quantize.fixed import NOTHING, Fixed
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range
from anynpu.records.quantisation import Origin, Quantisation


def integer_graph(
    graph: Graph,
    ranges: Mapping[str, Range],
    plan: QuantPlan,
    tables: bool = False,
    fixed: Fixed = NOTHING,
    origins: Mapping[str, Origin] | None = None,
    as_ramps: bool = False,
) -> tuple[Graph, Quantisation]:
    """Returns the graph of integers of a float one, and its quantisation.

    With `tables`, functions that TFLite-Micro has no integer kernel for are read from tables; `as_ramps` writes tables
    as convolutions. `origins` says where ranges come from that were not measured.
    """
    plan.check_tensors([*graph.inputs, *(name for operator in graph.operators for name in operator.outputs)])
    graph = sharpened(straightened(graph, ranges), ranges)
    if plan.activations == "int8":
        kept = around(graph, plan.float_tensors) | chosen_wide(graph, plan.wide_tensors)
        graph = collected(graph, ON_MICRO if tables else ALWAYS, wide_operators(graph, ranges) | kept, ranges)
    else:
        graph, ranges = swishes_as_products(graph, ranges, around(graph, plan.float_tensors))
    graph, ranges = divided(graph, ranges)
    if plan.activations == "int8":
        graph, ranges = comparable(graph, ranges, chosen_wide(graph, plan.wide_tensors))
    wide = frozenset(graph.makers())
    if plan.activations == "int8":
        wide = wide_operators(graph, ranges) | chosen_wide(graph, plan.wide_tensors)
    graph, ranges, levels = in_levels(graph, ranges, wide - around(graph, plan.float_tensors))
    wide |= levels
    if not tables:
        graph, ranges, pieces = in_pieces(graph, ranges, wide - around(graph, plan.float_tensors))
        wide |= pieces
    graph, ranges, sloped = without_slopes(graph, ranges, wide - around(graph, plan.float_tensors))
    quantisation = quantised(graph, ranges, plan, fixed, wide | sloped)
    integers = as_whole_numbers(applied(graph, quantisation, plan.io == "integer"))
    integers = without_casts(tabled(integers, tables, as_ramps))
    return distinct(integers), quantisation.described(graph, ranges, origins or {})

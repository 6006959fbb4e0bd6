"""From a float graph and the ranges of its tensors to the file of integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from anynpu import schema
from anynpu.lowering.apply import applied
from anynpu.lowering.divide import divided
from anynpu.lowering.functions import ALWAYS, ON_MICRO
from anynpu.lowering.graph import Graph
from anynpu.lowering.quantise import UNTRAINED, quantised
from anynpu.lowering.steep import in_pieces
from anynpu.lowering.tables import collected, tabled
from anynpu.lowering.widen import around, chosen_wide, wide_operators
from anynpu.lowering.write import to_bytes
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range
from anynpu.training.scheme import WeightRounding

Writer = Callable[[Graph, Mapping[str, Range], QuantPlan], bytes]
"""Makes the file of integers of a float graph, ranges and plan."""


def quantising(
    record: Path | None = None, tables: bool = False, trained: Mapping[str, WeightRounding] = UNTRAINED
) -> Writer:
    """Returns a function that makes the quantised file of a float graph, and writes the quantisation beside it.

    With `tables`, functions that TFLite-Micro has no integer kernel for are read from tables. `trained` are roundings
    of weights that training ended with.
    """

    def write(graph: Graph, ranges: Mapping[str, Range], plan: QuantPlan) -> bytes:
        plan.check_tensors([*graph.inputs, *(name for operator in graph.operators for name in operator.outputs)])
        if plan.activations == "int8":
            kept = around(graph, plan.float_tensors) | chosen_wide(graph, plan.wide_tensors)
            graph = collected(graph, ON_MICRO if tables else ALWAYS, wide_operators(graph, ranges) | kept)
        graph, ranges = divided(graph, ranges)
        wide = frozenset(graph.makers())
        if plan.activations == "int8":
            wide = wide_operators(graph, ranges) | chosen_wide(graph, plan.wide_tensors)
        if not tables:
            graph, ranges, pieces = in_pieces(graph, ranges, wide - around(graph, plan.float_tensors))
            wide |= pieces
        quantisation = quantised(graph, ranges, plan, trained, wide)
        if record is not None:
            record.write_text(schema.canonical_json(quantisation.to_json()) + "\n", "utf-8")
        return to_bytes(tabled(applied(graph, quantisation, plan.io == "integer"), tables))

    return write


def with_ranges(write: Writer, own: Mapping[str, Range]) -> Writer:
    """Returns a function that quantises with the ranges that a model brings, and with measured ones elsewhere."""
    return lambda graph, ranges, plan: write(graph, {**ranges, **own}, plan)

"""Ranges that most samples keep to, where biases are measured behind them.

One picture in a hundred can have values three times as loud as the others have, and a range that holds them makes every
rounding error of all others three times as large. Between convolutions and functions such as SiLU a range is therefore
the one that most samples keep to as a whole, not the one that most values do: the loudest values of an ordinary picture
are its objects, and stay. What clipping takes from the means, measured biases give back.

Where a model's answer is one row of numbers, it is a mean over all places: rounding errors cancel there, what is
clipped does not. Such models keep the range of all samples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from anynpu.quantize.adequacy import SampleLimits
from anynpu.quantize.measured import FEWEST, places
from anynpu.quantize.net import Net, Operation
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range

MOST = 0.7
"""The share of samples whose values a range holds, all of them."""
LEAST = 0.25
"""The share of the range of all samples that is kept whatever most of them need: some layers see rare things."""


def kept_by_most(
    net: Net, ranges: Mapping[str, Range], observed: SampleLimits, plan: QuantPlan, unrounded: Collection[str] = ()
) -> dict[str, Range]:
    """Returns the ranges; those of a model that answers with maps are narrower around functions behind convolutions,
    and where only their values are handed on."""
    narrowed = dict(ranges)
    if plan.method != "auto" or plan.bits != 8 or not plan.bias_correction:
        return narrowed
    if not any(sum(size > 1 for size in net.shapes[name][1:]) > 1 for name in net.outputs & net.shapes.keys()):
        return narrowed
    chosen = {name for each in places(net, unrounded) if each.function for name in (each.result, each.behind)}
    for operation in net.operations if chosen else ():
        for name in operation.outputs:
            lows, highs = observed.lows.get(name, []), observed.highs.get(name, [])
            if name not in ranges or name in net.outputs or len(lows) < FEWEST:
                continue
            if name in chosen:
                low, high = float(np.quantile(lows, 1 - MOST)), float(np.quantile(highs, MOST))
            elif _hands_on(operation, name, observed):
                read = [narrowed[each] for each in operation.inputs if each in observed.lows]
                low, high = min(each.min for each in read), max(each.max for each in read)
            else:
                continue
            old = narrowed[name]
            narrowed[name] = Range(max(old.min, min(low, old.min * LEAST)), min(old.max, max(high, old.max * LEAST)))
    return narrowed


def _hands_on(operation: Operation, name: str, observed: SampleLimits) -> bool:
    """Tells whether an operation that is neither layer nor arithmetic gave only what it read, in every sample."""
    read = [each for each in operation.inputs if each in observed.lows]
    if not read or operation.kind != "other" or operation.function is not None:
        return False
    low = np.min([observed.lows[each] for each in read], axis=0)
    high = np.max([observed.highs[each] for each in read], axis=0)
    return bool((low <= observed.lows[name]).all() and (high >= observed.highs[name]).all())

"""Room for what calibration did not show: the next sample may leave the range that all samples so far keep to, and what
it gives is cut off there. A model's answers are what is judged, and in 16 bits they have one to spare."""

from __future__ import annotations

from collections.abc import Mapping

from anynpu.quantize.net import Net
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.ranges import Range

SPARE = 2.0
"""What an output of 16 bits holds, over what calibration showed."""


def with_room(net: Net, ranges: Mapping[str, Range], plan: QuantPlan) -> dict[str, Range]:
    """Returns the ranges, twice as wide for outputs of 16 bits and for what is only moved to become one."""
    roomy = dict(ranges)
    for output in net.outputs:
        handed_on = [output]
        while (maker := net.makers.get(handed_on[-1])) is not None and maker.moves:
            handed_on.append(maker.moves)
        for name in handed_on:
            if name in ranges and plan.stored_type(name) in ("int16", "uint16"):
                limits = ranges[name]
                roomy[name] = Range(SPARE * min(limits.min, 0.0), SPARE * max(limits.max, 0.0))
    return roomy

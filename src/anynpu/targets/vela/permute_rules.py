"""Vela's constraints on transposing, as in `rules`."""

from __future__ import annotations

import itertools
import math

from anynpu.targets.flatbuffer import TfliteOperator
from anynpu.targets.vela.rules import ifms, rule

LIMIT = 2**16


def _permutation(op: TfliteOperator) -> tuple[int, ...]:
    values = op.inputs[1].data if len(op.inputs) > 1 and op.inputs[1] else None
    return () if values is None else tuple(int(v) for v in values.reshape(-1))


@rule
def _wide(op: TfliteOperator) -> bool:
    """IF IFM is Int32:
    - Rank must be less than or equal to 4
    - NHWC: C <= 2^16
    - NWHC: N == 1, H <= 2^16, W <= 2^16, C <= 2^14
    - NHCW: N*H <= 2^16, W <= 2^16, C <= 2^16
    - Any other permutation vector is unsupported"""
    shape, order = ifms(op)[0].shape, _permutation(op)
    if ifms(op)[0].dtype != "int32":
        return True
    if len(shape) > 4:
        return False
    skipped = 4 - len(shape)
    n, h, w, c = (1,) * skipped + shape
    match (*range(skipped), *(axis + skipped for axis in order)):
        case (0, 1, 2, 3):
            return c <= LIMIT
        case (0, 2, 1, 3):
            return n == 1 and h <= LIMIT and w <= LIMIT and c <= 2**14
        case (0, 1, 3, 2):
            return n * h <= LIMIT and w <= LIMIT and c <= LIMIT
    return False


@rule
def _narrow(op: TfliteOperator) -> bool:
    """IF IFM is Int8 or Int16
    - NHWC: no shape constraints
    - ELSE IF permutation is: NWHC/NHCW/NCWH/NWCH/NCHW and the tensor is 3D, or higher-rank with all axes outside
      H/W/C equal to 1:
      - (H, W, C) <= (2^16, 2^16, 2^16)
    - ELSE:
      - Product of any N-2 axes in a rank N tensor must be less than or equal to 2^16. For example, for rank 4:
        N*H <= 2^16, N*W <= 2^16, N*C <= 2^16, H*W <= 2^16, H*C <= 2^16, W*C <= 2^16."""
    shape, order = ifms(op)[0].shape, _permutation(op)
    rank = len(shape)
    if ifms(op)[0].dtype not in ("int8", "int16") or order == tuple(range(rank)) or rank < 3:
        return True
    outer = rank - 3
    if order[:outer] == tuple(range(outer)) and math.prod(shape[:outer]) == 1:
        return max(shape[outer:]) <= LIMIT
    return all(math.prod(axes) <= LIMIT for axes in itertools.combinations(shape, rank - 2))

"""Vela's constraints on resizing, as in `rules`."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from anynpu.targets.flatbuffer import TfliteOperator
from anynpu.targets.vela.rules import ifms, nhwc, option, rule

MAXIMUM = {True: 2048, False: 1024}


def _factors(op: TfliteOperator) -> tuple[Fraction, Fraction]:
    """The scale factors of height and width."""
    less = 1 if option(op, "alignCorners", False) else 0
    pairs = zip(nhwc(ifms(op)[0])[1:3], nhwc(op.outputs[0])[1:3], strict=True)
    height, width = (Fraction(out - less, max(size - less, 1)) for size, out in pairs)
    return height, width


def _is_free(op: TfliteOperator) -> bool:
    """Whether any scale will do: a single pixel spread out, or nothing to do."""
    return nhwc(ifms(op)[0])[1:3] == (1, 1) or ifms(op)[0].shape == op.outputs[0].shape


def _scales_by(op: TfliteOperator, allowed: tuple[int, ...]) -> bool:
    height, width = _factors(op)
    if _is_free(op):
        return True
    if height == width:
        return height in allowed
    _, out_height, out_width, _ = nhwc(op.outputs[0])
    _, in_height, in_width, _ = nhwc(ifms(op)[0])
    if out_height == in_height == 1:
        return width in allowed
    return out_width == in_width == 1 and height in allowed


@rule
def _bilinear(op: TfliteOperator) -> bool:
    """IF not (IFM H == IFM W == 1) AND not IFM Shape == OFM Shape:
    - IF W Scale-factor != H Scale-factor:
      - OFM W or H must be 1, and scaling in the dim that is must also be 1
    - IF align corners:
      - Scale-factor is defined as OFM H-1 / IFM H-1
    - ELSE:
      - Scale-factor is defined as OFM H/IFM H
    - IF half pixel centers:
      - Scale-factor needs to be 2x
    - Else:
      - Scale-factor needs to be one of: 2x/4x/8x"""
    return _scales_by(op, (2,) if option(op, "halfPixelCenters", False) else (2, 4, 8))


@rule
def _nearest(op: TfliteOperator) -> bool:
    """IF NOT (IFM H == IFM W == 1) AND NOT IFM Shape == OFM Shape:
    - IF W Scale-factor != H Scale-factor:
      - OFM W or H must be 1, and scaling in the dim that is must also be 1
    - IF align corners:
      - Scale-factor is defined as OFM H-1 / IFM H-1
    - ELSE:
      - Scale-factor is defined as OFM H / IFM H
    - Scale-factor must be one of: 2x/4x/8x"""
    return _scales_by(op, (2, 4, 8))


@rule
def _one_alignment(op: TfliteOperator) -> bool:
    """align_corners and half_pixel_centers are mutually exclusive."""
    return not (option(op, "alignCorners", False) and option(op, "halfPixelCenters", False))


@rule
def _largest_scale(op: TfliteOperator) -> bool:
    """Scale-factor:
    - IF align_corners:
      - Scale-factor can be maximum 2048
    - ELSE:
      - Scale-factor can be maximum 1024."""
    return max(_factors(op)) <= MAXIMUM[bool(option(op, "alignCorners", False))]


@rule
def _power_of_two(op: TfliteOperator) -> bool:
    """Scale-factor must be an integer power of two."""
    return _is_free(op) or all(f.denominator == 1 and f.numerator & (f.numerator - 1) == 0 for f in _factors(op))


def samples_elsewhere(op: TfliteOperator) -> bool:
    """Tells whether Vela 5.2.0 lets a U85 take other pixels than TFLite does, which is no rule of its table.

    It counts the nearest pixel from the centres of pixels wherever corners are not aligned: the same when a picture
    grows by whole factors.
    """
    centred = option(op, "alignCorners", False) or option(op, "halfPixelCenters", False)
    if op.kind != "RESIZE_NEAREST_NEIGHBOR" or centred:
        return False
    for before, after in zip(nhwc(ifms(op)[0])[1:3], nhwc(op.outputs[0])[1:3], strict=True):
        places = np.arange(after)
        # TFLite's places have 32 bits
        from_corners = (places.astype(np.float32) * (np.float32(before) / np.float32(after))).astype(np.int64)
        if np.any(np.minimum(from_corners, before - 1) != (2 * places + 1) * before // (2 * after)):
            return True
    return False

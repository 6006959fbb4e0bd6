"""What verification samples say of a calibration: which lie outside of its ranges, and what to expect of others."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from anynpu.artifact import Artifact
from anynpu.measure.decibels import ratio_db
from anynpu.measure.samples import SampleSet
from anynpu.measure.significance import student_quantile
from anynpu.records.calibration import Adequacy, Calibration, OutsideSample
from anynpu.tensors import ENDLESS, Array

Floats = NDArray[np.float64]
OUTSIDE = 0.25
"""A sample lies outside of a range where it goes beyond it by more than this share of its width."""
CONFIDENCE = 0.9
DOWNWARDS = 3.0
"""By how much farther the interval of the loss reaches down; measured by bench/adequacy.py."""
MIN_DISTINCT = 8
MOST_MOVING = 0.1
"""Samples are not enough where a larger share of the ranges still moves."""
MOST_OUTSIDE = 0.1
"""Samples are not enough where a larger share of the verification samples lies outside."""
HELD_SAMPLES = 16
MACS_BUDGET = 70_000_000_000
"""What holding samples against ranges may cost: a few seconds."""


def expected_loss(reference: Array, candidate: Array, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Returns the interval in which the SQNR of new samples lies, in dB; None for fewer than 8 samples, or no error.

    The jackknife over samples: how much does the figure change where one of them is left out? Downwards it reaches
    three times as far: a rare sample that leaves the calibrated ranges is more often still to come than already there.
    """
    rows = [np.asarray(array, np.float64).reshape(len(array), -1) for array in (reference, candidate)]
    signal, noise = (rows[0] ** 2).sum(axis=1), ((rows[1] - rows[0]) ** 2).sum(axis=1)
    n = len(signal)
    if n < MIN_DISTINCT or not noise.any() or not signal.any():
        return None
    without = [ratio_db(float(signal.sum() - s), float(noise.sum() - e)) for s, e in zip(signal, noise, strict=True)]
    spread = math.sqrt((n - 1) / n * float(((np.asarray(without) - np.mean(without)) ** 2).sum()))
    reach = student_quantile(0.5 + confidence / 2, n - 1) * spread
    value = ratio_db(float(signal.sum()), float(noise.sum()))
    return round(value - DOWNWARDS * reach, 3), round(value + reach, 3)


def outside(
    truth: Artifact, samples: SampleSet, limits: Mapping[str, tuple[float, float]]
) -> tuple[int, tuple[OutsideSample, ...]]:
    """Returns how many samples were run through the float model, and those that leave a calibrated range."""
    from anynpu.runtime.ort import OrtInner

    macs = truth.manifest.estimates.macs if truth.manifest.estimates else None
    held = samples.first(min(len(samples), HELD_SAMPLES, max(1, MACS_BUDGET // max(macs or 1, 1))))
    session = OrtInner(truth)
    beyond_range = []
    for index, sample in enumerate(held):
        excess: dict[str, float] = {}
        for name, values in session.tensors(sample, limits).items():
            values = np.atleast_1d(values)  # a number has no places to choose from
            values = values[np.abs(values) < ENDLESS] if values.dtype.kind == "f" else values[:0]
            if not values.size:
                continue
            low, high = min(limits[name][0], 0.0), max(limits[name][1], 0.0)
            beyond = max(low - float(values.min()), float(values.max()) - high)
            excess[name] = beyond / max(high - low, 1e-12)
        far = {name: share for name, share in excess.items() if share > OUTSIDE}
        if far:
            worst = max(far, key=lambda name: far[name])
            beyond_range.append(
                OutsideSample(sample=index, tensor=worst, excess=round(far[worst], 4), tensors=len(far))
            )
    return len(held), tuple(beyond_range)


def judge_calibration(calibration: Calibration, verified: int, far: tuple[OutsideSample, ...]) -> Adequacy:
    """Returns whether the samples were enough, and says it in one sentence."""
    ranges, moving = len(calibration.limits), calibration.moving
    moved = "twice as many would widen no range by more than 10 %"
    if moving:
        moved = f"twice as many would widen {len(moving)} of {ranges} ranges by more than 10 %"
        moved += f" (most: {moving[0].tensor}, {moving[0].growth:.0%})"
    left = ""
    if far:
        worst = max(far, key=lambda each: each.excess)
        left = f"{len(far)} of {verified} verification samples lie outside of the calibrated ranges"
        left += f" (farthest: sample {worst.sample} at {worst.tensor}, by {worst.excess:.0%} of its width)"
    reasons = []
    if calibration.constant:
        reasons.append("every calibration sample holds one value only")
    if calibration.distinct < MIN_DISTINCT:
        count = f"{calibration.distinct} distinct sample{'' if calibration.distinct == 1 else 's'}"
        reasons.append(f"{count} of {calibration.samples}: ranges need at least {MIN_DISTINCT}")
    elif len(moving) > MOST_MOVING * ranges:
        reasons.append(moved)
    if left and len(far) > MOST_OUTSIDE * verified:
        reasons.append(left)
    if reasons:
        sentence = "calibration: NOT enough samples: " + "; ".join(reasons)
    else:
        sentence = f"calibration: {calibration.samples} samples are enough: {moved}"
        sentence += f"; {left}" if left else "; no verification sample lies outside" if verified else ""
    return Adequacy(
        adequate=not reasons,
        samples=calibration.samples,
        distinct=calibration.distinct,
        ranges=ranges,
        moving=moving,
        verified=verified,
        outside=far,
        reasons=tuple(reasons),
        sentence=sentence,
    )

"""How closely one set of outputs follows another: pure numbers, no verdict."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from anynpu.errors import AccuracyError, ConfigError, IntegrityError
from anynpu.measure.decibels import ratio_db
from anynpu.measure.variation import QUIET, compare_variation, is_quiet
from anynpu.records.shared import Fidelity
from anynpu.tensors import Array

BLOCK = 1 << 13
"""Values at a time: they stay in the cache, and a product of this few is not spread over threads."""


def compare_outputs(
    reference: Mapping[str, Array],
    candidate: Mapping[str, Array],
    axis: int | Mapping[str, int] = -1,
    probabilities: Collection[str] = (),
) -> dict[str, Fidelity]:
    """Returns the fidelity of every output; arrays hold real numbers, samples first, classes along `axis`.

    Outputs known to be probabilities are `quiet` where both stay at 0 or 1.
    """
    if set(reference) != set(candidate):
        raise ConfigError(f"outputs differ in name: {sorted(reference)} and {sorted(candidate)}")
    axes = {name: axis if isinstance(axis, int) else axis.get(name, -1) for name in reference}
    outputs = {name: compare_arrays(name, reference[name], candidate[name], axes[name]) for name in reference}
    for name in {*probabilities} & {*outputs}:
        if is_quiet(reference[name]) and outputs[name].max_abs_error < QUIET:
            outputs[name] = replace(outputs[name], quiet=True)
    return outputs


def compare_arrays(name: str, reference: Array, candidate: Array, axis: int = -1) -> Fidelity:
    """Returns the fidelity of one output."""
    if reference.shape != candidate.shape:
        raise ConfigError(f"output {name}: shape {list(candidate.shape)} compared with {list(reference.shape)}")
    if reference.size == 0:
        raise ConfigError(f"output {name}: nothing to compare, the arrays are empty")
    reference, candidate = np.asarray(reference), np.asarray(candidate)
    if not np.isfinite(reference).all():
        raise IntegrityError(f"output {name}: the reference holds NaN or infinite values")
    bad = int(np.count_nonzero(~np.isfinite(candidate)))
    if bad:
        raise AccuracyError(
            f"output {name}: {bad} of {candidate.size} values are NaN or infinite", "non-finite values", bad, 0, [name]
        )
    first = float(reference.flat[0])
    signal = result = product = noise = moved = squares = largest = 0.0

    for start in range(0, reference.size, BLOCK):
        ref = reference.reshape(-1)[start : start + BLOCK].astype(np.float64)
        cand = candidate.reshape(-1)[start : start + BLOCK].astype(np.float64)
        signal += float(np.dot(ref, ref))
        result += float(np.dot(cand, cand))
        product += float(np.dot(ref, cand))
        cand -= ref
        noise += float(np.dot(cand, cand))
        largest = max(largest, float(cand.max()), -float(cand.min()))
        ref -= first
        moved += float(ref.sum())
        squares += float(np.dot(ref, ref))
    variance = max(squares / reference.size - (moved / reference.size) ** 2, 0.0)
    norms = math.sqrt(signal) * math.sqrt(result)
    if reference.ndim == 0 or reference.shape[axis] < 2:
        agreement = None
    else:
        axis %= reference.ndim
        decided = agreed = 0
        samples = zip(reference, candidate, strict=True) if axis else ((reference, candidate),)
        for expected, got in samples:
            along = max(axis - 1, 0)
            best = np.expand_dims(np.argmax(expected, along), along)
            clear = (expected >= np.take_along_axis(expected, best, along)).sum(along, dtype=np.int32) == 1
            alone = (got >= np.take_along_axis(got, best, along)).sum(along, dtype=np.int32) == 1
            decided, agreed = decided + int(clear.sum()), agreed + int((alone & clear).sum())
        agreement = agreed / decided if decided else None
    return Fidelity(
        cosine=float(np.clip(product / norms, -1.0, 1.0)) if norms else float(noise == 0.0),
        sqnr_db=ratio_db(signal, noise),
        sqnr_var_db=ratio_db(variance, noise / reference.size),
        max_abs_error=largest,
        argmax_agreement=agreement,
        count=reference.shape[0] if reference.ndim else 1,
        **vars(compare_variation(name, reference, candidate)),
    )

"""How closely one set of outputs follows another: pure numbers, no verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anynpu.errors import AccuracyError, ConfigError, IntegrityError
from anynpu.measure.decibels import ratio_db
from anynpu.measure.variation import compare_variation
from anynpu.tensors import Array


@dataclass(frozen=True)
class Fidelity:
    """How one output follows its reference over all samples.

    `sqnr_db` is 10 log10(sum ref^2 / sum err^2); `sqnr_var_db` puts the variance of the reference above the mean square
    of the error, so that a large constant offset earns nothing; `sqnr_centred_db` does so with what varies over the
    samples, and `unresolved`, `lost` and `uneven` go with it (`measure.variation.Variation`). All end at +-200 dB,
    which an exact match reaches. `argmax_agreement` is None where the axis holds one value or nothing is highest; of
    equal highest values none agrees.
    """

    cosine: float
    sqnr_db: float
    sqnr_var_db: float
    max_abs_error: float
    argmax_agreement: float | None
    count: int
    sqnr_centred_db: float | None = None
    unresolved: str = ""
    lost: tuple[str, ...] = ()
    uneven: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_outputs(
    reference: Mapping[str, Array], candidate: Mapping[str, Array], axis: int | Mapping[str, int] = -1
) -> dict[str, Fidelity]:
    """Returns the fidelity of every output; arrays hold real numbers, samples first, classes along `axis`."""
    if set(reference) != set(candidate):
        raise ConfigError(f"outputs differ in name: {sorted(reference)} and {sorted(candidate)}")
    axes = {name: axis if isinstance(axis, int) else axis.get(name, -1) for name in reference}
    return {name: compare_arrays(name, reference[name], candidate[name], axes[name]) for name in reference}


def compare_arrays(name: str, reference: Array, candidate: Array, axis: int = -1) -> Fidelity:
    """Returns the fidelity of one output."""
    if reference.shape != candidate.shape:
        raise ConfigError(f"output {name}: shape {list(candidate.shape)} compared with {list(reference.shape)}")
    if reference.size == 0:
        raise ConfigError(f"output {name}: nothing to compare, the arrays are empty")
    ref, cand = np.asarray(reference, np.float64), np.asarray(candidate, np.float64)
    _check_finite(name, ref, cand)
    error = cand - ref
    noise = float(np.sum(error**2))
    variation = compare_variation(name, np.asarray(reference), np.asarray(candidate))
    return Fidelity(
        cosine=_cosine(ref, cand),
        sqnr_db=ratio_db(float(np.sum(ref**2)), noise),
        sqnr_var_db=ratio_db(float(np.var(ref)), noise / ref.size),
        max_abs_error=float(np.max(np.abs(error))),
        argmax_agreement=_argmax_agreement(ref, cand, axis),
        count=ref.shape[0] if ref.ndim else 1,
        **vars(variation),
    )


def _check_finite(name: str, reference: Array, candidate: Array) -> None:
    if not np.isfinite(reference).all():
        raise IntegrityError(f"output {name}: the reference holds NaN or infinite values")
    bad = int(np.count_nonzero(~np.isfinite(candidate)))
    if bad:
        raise AccuracyError(
            f"output {name}: {bad} of {candidate.size} values are NaN or infinite", "non-finite values", bad, 0, [name]
        )


def _cosine(reference: Array, candidate: Array) -> float:
    a, b = reference.ravel(), candidate.ravel()
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    if norms == 0.0:
        return 1.0 if np.array_equal(a, b) else 0.0
    return float(np.clip(np.dot(a, b) / norms, -1.0, 1.0))


def _argmax_agreement(reference: Array, candidate: Array, axis: int) -> float | None:
    """Returns the share of places with the same highest value. Several that are highest agree with nothing; places
    where the reference has several are left out."""
    if reference.ndim == 0 or reference.shape[axis] < 2:
        return None
    decided = np.count_nonzero(reference == reference.max(axis, keepdims=True), axis) == 1
    if not decided.any():
        return None
    best = np.expand_dims(np.argmax(reference, axis), axis)
    alone = np.count_nonzero(candidate >= np.take_along_axis(candidate, best, axis), axis) == 1
    return float(np.mean(alone[decided]))

"""How closely one set of outputs follows another: pure numbers, no verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from anynpu.errors import AccuracyError, ConfigError, IntegrityError
from anynpu.tensors import Array

# Stands for an infinite ratio (no error at all), and its negative for no signal: JSON has no infinity.
MAX_DB = 200.0


@dataclass(frozen=True)
class Fidelity:
    """How one output follows its reference over all samples.

    `sqnr_db` is 10 log10(sum ref^2 / sum err^2); `sqnr_var_db` puts the variance of the reference above the mean square
    of the error, so that a large constant offset earns nothing. Both end at +-`MAX_DB`, which an exact match reaches.
    `argmax_agreement` is None where the axis holds one value.
    """

    cosine: float
    sqnr_db: float
    sqnr_var_db: float
    max_abs_error: float
    argmax_agreement: float | None
    count: int

    def to_json(self) -> dict[str, float | int | None]:
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
    return Fidelity(
        cosine=_cosine(ref, cand),
        sqnr_db=ratio_db(float(np.sum(ref**2)), noise),
        sqnr_var_db=ratio_db(float(np.var(ref)), noise / ref.size),
        max_abs_error=float(np.max(np.abs(error))),
        argmax_agreement=_argmax_agreement(ref, cand, axis),
        count=ref.shape[0] if ref.ndim else 1,
    )


def _check_finite(name: str, reference: Array, candidate: Array) -> None:
    if not np.isfinite(reference).all():
        raise IntegrityError(f"output {name}: the reference holds NaN or infinite values")
    bad = int(np.count_nonzero(~np.isfinite(candidate)))
    if bad:
        raise AccuracyError(
            f"output {name}: {bad} of {candidate.size} values are NaN or infinite", "non-finite values", bad, 0, [name]
        )


def ratio_db(signal: float, noise: float) -> float:
    """Returns signal over noise in decibels, within +-`MAX_DB`."""
    if noise == 0.0:
        return MAX_DB
    if signal == 0.0:
        return -MAX_DB
    return float(np.clip(10.0 * (np.log10(signal) - np.log10(noise)), -MAX_DB, MAX_DB))


def _cosine(reference: Array, candidate: Array) -> float:
    a, b = reference.ravel(), candidate.ravel()
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    if norms == 0.0:
        return 1.0 if np.array_equal(a, b) else 0.0
    return float(np.clip(np.dot(a, b) / norms, -1.0, 1.0))


def _argmax_agreement(reference: Array, candidate: Array, axis: int) -> float | None:
    if reference.ndim == 0 or reference.shape[axis] < 2:
        return None
    return float(np.mean(np.argmax(reference, axis) == np.argmax(candidate, axis)))

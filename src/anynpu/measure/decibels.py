"""Ratios in decibels, bounded so that JSON can hold them."""

from __future__ import annotations

import numpy as np

from anynpu.tensors import Array

# Stands for an infinite ratio (no error at all), and its negative for no signal: JSON has no infinity.
MAX_DB = 200.0


def ratio_db(signal: float, noise: float) -> float:
    """Returns signal over noise in decibels, within +-`MAX_DB`."""
    return float(ratios_db(np.asarray(signal), np.asarray(noise)))


def ratios_db(signal: Array, noise: Array) -> Array:
    """Returns signal over noise in decibels, element by element, within +-`MAX_DB`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = 10.0 * (np.log10(signal) - np.log10(noise))
    return np.asarray(np.where(np.asarray(noise) == 0, MAX_DB, np.clip(ratios, -MAX_DB, MAX_DB)), np.float64)

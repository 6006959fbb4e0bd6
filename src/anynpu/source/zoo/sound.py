"""Spectrograms with numpy, for the sounds that the zoo generates."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from anynpu.source.zoo.cards import Array


@lru_cache(maxsize=4)
def _filters(bins: int, bands: int, mel: bool) -> npt.NDArray[np.float64]:
    """Returns (bins, bands) triangles, evenly spaced in frequency or in a mel-like logarithm of it."""
    edges = np.linspace(0, 1, bands + 2)
    if mel:
        edges = (12.0**edges - 1) / 11
    edges = edges * (bins - 1)
    place = np.arange(bins)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    return np.maximum(0, np.minimum((place - low) / (middle - low), (high - place) / (high - middle)))


def band_energies(wave: npt.NDArray[np.floating], window: int, hop: int, bands: int, mel: bool) -> Array:
    """Returns (frames, bands) energies of a Hann-windowed wave."""
    frames = np.lib.stride_tricks.sliding_window_view(wave, window)[::hop] * np.hanning(window)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    return np.asarray(power @ _filters(power.shape[1], bands, mel), np.float32)

import numpy as np
import pytest

from anynpu.quantize.equalize import HEADROOM, MAX_FACTOR, ChannelPeaks, channel_factors


def test_peaks_are_the_largest_magnitudes():
    peaks = ChannelPeaks({"x": -1})
    peaks.observe({"x": np.array([[[1.0, -3.0]]])})
    peaks.observe({"x": np.array([[[-2.0, 0.5]]])})
    assert peaks.peak("x").tolist() == [2.0, 3.0]


def test_quiet_channels_are_lifted_by_the_strength():
    peak = np.array([8.0, 2.0, 0.0])
    assert channel_factors(peak, 1.0).tolist() == pytest.approx([1.0, 4.0 * HEADROOM, 1.0])
    assert channel_factors(peak, 0.5).tolist() == pytest.approx([1.0, 2.0 * HEADROOM**0.5, 1.0])
    assert channel_factors(peak, 0.0).tolist() == [1.0, 1.0, 1.0]


def test_nearly_silent_channels_get_a_bounded_factor():
    assert channel_factors(np.array([1.0, 1e-9]), 1.0).tolist() == pytest.approx([1.0, MAX_FACTOR * HEADROOM])
    assert channel_factors(np.zeros(2), 1.0).tolist() == [1.0, 1.0]

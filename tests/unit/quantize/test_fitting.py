"""Weights fitted to the inputs that they meet: the sums of a layer lose less than with the nearest integers."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.quantize.fitting import Moments, Window, fitted
from anynpu.quantize.weights import largest_integer, symmetric_scales


def correlated(rows, width, seed=0):
    """Returns inputs of which neighbours are loud together."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, 6)) @ draw.normal(size=(6, width)) + 0.1 * draw.normal(size=(rows, width))


@pytest.mark.parametrize("bits", [4, 8])
def test_the_sums_of_a_dense_layer_lose_less(bits):
    inputs, weights = correlated(400, 48), np.random.default_rng(1).normal(size=(12, 48))
    moments = Moments()
    moments.rows(inputs[:200])
    scales = symmetric_scales(weights, 0, bits)
    found = fitted(weights, moments, scales, bits)
    steps = scales.reshape(-1, 1)
    integers = found / steps
    np.testing.assert_allclose(integers, np.rint(integers), atol=1e-6)
    assert np.abs(integers).max() <= largest_integer(bits) + 1e-6
    np.testing.assert_allclose(symmetric_scales(found, 0, bits), scales, rtol=1e-6)
    nearest = np.clip(np.rint(weights / steps), -largest_integer(bits), largest_integer(bits)) * steps
    losses = [float(np.square(inputs[200:] @ (each - weights).T).sum()) for each in (found, nearest)]
    assert losses[0] < 0.5 * losses[1]


def test_moments_of_a_convolution_are_those_of_what_it_reads():
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(2)
    image = draw.normal(size=(4, 9, 8))
    window = Window(kernel=(3, 2), strides=(2, 1), dilations=(1, 2), pads=(1, 0, 0, 1), groups=2)
    moments = Moments()
    moments.image(image, window)
    padded = torch.nn.functional.pad(torch.tensor(image)[None], (0, 1, 1, 0))
    read = torch.nn.functional.unfold(padded, (3, 2), dilation=(1, 2), stride=(2, 1))[0].numpy()
    for group in (0, 1):
        part = read[group * 12 : (group + 1) * 12]
        np.testing.assert_allclose(moments.sums[group], part @ part.T)

"""The integer twin against plain loops, and what it does with damaged files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anynpu.errors import IntegrityError
from anynpu.runtime.ai8x import Layer, Network, Pool, convolve, forward, read_network, write_network


def by_loops(x, w, pad):
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    rows, columns = x.shape[1] - w.shape[2] + 1, x.shape[2] - w.shape[3] + 1
    out = np.zeros((len(w), rows, columns), np.int64)
    for o in range(len(w)):
        for r in range(rows):
            for c in range(columns):
                out[o, r, c] = (x[:, r : r + w.shape[2], c : c + w.shape[3]] * w[o]).sum()
    return out


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3]), st.integers(0, 2))
def test_a_convolution_is_exact(seed, kernel, pad):
    draw = np.random.default_rng(seed)
    x, w = draw.integers(-128, 128, (3, 5, 4)), draw.integers(-128, 128, (2, 3, kernel, kernel))
    assert np.array_equal(convolve(x.astype(float), w.astype(float), (pad, pad), (1, 1)), by_loops(x, w, pad))


def one(operation="linear", **settings):
    return Network("MAX78000", (1, 1, 1), (Layer("a", operation, (-1,), **settings),))


@pytest.mark.parametrize(
    ("x", "w", "b", "shift", "y"),
    [
        (1, 64, 0, 0, 1),  # 0.5 rounds up
        (-1, 64, 0, 0, 0),  # -0.5 rounds up too
        (-1, 65, 0, 0, -1),
        (100, 127, 0, 1, 127),  # saturates
        (-100, 127, 0, 1, -128),
        (0, 1, 5, 0, 5),  # a bias counts 128 products
        (0, 1, 5, -1, 3),
    ],
)
def test_rounding_and_saturation(x, w, b, shift, y):
    parameters = {"weight0": np.array([[w]]), "bias0": np.array([b])}
    assert forward(one(shift=shift), parameters, np.array([x]))[-1].item() == y


def test_activations_and_wide_outputs():
    parameters = {"weight0": np.array([[127]])}
    assert forward(one(activation="relu"), parameters, np.array([-100]))[-1].item() == 0
    assert forward(one(activation="abs", shift=1), parameters, np.array([-128]))[-1].item() == 127
    assert forward(one(width=32), parameters, np.array([-100]))[-1].item() == -12700


@pytest.mark.parametrize(
    ("values", "cut", "rounded"), [((1, 2), 1, 2), ((-1, -2), -1, -2), ((3, 4), 3, 4), ((1, 0), 0, 1)]
)
def test_means_are_cut_off_or_rounded_half_away_from_zero(values, cut, rounded):
    pool = Pool("average", (2, 1), (2, 1))
    for flag, wanted in ((False, cut), (True, rounded)):
        network = Network("MAX78000", (1, 2, 1), (Layer("p", "passthrough", (-1,), pool=pool),), flag)
        assert forward(network, {}, np.array(values))[-1].item() == wanted


def test_a_sum_saturates():
    layers = (Layer("a", "passthrough", (-1,)), Layer("b", "passthrough", (-1, 0)))
    assert forward(Network("MAX78000", (1, 1, 1), layers), {}, np.array([100]))[-1].item() == 127


@pytest.mark.parametrize("damage", ["model", "weights", "layer", "order"])
def test_damaged_files_are_found_out(tmp_path, damage):
    network = one()
    if damage == "order":
        network = Network("MAX78000", (1, 1, 1), (Layer("a", "linear", (3,)),))
    write_network(tmp_path, network, {} if damage == "layer" else {"weight0": np.array([[1]], np.int8)})
    if damage == "model":
        (tmp_path / "model.json").write_text('{"chip": 1}')
    if damage == "weights":
        (tmp_path / "weights.npz").write_bytes((tmp_path / "weights.npz").read_bytes()[:40])
    with pytest.raises(IntegrityError):
        read_network(tmp_path)

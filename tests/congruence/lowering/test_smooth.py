"""Channels around normalisations are made equally loud in the float graph that our own writer quantises."""

from __future__ import annotations

import numpy as np
import pytest
from attention_block import SAMPLES, block, run
from lowered_nets import by_litert, one

from anynpu.lowering.emit import quantising
from anynpu.lowering.followers import followers
from anynpu.lowering.lower import lower
from anynpu.lowering.read import from_bytes
from anynpu.lowering.smooth import smoothed
from anynpu.lowering.widen import wide_operators
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.tflite import quantize_file
from anynpu.quantize.tflite_passes import peaks, runner

DATA = Dataset({"x": SAMPLES}, None, "drawn")


def sqnr(tmp_path, model, smooth):
    (tmp_path / "float.tflite").write_bytes(to_bytes(lower(model)))
    out = tmp_path / "int8.tflite"
    passes = (quantising(), None, followers, smoothed if smooth else None)
    quantize_file(tmp_path / "float.tflite", DATA, QuantPlan(), out, *passes)
    wanted = run(model)
    return 10 * np.log10(np.sum(wanted**2) / np.sum((by_litert(out.read_bytes(), {"x": SAMPLES})[:, 0] - wanted) ** 2))


def test_the_float_file_computes_the_same_and_names_its_factors():
    content = to_bytes(lower(block(-30.0)))
    changed, factors = smoothed(content, lambda names: peaks(content, DATA, names))
    before, after = runner(content), runner(changed)
    sample = {"x": SAMPLES[:1]}
    values, others = before(sample), after(sample)
    assert np.allclose(values["y"], others["y"], atol=1e-4)
    assert len(factors) >= 5
    for name, each in factors.items():
        assert np.allclose(others[name], values[name] * np.asarray(each), rtol=1e-3, atol=1e-4), name


def test_what_stands_before_the_sums_is_computed_in_16_bits():
    content = to_bytes(lower(block(-30.0)))
    changed, _ = smoothed(content, lambda names: peaks(content, DATA, names))
    graph = from_bytes(changed)
    restored = {op.outputs[0] for op in graph.operators if op.outputs[0].endswith("/restored")}
    assert restored and restored <= wide_operators(graph, {})


def test_a_graph_without_normalisations_stays_as_it_is():
    content = to_bytes(lower(one("Relu", (1, 4))))
    assert smoothed(content, lambda names: pytest.fail("nothing is to be observed")) == (content, {})


def test_smoothing_pays(tmp_path):
    nets = [block(-30.0, seed=seed) for seed in range(3)]
    gains = [sqnr(tmp_path, net, True) - sqnr(tmp_path, net, False) for net in nets]
    assert np.mean(gains) > 4


def test_a_mask_of_any_depth_costs_the_scores_nothing(tmp_path):
    """A mask of -1e9 at its own scale would leave the sum no bit of a score, and LiteRT refuses such a sum."""
    mild = sqnr(tmp_path, block(-30.0), True)
    assert all(abs(sqnr(tmp_path, block(mask), True) - mild) < 0.5 for mask in (-1e4, -1e9, -np.inf))

"""Channels around normalisations are made equally loud in the float graph that our own writer quantises."""

from __future__ import annotations

import numpy as np
from attention_block import SAMPLES, block, run
from lowered_nets import by_litert, one

from anynpu.lowering.integer_file import quantize_file
from anynpu.lowering.lower import lower
from anynpu.lowering.net import LoweredForm
from anynpu.lowering.widen import wide_operators
from anynpu.lowering.write import to_bytes
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.plan import QuantPlan
from anynpu.quantize.repairs import smoothed

DATA = Dataset({"x": SAMPLES}, None, "drawn")


def sqnr(tmp_path, model, smooth):
    (tmp_path / "float.tflite").write_bytes(to_bytes(lower(model)))
    out = tmp_path / "int8.tflite"
    quantize_file(tmp_path / "float.tflite", DATA, QuantPlan(equalize=smooth), out)
    wanted = run(model)
    return 10 * np.log10(np.sum(wanted**2) / np.sum((by_litert(out.read_bytes(), {"x": SAMPLES})[:, 0] - wanted) ** 2))


def test_the_graph_computes_the_same_and_names_its_factors():
    given = LoweredForm(lower(block(-30.0)))
    form, count = smoothed(given, DATA)
    sample = {"x": SAMPLES[:1]}
    values, others = given.run()(sample), form.run()(sample)
    assert np.allclose(values["y"], others["y"], atol=1e-4)
    assert count == 4 and len(form.factors) >= 5
    for name, each in form.factors.items():
        assert np.allclose(others[name], values[name] * np.asarray(each), rtol=1e-3, atol=1e-4), name


def test_what_stands_before_the_sums_is_computed_in_16_bits():
    graph = smoothed(LoweredForm(lower(block(-30.0))), DATA)[0].graph
    restored = {op.outputs[0] for op in graph.operators if op.outputs[0].endswith("/restored")}
    assert restored and restored <= wide_operators(graph, {})


def test_a_graph_without_normalisations_stays_as_it_is():
    given = LoweredForm(lower(one("Relu", (1, 4))))
    form, count = smoothed(given, Dataset({"x": np.ones((2, 4), np.float32)}, None, "ones"))
    assert not count and form.graph == given.graph and not form.factors


def test_smoothing_pays(tmp_path):
    nets = [block(-30.0, seed=seed) for seed in range(3)]
    gains = [sqnr(tmp_path, net, True) - sqnr(tmp_path, net, False) for net in nets]
    assert np.mean(gains) > 4


def test_a_mask_of_any_depth_costs_the_scores_nothing(tmp_path):
    """A mask of -1e9 at its own scale would leave the sum no bit of a score, and LiteRT refuses such a sum."""
    mild = sqnr(tmp_path, block(-30.0), True)
    assert all(abs(sqnr(tmp_path, block(mask), True) - mild) < 0.5 for mask in (-1e4, -1e9, -np.inf))

"""Proofs of ONNX models: on how many samples, and on which where nobody gives any."""

from __future__ import annotations

import numpy as np
from graph_nets import parse, weights

from anynpu.graph.proof import proof_count, random_probes


def net():
    return parse("g (float[1,4] x) => (float[1,3] y) { y = MatMul(x, w) }", w=weights(4, 3))


def test_all_samples_are_compared_unless_the_model_is_large():
    small = net()
    assert proof_count(small, 40) == 40 and proof_count(small, 9999) == 256


def test_random_inputs_reach_many_scales():
    sizes = [float(np.abs(next(iter(feeds.values()))).max()) for feeds in random_probes(net())]
    assert min(sizes) == 0 and max(sizes) > 20

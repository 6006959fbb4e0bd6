"""Float models that are no reference: what is said of them on the user's own samples, and of healthy ones."""

from __future__ import annotations

import numpy as np
import pytest
from proofs import SAMPLES, network, proof, weights

from anynpu.errors import AccuracyError
from anynpu.measure.verify import Gate, judge
from anynpu.quantize.plan import QuantPlan

FLOAT = QuantPlan("float32")
"""The build is the float model itself: what is said is said of that."""


def dense(rest: str, outputs: int = 6, **tensors: object) -> object:
    """Returns a network of two dense layers, the values `z`, and what follows them."""
    text = "net (float[1, 8] x) => (float[1, %d] y) { a = Gemm(x, w, b) r = Relu(a) z = MatMul(r, v) %s }"
    given = {"w": weights(8, 16), "b": weights(16, seed=1), "v": weights(16, outputs, seed=2)}
    return network(text % (outputs, rest), **(given | tensors))


def test_a_net_that_moves_by_a_ten_thousandth_of_its_maximum(tmp_path):
    model = dense("t = Mul(z, k) y = Add(t, c)", k=[3e-5], c=np.arange(1.0, 7.0))
    verification = proof(tmp_path / "int8", model)
    assert verification.sqnr_db > 40
    (said, *_) = verification.warnings
    assert "'y' of the float model hardly depends on the input: over 60 samples it moves by" in said
    with pytest.raises(AccuracyError, match="does not follow the float model from sample to sample"):
        judge(verification, Gate())


def test_a_net_that_answers_every_sample_of_the_user_alike(tmp_path):
    """It reacts to random inputs of other scales, and so passed as sound."""
    model = dense("s = Mul(z, k) t = Sub(s, c) u = Relu(t) y = Add(u, c)", k=[0.01], c=[1.0])
    verification = proof(tmp_path / "float", model, plan=FLOAT)
    with pytest.raises(
        AccuracyError, match=r"no use as a reference: output 'y' .* the same values for 60 differing"
    ) as e:
        judge(verification, Gate())
    assert any("gives only 0 for all 60 samples" in text for text in e.value.worst)


@pytest.mark.parametrize(
    ("function", "tensors", "last"),
    [
        pytest.param("t = Add(z, c) y = Softmax(t)", {"c": [90.0, 0, 0, 0, 0, 0]}, "Softmax", id="softmax"),
        pytest.param("t = Add(z, c) y = Sigmoid(t)", {"c": [90.0]}, "Sigmoid", id="sigmoid"),
    ],
)
def test_a_saturated_function_with_one_answer(tmp_path, function, tensors, last):
    verification = proof(tmp_path / "float", dense(function, **tensors), plan=FLOAT)
    with pytest.raises(AccuracyError, match=f"no use as a reference: .*its {last} is saturated"):
        judge(verification, Gate())


def test_a_saturated_softmax_with_several_answers_is_named(tmp_path):
    verification = proof(tmp_path / "float", dense("t = Mul(z, k) y = Softmax(t)", k=[1e6]), plan=FLOAT)
    judge(verification, Gate())
    assert any("its Softmax is saturated, every value is 0 or 1" in text for text in verification.warnings)


def test_a_dead_rectifier_beside_a_living_path(tmp_path):
    model = dense("q = MatMul(x, p) y = Add(z, q)", b=np.full(16, -90.0), p=weights(8, 6, seed=4))
    verification = proof(tmp_path / "float", model, plan=FLOAT)
    judge(verification, Gate())
    (said,) = verification.warnings
    assert said.startswith("Relu ") and said.endswith("gives only 0 for all 60 samples: nothing passes it")


@pytest.mark.parametrize("count", [1, 3])
def test_an_output_that_reads_a_few_input_elements(tmp_path, count):
    chosen = np.zeros((96, 16))
    chosen[[5, 50, 77][:count]] = weights(count, 16)
    text = """net (float[1, 96] x) => (float[1, 4] y, float[1, 4] z) {
        a = MatMul(x, w) r = Tanh(a) y = MatMul(r, v) b = MatMul(x, u) z = Tanh(b) }"""
    model = network(text, w=chosen, v=weights(16, 4), u=weights(96, 4))
    samples = np.random.default_rng(1).normal(size=(20, 96)).astype(np.float32)
    verification = proof(tmp_path / "float", model, samples, plan=FLOAT)
    judge(verification, Gate())
    (said,) = verification.warnings
    assert f"output 'y' of the float model reads {count} of 96 input elements: x[0, 5]" in said


def test_a_detector_of_what_is_not_in_the_samples(tmp_path):
    verification = proof(tmp_path / "float", dense("t = Sub(z, c) y = Sigmoid(t)", 1, c=[12.0]))
    (said,) = verification.warnings
    assert "of 0 or 1 for all 60 samples: they do not show what it tells apart" in said
    assert verification.outputs["y"].sqnr_centred_db > 20


def test_one_constant_output_among_others(tmp_path):
    """A mask that goes straight through is no fault of the model."""
    text = """net (float[1, 8] x, float[1, 8] m) => (float[1, 8] y, float[1, 8] n) {
        a = Mul(x, m) y = Tanh(a) n = Mul(m, m) }"""
    verification = proof(tmp_path / "float", network(text), {"x": SAMPLES, "m": np.ones_like(SAMPLES)}, plan=FLOAT)
    judge(verification, Gate())
    (said,) = verification.warnings
    assert "output 'n' of the float model gives the same values for 60 differing samples" in said


def test_samples_that_are_all_the_same_prove_nothing_against_a_model(tmp_path):
    verification = proof(tmp_path / "float", dense("y = Tanh(z)"), np.repeat(SAMPLES[:1], 20, 0), plan=FLOAT)
    judge(verification, Gate())
    assert not verification.unfit


@pytest.mark.parametrize(
    ("function", "samples"),
    [
        pytest.param("y = Clip(x, low, high)", 5000 + 1000 * np.abs(SAMPLES), id="pressure"),
        pytest.param("y = Sqrt(x)", np.abs(SAMPLES), id="root"),
    ],
)
def test_a_model_that_random_inputs_say_nothing_of(tmp_path, function, samples):
    """Random numbers get one answer of the first and NaN of the second; the user's samples get their own."""
    text = "net (float[1, 8] x) => (float[1, 8] y) { %s }"
    bounds = {"low": np.float32(5000), "high": np.float32(9000)}
    model = network(text % function, **bounds)
    judge(proof(tmp_path / "float", model, samples.astype(np.float32), plan=FLOAT), Gate())
    alike = proof(tmp_path / "alike", model, np.repeat(samples[:1], 20, 0).astype(np.float32), plan=FLOAT)
    with pytest.raises(AccuracyError, match=r"no use as a reference: y: (gives the same values|holds NaN)"):
        judge(alike, Gate())  # nothing but the random inputs is left to judge it by


def test_a_healthy_model_is_left_alone(tmp_path):
    verification = proof(tmp_path / "float", dense("y = Tanh(z)"), plan=FLOAT)
    judge(verification, Gate())
    assert verification.warnings == () and verification.unfit == ()

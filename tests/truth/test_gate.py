"""Outputs that look fine in one figure and are not: what the gate says of them, and of healthy ones like them."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from proofs import SAMPLES, network, proof, weights

from anynpu.errors import AccuracyError
from anynpu.measure import evaluate
from anynpu.measure.fidelity import compare_arrays, compare_outputs
from anynpu.measure.metrics import at_chance, score
from anynpu.measure.verify import Gate, cautions, judge, shortfall
from anynpu.quantize.plan import QuantPlan

RNG = np.random.default_rng(3)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return scale * RNG.normal(size=shape)


def rounded(values: np.ndarray) -> np.ndarray:
    """Returns values as 8 bits with one scale for all hold them."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    step = (high - low) / 255
    return np.round(values / step) * step


def verdict(reference: np.ndarray, candidate: np.ndarray | None = None) -> str:
    """Returns what the gate has against an output, with its default floor."""
    candidate = rounded(reference) if candidate is None else candidate
    found = shortfall({"y": compare_arrays("y", reference, candidate)}, Gate().min_sqnr_db)
    return found.message if found else ""


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


TEMPERATURE = network(
    "net (float[1, 8] x) => (float[1, 1] y) { h = MatMul(x, w) s = Tanh(h) y = Gemm(s, k, c) }",
    w=weights(8, 1),
    k=[[0.5]],
    c=[293.0],
)


def test_a_temperature_of_293_kelvin_stands_still(tmp_path):
    verification = proof(tmp_path / "build", TEMPERATURE)
    assert verification.sqnr_db > 50
    with pytest.raises(AccuracyError, match=r"'y' does not follow .* it gives 2 values in steps of 1.1") as error:
        judge(verification, Gate())
    assert error.value.metric == "sqnr_centred_db" and "int16" in error.value.hint
    judge(verification, Gate(min_sqnr_db=0))  # the user's own word


def test_16_bits_keep_what_8_lose(tmp_path):
    verification = proof(tmp_path / "build", TEMPERATURE, plan=QuantPlan("int16"))
    judge(verification, Gate())
    assert verification.outputs["y"].sqnr_centred_db > 30 and not verification.warnings


LOGITS = normal(50, 10)


@pytest.mark.parametrize("classes", [10, 400])
def test_small_logits_on_a_thousand(classes):
    assert "does not follow the float model from sample to sample" in verdict(1000 + normal(50, classes))
    assert verdict(normal(50, classes)) == ""


DETECTOR = network(
    """net (float[1, 8] x) => (float[1, 24, 30] y) {
        b = MatMul(x, wb) c = Sigmoid(b) d = Mul(c, k) e = Reshape(d, box)
        s = MatMul(x, ws) t = Add(s, bias) u = Sigmoid(t) v = Reshape(u, score)
        y = Concat<axis = 1>(e, v) }""",
    wb=weights(8, 120),
    k=[640.0],
    ws=3 * weights(8, 600, seed=1),
    bias=[-3.0],
    box=np.array([1, 4, 30]),
    score=np.array([1, 20, 30]),
)


def test_a_detector_without_a_card_whose_scores_are_all_zero(tmp_path):
    verification = proof(tmp_path / "build", DETECTOR)
    assert verification.sqnr_db > 30
    with pytest.raises(AccuracyError, match=r"rows 4..23 of axis 1 of output 'y' vary .* are constant") as error:
        judge(verification, Gate())
    assert "--task" in error.value.hint
    (said,) = verification.warnings
    assert "those of rows 4..23 of axis 1 vary within" in said and "--task" in said


BOXES, SCORES = 320 + normal(40, 4, 60, scale=80), sigmoid(normal(40, 20, 60) - 3)


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        pytest.param(np.concatenate([BOXES, SCORES], 1).transpose(0, 2, 1), "rows 4..23 of axis 2", id="scores-last"),
        pytest.param(np.concatenate([BOXES, SCORES[:, :1]], 1), "row 4 of axis 1", id="one-class"),
        # ONNX Runtime's sigmoid gives zeros below -18.
        pytest.param(np.concatenate([BOXES, SCORES * (SCORES > 0.05)], 1), "rows 4..23 of axis 1", id="scores-of-zero"),
        pytest.param(np.concatenate([BOXES / 3, SCORES], 1), "of axis 1 of output 'y'", id="two-values"),
        pytest.param(np.stack([normal(50, 8, 8, scale=300), normal(50, 8, 8)], 1), "row 1 of axis 1", id="head"),
        pytest.param(
            np.stack([101325 + normal(50, scale=900), 293 + normal(50), normal(50, scale=9)], 1),
            "elements 1..2",
            id="sensors",
        ),
        pytest.param(
            np.stack([normal(60, 12, 12, scale=s) for s in (1, 2, 1, 0.001, 1, 1, 2, 1)], 1),
            "row 3 of axis 1",
            id="channel",
        ),
        pytest.param(normal(60, 200) * np.where(np.arange(200) == 77, 0.001, 1), "element 77", id="element"),
    ],
)
def test_parts_that_vary_in_the_float_model_and_not_in_the_build(reference, named):
    assert named in verdict(reference) and "in the float model (std" in verdict(reference)


def test_an_element_by_name_with_its_figures():
    reference = LOGITS.copy()
    reference[:, 3] *= 0.12 / reference[:, 3].std(ddof=1)
    candidate = reference.copy()
    candidate[:, 3] = 0.1
    said = "element 3 of output 'y' varies in the float model (std 0.12 over 50 samples) and is constant in this build"
    assert verdict(reference, candidate) == said


def test_boxes_padded_with_zeros_whose_scores_are_lost():
    rows = np.concatenate([320 + normal(40, 20, 4, scale=90), sigmoid(normal(40, 20, 2))], 2)
    rows[:, 12:] = 0
    assert "rows 4..5 of axis 2" in verdict(rows)


def test_class_numbers_of_which_one_is_left():
    numbers = RNG.integers(40, 45, (60, 1))
    assert "takes 5 values in the float model over 60 samples and only 42" in verdict(numbers, np.full((60, 1), 42))
    rare = np.r_[np.full((58, 1), 40), [[41], [41]]]
    assert verdict(rare, np.full((60, 1), 40)) == ""  # missed by chance


def test_an_output_that_gives_the_same_for_every_sample():
    means = normal(1, 300, scale=40)
    assert "it gives the same for every sample" in verdict(means + normal(50, 300), np.repeat(means, 50, 0))


def test_errors_that_bury_what_varies():
    reference = normal(1, 300, scale=100) + normal(50, 300)
    assert "its error is 6" in verdict(reference, reference + normal(1, 300, scale=6))


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param(np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True) * ([1] * 9 + [1e-3]), id="absent-class"),
        pytest.param(np.concatenate([LOGITS, np.full((50, 3), 7.0)], 1), id="constant-elements"),
        pytest.param(np.maximum(normal(50, 64) * np.geomspace(1, 1e-3, 64) - 0.3, 0), id="sparse-features"),
        pytest.param(normal(50, 1, 16, 16) * np.geomspace(1, 1e-4, 256).reshape(16, 16), id="quiet-pixels"),
        pytest.param(normal(50, 128) * np.geomspace(1, 1e-3, 128), id="linear-autoencoder"),
        pytest.param(sigmoid(normal(50, 20, 300) * 2 - 7), id="sparse-scores"),
        pytest.param(normal(1, 1000) + normal(12, 1000, scale=0.006), id="untrained-on-noise"),
        pytest.param(normal(50, 1), id="one-number"),
        pytest.param(np.eye(4)[RNG.integers(0, 4, 50)], id="one-hot"),
    ],
)
def test_healthy_outputs_pass(reference):
    assert verdict(reference) == ""
    assert not compare_arrays("y", reference, rounded(reference)).uneven


def test_parts_that_are_uneven_and_alive_are_a_warning():
    reference = np.concatenate([RNG.uniform(-120, 120, (50, 4)), RNG.uniform(-1, 1, (50, 4))], 1)
    fidelities = {"y": compare_arrays("y", reference, rounded(reference))}
    assert shortfall(fidelities, 10.0) is None
    (said,) = cautions(fidelities)
    assert "of elements 4..7 vary within" in said and "outputs of their own" in said


@pytest.mark.parametrize(("count", "said"), [(1, "1 sample is too few"), (4, "4 samples are too few")])
def test_few_samples_are_said(count, said):
    reference = 293 + normal(count, 1, scale=0.3)
    fidelities = {"y": compare_arrays("y", reference, np.full_like(reference, 293))}
    assert shortfall(fidelities, 10.0) is None and said in cautions(fidelities)[0]


def test_errors_as_large_as_what_varies_are_a_warning():
    reference = normal(1, 300, scale=20) + normal(50, 300)
    fidelities = {"y": compare_arrays("y", reference, reference + normal(50, 300, scale=1.2))}
    assert shortfall(fidelities, 10.0) is None
    assert "the error is larger than what varies from sample to sample (-1." in cautions(fidelities)[0]
    assert cautions(fidelities, random=True) == []


def test_equal_outputs_agree_with_nothing():
    assert compare_arrays("y", -(LOGITS**2) * [0, *[1] * 9], np.zeros((50, 10))).argmax_agreement == 0


@pytest.mark.parametrize("metric", ["top1", "mean_top1"])
def test_a_tie_is_not_right(metric):
    shape = (20, 16) if metric == "top1" else (20, 16, 2, 2)
    assert score(metric, {}, {"y": np.zeros(shape)}, np.zeros(20, np.int64)) == 0


def test_a_tie_for_the_fifth_place_is_not_right():
    outcome = evaluate.classified(np.zeros((20, 10)), np.zeros(20, np.int64))
    assert list(outcome.scores(np.ones(20))) == [0, 0]


LABELS = np.tile(np.arange(10), 20)


@pytest.mark.parametrize(
    ("metric", "reached", "labels", "said"),
    [
        pytest.param("top1", 0.1, LABELS, "of 10.0% is no better than chance (a guess among 10 classes", id="top1"),
        pytest.param("top1", 0.9, np.r_[np.zeros(180, int), np.ones(20, int)], "the commonest label", id="majority"),
        pytest.param("auc_reconstruction", 0.47, LABELS % 2, "a guess between normal and anomalous: 50.0%", id="auc"),
        pytest.param("map50", 0.004, LABELS, "next to nothing found", id="map50"),
    ],
)
def test_a_float_score_at_chance_is_said(metric, reached, labels, said):
    (text,) = at_chance(metric, reached, {"y": np.zeros((200, 10))}, labels)
    assert said in text and "check labels" in text
    assert at_chance(metric, 0.93, {"y": np.zeros((200, 10))}, labels) == []


def test_luck_on_few_samples_is_no_skill():
    labels = np.arange(12) % 10
    (text,) = at_chance("top1", 2 / 12, {"y": np.zeros((12, 10))}, labels)
    assert "16.7% is no better than chance" in text
    assert at_chance("top1", 5 / 12, {"y": np.zeros((12, 10))}, labels) == []


def test_chance_in_a_build(tmp_path):
    labels = RNG.integers(0, 2, len(SAMPLES))
    labels[:2] = 0, 1
    model = network("net (float[1, 8] x) => (float[1, 8] y) { y = Mul(x, k) }", k=[2.0])
    verification = proof(tmp_path / "build", model, labels=labels + 6, metric="top1")
    assert any("no better than chance" in text and "float model itself" in text for text in verification.warnings)


def test_chance_in_an_eval():
    outcome = evaluate.classified(np.eye(10)[LABELS[::-1]], LABELS)
    assert "no better than chance" in evaluate.no_better(outcome)
    assert evaluate.no_better(evaluate.classified(np.eye(10)[LABELS], LABELS)) == ""


FINDER = network(
    """net (float[1, 8] x) => (float[1, 6] y, float[1, 40] found) {
        y = MatMul(x, w) s = MatMul(x, v) t = Add(s, bias) found = Sigmoid(t) }""",
    w=weights(8, 6),
    v=0.3 * weights(8, 40, seed=1),
    bias=np.where(np.arange(40) < 39, -12.0, -5.0),
)


def test_a_head_that_finds_nothing_in_the_samples_does_not_count(tmp_path):
    verification = proof(tmp_path / "build", FINDER)
    quiet, heard = verification.outputs["found"], verification.outputs["y"]
    assert quiet.quiet and quiet.sqnr_db < heard.sqnr_db and not heard.quiet
    assert verification.sqnr_db == heard.sqnr_db > 30
    judge(verification, Gate())
    assert any("'found' stays at 0 or 1" in text and "does not count" in text for text in verification.warnings)


def test_it_counts_where_the_build_finds_something_and_where_there_is_nothing_else():
    nothing, y = sigmoid(normal(20, 40, scale=0.3) - 8), normal(20, 6)
    alarm = nothing.copy()
    alarm[3, 7] = 0.9
    for head, alone, said in ((alarm, {}, "SQNR"), (0 * nothing, {}, ""), (0 * nothing, {"y"}, "SQNR")):
        expected = {name: each for name, each in (("y", y), ("found", nothing)) if name not in alone}
        got = {name: each for name, each in (("y", y), ("found", head)) if name not in alone}
        short = shortfall(compare_outputs(expected, got, probabilities=["found"]), Gate().min_sqnr_db)
        assert (said in short.message) if short else not said


def test_small_numbers_that_are_no_probabilities_count():
    small = {"y": normal(20, 6), "metres": np.abs(normal(20, 4, scale=0.003))}
    short = shortfall(compare_outputs(small, small | {"metres": 0 * small["metres"]}), Gate().min_sqnr_db)
    assert short is not None and "SQNR" in short.message


def test_compare_judges_as_build_does(tmp_path, cli):
    proof(tmp_path / "build", TEMPERATURE)
    np.save(tmp_path / "x.npy", SAMPLES)
    done = cli("compare", "build/float", "build/int8", "--data", "x.npy", "-f", "json")
    record = json.loads(done.stdout)
    assert done.returncode == 1 and record["outputs_verdict"] == "different" and record["verdict"] == "worse"
    assert "does not follow the float model from sample to sample" in record["outputs_shortfall"]


def test_a_whole_build_says_it_everywhere(tmp_path, cli):
    onnx.save(DETECTOR, tmp_path / "net.onnx")
    np.save(tmp_path / "x.npy", SAMPLES)
    done = cli("build", "-m", "net.onnx", "-t", "cpu", "--data", "x.npy", "-o", "out", "--no-repair")
    assert done.returncode == 7
    pages = {name: (tmp_path / "out" / name).read_text() for name in ("report.md", "report.junit.xml", "report.html")}
    for page in (done.stdout + done.stderr, *pages.values()):
        assert "rows 4..23 of axis 1 of output" in page and "are constant in this build" in page
        assert "warning: the values of output" in page

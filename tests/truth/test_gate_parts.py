"""Outputs of which a part or a few samples are wrong: what the gate says of them, and what it lets pass."""

from __future__ import annotations

import numpy as np
import pytest
from proofs import SAMPLES, judged, network, proof, weights

from anynpu.errors import AccuracyError
from anynpu.measure.fidelity import compare_arrays
from anynpu.measure.verify import Gate, cautions, judge, shortfall

RNG = np.random.default_rng(11)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return scale * RNG.normal(size=shape)


def rounded(values: np.ndarray, bits: int = 8) -> np.ndarray:
    """Returns values as integers with one scale for all hold them."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    step = (high - low) / (2**bits - 1)
    return np.round(values / step) * step


def verdict(reference: np.ndarray, candidate: np.ndarray) -> str:
    """Returns what the gate has against an output, with its default floor."""
    found = shortfall({"y": compare_arrays("y", reference, candidate)}, Gate().min_sqnr_db)
    return found.message if found else ""


def noise(part: np.ndarray) -> np.ndarray:
    return RNG.permutation(part.ravel()).reshape(part.shape)


WRONG = {
    "noise": noise,
    "sign": np.negative,
    "offset": lambda part: part + 2 * part.std(),
    "next": lambda part: np.roll(part, 1, axis=0),
}


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize(
    ("shape", "axis", "part", "named"),
    [
        pytest.param((50, 256, 6, 6), 1, 0, "row 0 of axis 1", id="channel"),
        pytest.param((50, 6, 6, 64), 3, 63, "row 63 of axis 3", id="channel-last"),
        pytest.param((50, 1000), 1, 500, "element 500", id="logit"),
        pytest.param((50, 64, 48), 1, 63, "row 63 of axis 1", id="token"),
    ],
)
def test_a_part_that_is_wrong_among_right_ones(shape, axis, part, named, how):
    reference = normal(*shape)
    candidate = rounded(reference)
    assert verdict(reference, candidate) == ""
    cut = (slice(None),) * axis + (part,)
    candidate[cut] = WRONG[how](candidate[cut])
    said = verdict(reference, candidate)
    assert f"{named} of output 'y' varies in the float model" in said and "does not follow in this build" in said


def test_two_channels_that_have_changed_places():
    reference = normal(50, 64, 6, 6)
    candidate = rounded(reference)
    candidate[:, [7, 8]] = candidate[:, [8, 7]]
    assert "rows 7..8 of axis 1 of output 'y' vary" in verdict(reference, candidate)


def test_a_small_channel_of_four_that_stands_still():
    reference = normal(50, 4, 8, 8) * np.array([1, 0.05, 1, 1])[:, None, None]
    candidate = rounded(reference)
    candidate[:, 1] = 0
    assert "row 1 of axis 1 of output 'y' varies" in verdict(reference, candidate)


def test_a_rare_class_that_is_never_found():
    labels = np.r_[np.arange(196) % 9, [9] * 4]
    reference = 10 * np.eye(10)[labels] + normal(200, 10, scale=0.5)
    candidate = rounded(reference)
    candidate[labels == 9, 9] = 0
    assert "element 9 of output 'y' varies" in verdict(reference, candidate)


@pytest.mark.parametrize("order", ["rows", "boxes"])
def test_a_detector_flattened_to_one_vector(order):
    boxes, scores = 320 + normal(40, 4, 80, scale=90), 1 / (1 + np.exp(5 - normal(40, 80, 80, scale=2)))
    rows = np.concatenate([boxes, scores], 1)
    flat = (rows if order == "rows" else rows.transpose(0, 2, 1)).reshape(40, -1)
    fidelity = compare_arrays("y", flat, rounded(flat))
    found = shortfall({"y": fidelity}, 10.0)
    assert found and f"elements {'320..' if order == 'rows' else '4..83, 88..167,'}" in found.message
    assert "--task" in found.hint and "outputs of their own" in fidelity.uneven
    assert verdict(flat, rounded(flat, 16)) == ""


@pytest.mark.parametrize("masked", ["always", "sometimes"])
def test_a_mask_of_minus_a_billion_beside_logits(masked):
    reference = normal(50, 40)
    where = np.arange(40) >= 30 if masked == "always" else RNG.random((50, 40)) < 0.2
    reference = np.where(where, -1e9, reference)
    assert "does not follow the float model from sample to sample" in verdict(reference, rounded(reference))
    assert verdict(reference, np.where(where, -1e9, rounded(np.where(where, 0, reference)))) == ""


def test_many_temperatures_at_places_of_their_own():
    reference = RNG.uniform(200, 350, (1, 40)) + normal(50, 40, scale=0.25)
    assert "in steps of 1.3" in verdict(reference, rounded(reference))
    assert verdict(reference, rounded(reference, 16)) == ""


def test_a_small_anomaly_score_that_stands_still():
    reference = 0.008 + np.abs(normal(50, 1, scale=0.001))
    assert "does not follow" in verdict(reference, np.full_like(reference, reference.mean()))
    assert verdict(reference, rounded(reference)) == ""


def test_a_reading_that_is_off_throughout():
    reference = 293 + normal(50, 1, scale=10)
    assert "it is off by 30 throughout where the float model varies by" in verdict(reference, rounded(reference) + 30)


def test_a_row_of_class_numbers_that_stands_still():
    reference = RNG.integers(0, 21, (50, 1, 24, 24))
    candidate = reference.copy()
    candidate[:, :, 5] = 0
    assert "row 5 of axis 2 of output 'y' take several values" in verdict(reference, candidate)


def test_class_numbers_that_are_close_and_wrong():
    reference = RNG.integers(900, 910, (50, 1))
    candidate = RNG.integers(900, 910, (50, 1))
    assert "of the numbers of output 'y' are those of the float model" in verdict(reference, candidate)
    assert verdict(reference, np.where(np.arange(50)[:, None] < 8, candidate, reference)) == ""


def test_samples_that_are_wrong_where_the_others_are_right():
    reference = normal(100, 300)
    candidate = rounded(reference)
    candidate[[4, 17]] = candidate[[17, 4]]
    fidelities = {"y": compare_arrays("y", reference, candidate)}
    assert "output 'y' is wrong for 2 of 100 samples (4, 17)" in cautions(fidelities)[0]


def test_readings_that_are_cut_off_are_a_warning():
    reference = np.exp(normal(200, 1, scale=1.2))
    fidelities = {"y": compare_arrays("y", reference, rounded(np.minimum(reference, np.quantile(reference, 0.95))))}
    (said,) = cautions(fidelities)
    assert "output 'y' stops at" in said and "where the float model reaches" in said


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda y: np.where(RNG.random(y.shape) < 0.001, 0, y), id="single-values"),
        pytest.param(lambda y: y + normal(*y.shape, scale=0.25), id="12-dB"),
        pytest.param(lambda y: 0.8 * y, id="gain"),
    ],
)
def test_errors_spread_over_all_parts_pass(change):
    reference = normal(50, 64, 6, 6)
    assert verdict(reference, change(reference)) == ""


def test_padded_rows_of_a_detector_that_finds_one_box_less_pass():
    reference = np.zeros((50, 20, 6))
    reference[:, :4] = 0.5 + normal(50, 4, 6, scale=0.1)
    reference[7, 4] = 0.5
    candidate = rounded(reference)
    candidate[7, 4] = 0
    assert verdict(reference, candidate) == ""


def test_an_untrained_network_that_hardly_moves_passes_with_a_warning():
    reference = normal(1, 1000) + normal(12, 1000, scale=0.0005)
    fidelities = {"y": compare_arrays("y", reference, reference + normal(1, 1000, scale=0.01))}
    assert shortfall(fidelities, 10.0) is None
    for random in (False, True):
        assert "the error is larger than what varies" in cautions(fidelities, random)[0]


def test_one_output_of_two_that_is_wrong_in_a_build(tmp_path):
    model = network(
        "net (float[1, 8] x) => (float[1, 6] good, float[1, 3] bad) { good = MatMul(x, w) bad = Gemm(x, v, c) }",
        w=weights(8, 6),
        v=0.2 * weights(8, 3, seed=1),
        c=[293.0] * 3,
    )
    with pytest.raises(AccuracyError, match="output 'bad' does not follow the float model"):
        judge(proof(tmp_path / "both", model), Gate())
    alone = network("net (float[1, 8] x) => (float[1, 6] y) { y = MatMul(x, w) }", w=weights(8, 6))
    assert not judged(tmp_path / "one", alone, SAMPLES).warnings


def test_a_row_of_one_channel_that_is_wrong_among_right_ones():
    reference = normal(8, 64, 20, 20)
    candidate = rounded(reference)
    candidate[:, 5, 3] = noise(candidate[:, 5, 3])
    assert "part [5, 3] (axes 1, 2) of output 'y' varies" in verdict(reference, candidate)


def test_the_worst_of_many_rows_of_a_map_are_not_lost():
    """The maps of a detector on eight pictures: the error differs from row to row by chance, and some are worst."""
    reference = 2 + normal(8, 64, 40, 40)
    loudness = np.exp(normal(64, 40, 1, scale=0.55)) * 0.25
    candidate = reference + loudness * normal(8, 64, 40, 40)
    parts = np.sqrt(np.square(candidate - reference).mean((0, 3)) / reference.var((0, 3)))
    assert np.count_nonzero(parts > 1) >= 3  # rows whose error is larger than what varies
    assert verdict(reference, candidate) == ""

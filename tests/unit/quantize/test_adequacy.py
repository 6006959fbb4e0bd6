"""Whether calibration samples are enough: by resampling of the limits that each of them gave."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper
from sick import artifact

from anynpu.measure.adequacy import expected_loss, judge_calibration, outside
from anynpu.measure.samples import SampleSet
from anynpu.quantize.adequacy import SampleLimits, calibration, expected_largest, growth
from anynpu.quantize.calibration import Dataset
from anynpu.quantize.ranges import Range
from anynpu.records.calibration import Calibration, OutsideSample


def observed(draw, count, tensors=20, heavy=False):
    limits, ranges = SampleLimits(), {}
    for tensor in range(tensors):
        values = draw.standard_t(1.2, (count, 200)) if heavy else draw.normal(size=(count, 200))
        for row in values:
            limits.observe(f"t{tensor}", float(row.min()), float(row.max()))
        ranges[f"t{tensor}"] = Range(float(values.min()), float(values.max()))
    return limits, ranges


def data(count, draw=None):
    rows = np.random.default_rng(0).normal(size=(count, 3)) if draw is None else draw
    return Dataset({"x": np.asarray(rows, np.float32)}, None, "drawn")


def test_the_expected_largest_of_a_draw_is_that_of_all_draws():
    values = np.asarray([3.0, -1.0, 7.0, 2.0, 2.0, 5.0])
    for count in range(1, 7):
        draws = [max(draw) for draw in itertools.combinations(values.tolist(), count)]
        assert expected_largest(values, count) == pytest.approx(np.mean(draws))


def test_what_the_range_leaves_out_on_purpose_does_not_count():
    lows, highs = np.asarray([-6.0, -40.0, -7.0, -90.0]), np.asarray([8.0, 8.0, 8.0, 8.0])
    assert growth(lows, highs, Range(-90.0, 8.0)) > 0.3
    assert growth(lows, highs, Range(-6.0, 8.0)) == pytest.approx(0.0)


def test_even_samples_are_enough_and_wild_ones_are_not():
    draw = np.random.default_rng(5)
    even = judge_calibration(calibration(*observed(draw, 64), data(64)), 8, ())
    assert even.adequate
    assert even.sentence == (
        "calibration: 64 samples are enough: twice as many would widen no range by more than 10 %; "
        "no verification sample lies outside"
    )
    wild = judge_calibration(calibration(*observed(draw, 64, heavy=True), data(64)), 8, ())
    assert not wild.adequate
    assert wild.sentence.startswith("calibration: NOT enough samples: twice as many would widen ")
    assert wild.moving[0].growth == max(each.growth for each in wild.moving)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (np.ones((1, 3)), "every calibration sample holds one value only"),
        (np.arange(12).reshape(12, 1) * np.ones((12, 3)), "every calibration sample holds one value only"),
        (np.asarray([[1.0, 2.0, 3.0]]), "1 distinct sample of 1: ranges need at least 8"),
        (np.tile([[1.0, 2.0, 3.0]], (40, 1)), "1 distinct sample of 40: ranges need at least 8"),
        (np.tile([[1.0, 2.0, 3.0], [2.0, 1.0, 0.0]], (5, 1)), "2 distinct samples of 10: ranges need at least 8"),
    ],
)
def test_constant_identical_and_single_samples_are_not_enough(rows, reason):
    limits = SampleLimits()
    for row in rows:
        limits.observe("x", float(row.min()), float(row.max()))
    ranges = {"x": Range(float(rows.min()), float(rows.max()))}
    judged = judge_calibration(calibration(limits, ranges, data(len(rows), rows)), 0, ())
    assert not judged.adequate
    assert reason in judged.reasons


def test_verification_samples_outside_are_named_with_their_place():
    said = Calibration(samples=40, distinct=40, limits={"a": (0.0, 1.0)})
    far = (OutsideSample(sample=3, tensor="a", excess=0.8),)
    judged = judge_calibration(said, 8, far)
    assert not judged.adequate
    said_of_it = "1 of 8 verification samples lie outside of the calibrated ranges"
    assert judged.reasons == (f"{said_of_it} (farthest: sample 3 at a, by 80% of its width)",)
    assert judge_calibration(said, 16, far).adequate


def test_the_interval_holds_the_loss_of_new_samples():
    """On samples of uneven loudness and error, as images are, in at least 90 of 100 sets."""
    draw = np.random.default_rng(2)
    held = 0
    for _ in range(100):
        wanted = draw.normal(size=(400, 20)) * draw.lognormal(0, 0.4, (400, 1))
        got = wanted + draw.normal(size=wanted.shape) * 0.05 * draw.lognormal(0, 0.4, (400, 1))
        low, high = expected_loss(wanted[:16], got[:16])
        truth = 10 * np.log10((wanted[16:] ** 2).sum() / ((got[16:] - wanted[16:]) ** 2).sum())
        held += low <= truth <= high
    assert held >= 90


def test_no_interval_without_samples_or_without_error():
    assert expected_loss(np.ones((7, 3)), np.zeros((7, 3))) is None
    assert expected_loss(np.ones((9, 3)), np.ones((9, 3))) is None


def test_truth_values_and_single_numbers_lie_in_no_range(tmp_path):
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], keepdims=0),
        helper.make_node("Greater", ["m", "zero"], ["g"]),
        helper.make_node("Where", ["g", "x", "m"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy"]
    zero = [onnx.numpy_helper.from_array(np.float32(0), "zero")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], zero)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    rows = {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}
    limits = dict.fromkeys(("x", "m", "g", "y"), (-9.0, 9.0))
    assert outside(artifact(model, "onnx", rows, tmp_path / "float"), SampleSet(rows), limits) == (3, ())

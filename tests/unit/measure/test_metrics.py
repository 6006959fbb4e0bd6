"""The task metrics on cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.errors import ConfigError
from anynpu.measure import detection
from anynpu.measure.metrics import METRICS, auc, score


def test_top1_counts_right_answers():
    logits = np.array([[1, 3, 2], [5, 0, 0], [0, 0, 1], [0, 2, 1]], np.float32)
    assert score("top1", {}, {"y": logits}, np.array([1, 0, 2, 2])) == 0.75
    assert score("top1", {}, {"y": logits}, np.array([0, 1, 0, 0])) == 0.0
    assert score("top1", {}, {"y": logits[:, :, None, None]}, np.array([1, 0, 2, 1])) == 1.0


def test_top1_of_a_tie_is_not_right():
    assert score("top1", {}, {"y": np.zeros((2, 3))}, np.array([0, 1])) == 0.0


def test_mean_top1_ignores_channels_beyond_the_classes():
    maps = np.zeros((2, 20, 2, 2), np.float32)
    maps[0, 3] = 1
    maps[1, 7] = [[4, 0], [0, 0]]
    maps[1, 8] = 0.9
    maps[:, 18] = 50
    assert score("mean_top1", {}, {"y": maps}, np.array([3, 7])) == 1.0
    assert score("mean_top1", {}, {"y": maps}, np.array([18, 8])) == 0.0


def _auc_by_pairs(scores, positive):
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[positive] for n in scores[~positive]]
    return float(np.mean(pairs))


@pytest.mark.parametrize("seed", range(5))
def test_auc_equals_counting_pairs(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 12, 60).astype(np.float64)
    positive = rng.random(60) < 0.4
    assert auc(scores, positive) == pytest.approx(_auc_by_pairs(scores, positive))


def test_auc_extremes_and_ties():
    positive = np.array([False, False, True, True])
    assert auc(np.array([0.0, 1, 2, 3]), positive) == 1.0
    assert auc(np.array([3.0, 2, 1, 0]), positive) == 0.0
    assert auc(np.ones(4), positive) == 0.5
    with pytest.raises(ConfigError, match="both normal and anomalous"):
        auc(np.ones(4), np.ones(4, bool))


def test_auc_reconstruction_ranks_the_error():
    given = np.zeros((4, 6), np.float32)
    rebuilt = given + np.array([0.1, -0.2, 0.3, -0.4], np.float32)[:, None]
    assert score("auc_reconstruction", {"x": given}, {"y": rebuilt}, np.array([0, 0, 1, 1])) == 1.0
    assert score("auc_reconstruction", {"x": given}, {"y": rebuilt}, np.array([0, 1, 0, 1])) == 0.75


def _empty_map(count=1):
    maps = np.zeros((count, 8, 12, 12))
    maps[:, :4] = -9
    return maps


def _put(maps, image, row, column, kind, sides, logit=6.0):
    maps[image, 0, row, column] = logit
    maps[image, 1 + kind, row, column] = 9
    maps[image, 4:, row, column] = sides


def _label(*rows):
    padded = np.full((4, 5), -1.0)
    padded[: len(rows)] = rows
    return padded


def test_decode_places_the_box_around_the_cell_centre():
    maps = _empty_map()
    _put(maps, 0, 2, 4, 1, (1.5, 1, 0.5, 3))
    boxes = detection.decode(maps[0])
    assert boxes.corners * 12 == pytest.approx(np.array([[3.0, 1.5, 5.0, 5.5]]))
    assert boxes.classes.tolist() == [1]
    assert boxes.scores[0] == pytest.approx(1 / (1 + np.exp(-6.0)) / (1 + np.exp(-9.0)))


def test_overlaps_by_hand():
    first, second = np.array([[0, 0, 2, 2.0]]), np.array([[1, 0, 3, 2.0], [5, 5, 6, 6], [0, 0, 2, 2]])
    assert detection.overlaps(first, second) == pytest.approx(np.array([[1 / 3, 0, 1]]))


def test_map50_perfect_duplicate_wrong_class_and_empty():
    truth = _label((0, 3 / 12, 3 / 12, 6 / 12, 6 / 12))[None]
    perfect = _empty_map()
    _put(perfect, 0, 4, 4, 0, (1.5, 1.5, 1.5, 1.5))
    assert score("map50", {}, {"map": perfect}, truth) == 1.0
    _put(perfect, 0, 4, 5, 0, (2.5, 1.5, 0.5, 1.5), logit=4.0)
    assert score("map50", {}, {"map": perfect}, truth) == 1.0, "suppression removes the duplicate"
    wrong = _empty_map()
    _put(wrong, 0, 4, 4, 2, (1.5, 1.5, 1.5, 1.5))
    assert score("map50", {}, {"map": wrong}, truth) == 0.0
    assert score("map50", {}, {"map": _empty_map()}, truth) == 0.0


def test_map50_false_alarm_before_the_hit_halves_precision():
    truth = _label((0, 3 / 12, 3 / 12, 6 / 12, 6 / 12))[None]
    maps = _empty_map()
    _put(maps, 0, 4, 4, 0, (1.5, 1.5, 1.5, 1.5), logit=2.0)
    _put(maps, 0, 10, 10, 0, (1, 1, 1, 1), logit=5.0)
    assert score("map50", {}, {"map": maps}, truth) == 0.5


def test_map50_averages_over_classes():
    truth = np.stack([_label((0, 3 / 12, 3 / 12, 6 / 12, 6 / 12)), _label((1, 0, 0, 0.5, 0.5))])
    maps = _empty_map(2)
    _put(maps, 0, 4, 4, 0, (1.5, 1.5, 1.5, 1.5))
    assert score("map50", {}, {"map": maps}, truth) == 0.5


def test_unknown_metric_names_the_near_one():
    with pytest.raises(ConfigError) as caught:
        score("topl", {}, {}, np.zeros(1))
    assert "top1" in caught.value.hint


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_wrong_number_of_outputs_is_refused(metric):
    with pytest.raises(ConfigError):
        score(metric, {"x": np.zeros((2, 4))}, {"a": np.zeros((2, 4)), "b": np.zeros((2, 4))}, np.zeros(2))


def test_count_mismatch_is_refused():
    with pytest.raises(ConfigError, match="3 outputs for 2 labels"):
        score("top1", {}, {"y": np.zeros((3, 4))}, np.zeros(2))

"""The twelve numbers of a detector, beside pycocotools on generated annotations."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anynpu.measure import coco


def scene(rng, objects, classes, ties):
    """Boxes of all three sizes, some shared by two objects, some crowds, and areas smaller than their boxes."""
    size = rng.choice([8, 24, 32, 60, 96, 200], (objects, 1)) * rng.uniform(0.5, 1.5, (objects, 2))
    boxes = np.concatenate([rng.uniform(0, 300, (objects, 2)), size], axis=1)
    if ties:
        boxes = np.round(boxes / 16) * 16
    return coco.Truth(
        boxes,
        rng.integers(0, classes, objects),
        boxes[:, 2] * boxes[:, 3] * rng.choice([1.0, 0.6], objects),
        rng.random(objects) < 0.15,
        np.zeros(objects, bool),
    )


def guesses(rng, truth, classes, count, ties):
    """Detections near objects and anywhere, several on one object, with equal scores where `ties` is set."""
    boxes, numbers = np.zeros((count, 4)), rng.integers(0, classes, count)
    for i in range(count):
        if len(truth) and rng.random() < 0.7:
            at = rng.integers(len(truth))
            boxes[i] = truth.boxes[at] * rng.uniform(0.85, 1.15, 4) if rng.random() < 0.8 else truth.boxes[at]
            numbers[i] = truth.classes[at] if rng.random() < 0.9 else numbers[i]
        else:
            boxes[i] = [*rng.uniform(0, 300, 2), *rng.uniform(1, 220, 2)]
    scores = rng.integers(0, 4, count) / 4 if ties else rng.random(count)
    return coco.Found(boxes, scores, numbers)


def generated(seed, images, classes, ties=False, most_objects=8, most_found=20):
    rng = np.random.default_rng(seed)
    truths = [scene(rng, int(rng.integers(0, most_objects + 1)), classes, ties) for _ in range(images)]
    found = [guesses(rng, t, classes, int(rng.integers(0, most_found + 1)), ties) for t in truths]
    return truths, found


def reference(truths, found, classes):
    """What pycocotools says: its twelve numbers, the AP of every class, and the AP50."""
    COCO = pytest.importorskip("pycocotools.coco").COCO
    COCOeval = pytest.importorskip("pycocotools.cocoeval").COCOeval
    annotations = [
        {
            "image_id": image,
            "category_id": int(t.classes[i]) + 1,
            "bbox": t.boxes[i].tolist(),
            "area": float(t.areas[i]),
            "iscrowd": int(t.crowd[i]),
        }
        for image, t in enumerate(truths)
        for i in range(len(t))
    ]
    results = [
        {
            "image_id": image,
            "category_id": int(f.classes[i]) + 1,
            "bbox": f.boxes[i].tolist(),
            "score": float(f.scores[i]),
        }
        for image, f in enumerate(found)
        for i in range(len(f.scores))
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = {
            "info": {},
            "images": [{"id": i} for i in range(len(truths))],
            "annotations": [{"id": i + 1, **a} for i, a in enumerate(annotations)],
            "categories": [{"id": k + 1} for k in range(classes)],
        }
        data.createIndex()
        answers = data.loadRes(results) if results else COCO()
        if not results:
            answers.dataset = {"images": data.dataset["images"], "annotations": [], "categories": []}
            answers.createIndex()
        judge = COCOeval(data, answers, "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    precision = judge.eval["precision"][:, :, :, 0, 2]  # overlap, recall, class
    each = [
        [p[p > -1].mean() if (p > -1).any() else -1 for p in np.moveaxis(q, 2, 0)] for q in (precision, precision[:1])
    ]
    return np.concatenate([judge.stats, *each])


def ours(truths, found, classes):
    return np.nan_to_num(coco.figures(coco.match(truths, found, classes)), nan=-1.0)


CASES = {
    "plain": {"images": 30, "classes": 3},
    "ties": {"images": 30, "classes": 3, "ties": True},
    "many classes": {"images": 20, "classes": 60},
    "crowded": {"images": 6, "classes": 1, "most_objects": 40, "most_found": 250},
    "nothing found": {"images": 5, "classes": 2, "most_found": 0},
    "nothing there": {"images": 5, "classes": 2, "most_objects": 0},
    "one image": {"images": 1, "classes": 2},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_all_numbers_are_those_of_pycocotools(case, seed):
    truths, found = generated(seed, **CASES[case])
    classes = CASES[case]["classes"]
    np.testing.assert_allclose(ours(truths, found, classes), reference(truths, found, classes), rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 5), st.booleans(), st.integers(0, 12))
def test_random_scenes_agree_with_pycocotools(seed, images, classes, ties, objects):
    truths, found = generated(seed, images, classes, ties, objects)
    np.testing.assert_allclose(ours(truths, found, classes), reference(truths, found, classes), rtol=0, atol=1e-6)


def box(*values, number=0, crowd=False, ignored=False):
    boxes = np.array([values], float)
    one = np.array([number])
    return coco.Truth(boxes, one, boxes[:, 2] * boxes[:, 3], np.array([crowd]), np.array([ignored]))


def test_a_perfect_detector_scores_one_and_a_second_box_on_the_object_does_not_lower_it():
    found = coco.Found(np.array([[10, 10, 50, 50], [10, 10, 50, 50]], float), np.array([0.9, 0.8]), np.array([0, 0]))
    result = dict(zip(coco.FIGURES, coco.figures(coco.match([box(10, 10, 50, 50)], [found], 1)), strict=False))
    assert result["map50-95"] == pytest.approx(1) and result["ar1"] == 1 and np.isnan(result["map-small"])


def test_of_two_objects_that_overlap_alike_the_last_is_taken():
    first, last = box(0, 0, 10, 10), box(4, 0, 10, 10)
    both = coco.Truth(*(np.concatenate([getattr(first, n), getattr(last, n)]) for n in coco.Truth.__annotations__))
    found = coco.Found(np.array([[2, 0, 10, 10], [5, 0, 10, 10]], float), np.array([0.9, 0.8]), np.zeros(2, int))
    result = ours([both], [found], 1)
    assert result[coco.FIGURES.index("map50")] == pytest.approx(51 / 101)
    np.testing.assert_allclose(result, reference([both], [found], 1), rtol=0, atol=1e-6)


def test_an_ignored_object_makes_detections_neither_right_nor_wrong():
    boxes = np.array([[10, 10, 50, 50], [10, 10, 50, 50], [200, 200, 50, 50]], float)
    found = coco.Found(boxes, np.array([0.9, 0.8, 0.7]), np.zeros(3, int))
    hidden, there = box(10, 10, 50, 50, ignored=True), box(200, 200, 50, 50)
    both = coco.Truth(*(np.concatenate([getattr(hidden, n), getattr(there, n)]) for n in coco.Truth.__annotations__))
    assert coco.figures(coco.match([both], [found], 1))[0] == pytest.approx(1)


def test_an_image_that_counts_twice_is_an_image_that_is_there_twice():
    truths, found = generated(5, 12, 4)
    counts = np.random.default_rng(1).integers(0, 4, 12)
    twice = np.repeat(np.arange(12), counts)
    drawn = coco.match([truths[i] for i in twice], [found[i] for i in twice], 4)
    weighted = coco.figures(coco.match(truths, found, 4), counts)
    np.testing.assert_allclose(weighted, coco.figures(drawn), rtol=0, atol=1e-12)


def test_the_order_of_images_does_not_matter_where_no_scores_are_equal():
    truths, found = generated(6, 15, 3)
    turned = coco.figures(coco.match(truths[::-1], found[::-1], 3))
    np.testing.assert_allclose(turned, coco.figures(coco.match(truths, found, 3)), rtol=0, atol=1e-12)

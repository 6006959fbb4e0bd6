"""Heads of YOLO 5, 8 and 11: every form of their outputs gives the boxes that a plain reading gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anynpu.errors import AccuracyError, ConfigError
from anynpu.tasks import nms
from anynpu.tasks.card import Card
from anynpu.tasks.detect import Detections, Detector, Threshold, class_numbers, read
from anynpu.tasks.images import Fit, Preprocess, in_order
from anynpu.tasks.model import Model
from anynpu.tasks.yolo import Head, candidates, layout
from anynpu.tensors import Quantization, TensorSpec

SIZE = (64, 96)
STRIDES = (8, 16, 32)
COUNT = sum(SIZE[0] // s * SIZE[1] // s for s in STRIDES)
CLASSES = 5
ANCHORS = (((5, 6), (8, 14), (15, 11)), ((14, 28), (28, 20), (27, 55)), ((52, 40), (70, 90), (120, 100)))
V5 = Head("v5", anchors=ANCHORS)
USUAL = Threshold(0.3, 0.5)
WHOLE = Fit(0, 0, 1, 1, SIZE[1], SIZE[0])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def maps(seed=0, classes=CLASSES, reg_max=16, shift=-2.0):
    """Random maps of an anchor-free head, per stride: boxes and classes."""
    rng = np.random.default_rng(seed)
    shapes = [(SIZE[0] // s, SIZE[1] // s) for s in STRIDES]
    return [
        (
            rng.normal(0, 2, (1, 4 * reg_max, *s)).astype(np.float32),
            rng.normal(shift, 2, (1, classes, *s)).astype(np.float32),
        )
        for s in shapes
    ]


def decoded(pairs, reg_max=16):
    """Cell by cell, as the head's definition says: rows cx, cy, w, h and scores."""
    columns = []
    for (boxes, classes), stride in zip(pairs, STRIDES, strict=True):
        for y in range(boxes.shape[2]):
            for x in range(boxes.shape[3]):
                spread = np.exp(boxes[0, :, y, x].astype(np.float64).reshape(4, reg_max))
                sides = (spread / spread.sum(1, keepdims=True)) @ np.arange(reg_max)
                if reg_max == 1:
                    sides = boxes[0, :, y, x]
                low = np.array([x + 0.5, y + 0.5]) - sides[:2]
                high = np.array([x + 0.5, y + 0.5]) + sides[2:]
                box = np.concatenate([(low + high) / 2, high - low]) * stride
                columns.append(np.concatenate([box, sigmoid(classes[0, :, y, x])]))
    return np.array(columns, np.float32).T[None]


def plainly(rows, confidence, iou, most=300):
    """Greedy suppression, box by box, of decoded rows [4 + classes, n]."""
    scores, kinds = rows[4:].max(0), rows[4:].argmax(0)
    boxes = np.concatenate([rows[:2] - rows[2:4] / 2, rows[:2] + rows[2:4] / 2]).T.astype(np.float64)
    kept = []
    for i in sorted((i for i in range(len(scores)) if scores[i] > confidence), key=lambda i: -scores[i]):
        if all(kinds[i] != kinds[j] or overlap(boxes[i], boxes[j]) <= iou for j in kept):
            kept.append(i)
    edge = [*SIZE[::-1], *SIZE[::-1]]
    kept = [i for i in kept[:most] if (np.clip(boxes[i], 0, edge)[2:] > np.clip(boxes[i], 0, edge)[:2]).all()]
    return np.clip(boxes[kept], 0, edge).reshape(-1, 4), scores[kept], kinds[kept]


def overlap(a, b):
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(w, 0) * max(h, 0)
    together = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return common / together if together else 0.0


def same(found: Detections, wanted, pixels=0.01, score=1e-5):
    boxes, scores, kinds = wanted
    assert len(found) == len(scores)
    assert np.abs(found.boxes - boxes).max(initial=0) < pixels
    assert np.abs(found.scores - scores).max(initial=0) < score
    assert np.array_equal(found.classes, kinds)


def specs(arrays, **more):
    return tuple(TensorSpec(name, a.shape, str(a.dtype), **more) for name, a in arrays.items())


def detections(head, arrays, outputs=None, labels=CLASSES, threshold=USUAL):
    return read(layout(head, SIZE, outputs or specs(arrays), labels), arrays, WHOLE, threshold)


def as_maps(pairs):
    return {
        f"{role}_{s}": a for pair, s in zip(pairs, STRIDES, strict=True) for role, a in zip("bc", pair, strict=True)
    }


@pytest.mark.parametrize("seed", range(4))
def test_maps_and_decoded_outputs_give_what_a_plain_reading_gives(seed):
    pairs = maps(seed)
    whole = decoded(pairs)
    wanted = plainly(whole[0], 0.3, 0.5)
    assert len(wanted[1]) > 10
    same(detections(Head(), as_maps(pairs)), wanted)
    same(detections(Head(), {"y": whole}), wanted)
    same(detections(Head(), {"y": np.ascontiguousarray(whole.transpose(0, 2, 1))}), wanted)
    same(detections(Head(), {"b": whole[:, :4], "s": np.ascontiguousarray(whole[:, 4:])}), wanted)
    channels_last = {name: np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for name, a in as_maps(pairs).items()}
    same(detections(Head(), channels_last), wanted)
    same(detections(Head(), channels_last, specs(channels_last, layout="NHWC")), wanted)
    joined = {f"m{i}": np.concatenate(pair, 1) for i, pair in enumerate(pairs)}
    same(detections(Head(), joined), wanted)


def test_any_number_of_classes_and_bins():
    for classes, reg_max in ((1, 16), (64, 16), (200, 8), (3, 1)):
        pairs = maps(1, classes, reg_max)
        if reg_max == 1:  # a distance as it is
            pairs = [(np.abs(boxes), scores) for boxes, scores in pairs]
        wanted = plainly(decoded(pairs, reg_max)[0], 0.3, 0.5)
        same(detections(Head(reg_max=reg_max), as_maps(pairs), labels=classes), wanted)


def test_boxes_are_told_by_name_where_shapes_do_not():
    pairs = maps(2, classes=64)
    turned = {}
    for (boxes, classes), stride in zip(pairs, STRIDES, strict=True):
        turned |= {f"classes_{stride}": classes, f"boxes_{stride}": boxes}
    same(detections(Head(), turned, labels=64), plainly(decoded(pairs)[0], 0.3, 0.5))


def v5_maps(seed=0):
    rng = np.random.default_rng(seed)
    return {
        f"m{s}": rng.normal(0, 1.5, (1, 3 * (5 + CLASSES), SIZE[0] // s, SIZE[1] // s)).astype(np.float32)
        for s in STRIDES
    }


def v5_decoded(arrays):
    rows = []
    for array, stride, anchors in zip(arrays.values(), STRIDES, ANCHORS, strict=True):
        for a, anchor in enumerate(anchors):
            for y in range(array.shape[2]):
                for x in range(array.shape[3]):
                    v = sigmoid(array[0, a * (5 + CLASSES) : (a + 1) * (5 + CLASSES), y, x].astype(np.float64))
                    rows.append([*((v[:2] * 2 - 0.5 + [x, y]) * stride), *((v[2:4] * 2) ** 2 * anchor), *v[4:]])
    return np.array(rows, np.float32)[None]


@pytest.mark.parametrize("seed", range(3))
def test_version_5_multiplies_by_objectness(seed):
    arrays = v5_maps(seed)
    whole = v5_decoded(arrays)
    rows = np.concatenate([whole[0, :, :4], whole[0, :, 4:5] * whole[0, :, 5:]], 1).T
    wanted = plainly(rows, 0.3, 0.5)
    assert len(wanted[1]) > 10
    same(detections(V5, arrays), wanted)
    same(detections(V5, {"y": whole}), wanted)
    same(detections(V5, {"y": np.ascontiguousarray(whole.transpose(0, 2, 1))}), wanted)
    same(detections(V5, {"y": whole} | {f"raw{i}": np.zeros((1, 3, 4, 4, 10)) for i in range(3)}), wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_quantised_maps_give_what_their_real_values_give(dtype):
    pairs = maps(5)
    limits = np.iinfo(dtype)
    stored, outputs, real = {}, [], []
    for pair, stride in zip(pairs, STRIDES, strict=True):
        values = []
        for role, array in zip("bc", pair, strict=True):
            scale = float((array.max() - array.min()) / (limits.max - limits.min))
            how = Quantization((scale,), (int(limits.min - np.floor(array.min() / scale)),))
            name = f"{role}_{stride}"
            outputs.append(TensorSpec(name, array.shape, dtype, quantization=how))
            stored[name] = how.quantize(array, dtype)
            values.append(how.dequantize(stored[name]))
        real.append(tuple(values))
    same(detections(Head(), stored, tuple(outputs)), plainly(decoded(real)[0], 0.3, 0.5))


def test_one_int8_output_with_a_scale_for_boxes_and_one_for_scores():
    whole = decoded(maps(6))
    scales = (*[0.75] * 4, *[1 / 255] * CLASSES)
    how = Quantization(scales, (*[0] * 4, *[-128] * CLASSES), axis=1)
    stored = how.quantize(whole, "int8")
    spec = TensorSpec("y", whole.shape, "int8", quantization=how)
    same(detections(Head(), {"y": stored}, (spec,)), plainly(how.dequantize(stored)[0], 0.3, 0.5))
    other = Quantization((0.5,) * COUNT, (0,) * COUNT, axis=2)
    spec = TensorSpec("y", whole.shape, "int16", quantization=other)
    half = other.quantize(whole, "int16")
    same(detections(Head(), {"y": half}, (spec,)), plainly(other.dequantize(half)[0], 0.3, 0.5))


def test_half_floats_are_compared_by_their_bits():
    whole = decoded(maps(7)).astype(np.float16)
    wanted = plainly(whole[0].astype(np.float32), 0.3, 0.5)
    same(detections(Head(), {"y": whole}), wanted)
    same(detections(Head(), {k: v.astype(np.float16) for k, v in as_maps(maps(7)).items()}), wanted, 1, 0.01)
    values = np.unique(np.random.default_rng(0).integers(0, 0x7C00, 300).astype(np.int16)).view(np.float16)
    for threshold in (0.0, 1e-9, 0.1, 0.25, 0.3333, 0.9995, 1.0):
        rows = np.zeros((1, 4 + CLASSES, COUNT), np.float16)
        rows[0, 4, : len(values)] = values[:COUNT]
        found = candidates(layout(Head(), SIZE, specs({"y": rows}), 0), {"y": rows}, threshold)
        assert len(found) == sum(float(v) > threshold for v in values[:COUNT])


@pytest.mark.parametrize("scale", [1 / 255, 0.0037, 0.1])
@pytest.mark.parametrize("confidence", [0.0, 0.25, 0.4, 0.9, 1.0])
def test_the_filter_on_stored_integers_is_the_filter_on_reals(scale, confidence):
    how = Quantization((scale,), (-128,))
    stored = np.zeros((1, 4 + CLASSES, COUNT), np.int8)
    stored[0, 4:] = -128
    stored[0, 4, :] = (np.arange(COUNT) * 3 % 256 - 128).astype(np.int8)
    spec = TensorSpec("y", stored.shape, "int8", quantization=how)
    found = candidates(layout(Head(), SIZE, (spec,), 0), {"y": stored}, confidence)
    assert len(found) == (how.dequantize(stored)[0, 4] > confidence).sum()


def test_nothing_found_is_a_result():
    nothing = detections(Head(), as_maps(maps(0, shift=-40.0)))
    assert len(nothing) == 0 and nothing.boxes.shape == (0, 4)
    assert len(detections(V5, {k: v - 60 for k, v in v5_maps().items()})) == 0
    assert len(detections(Head(), as_maps(maps()), threshold=Threshold(1.0))) == 0
    assert len(detections(Head(), as_maps(maps()), threshold=Threshold(0.0, 1.0, most=10**6))) > COUNT * 0.6


def test_most_and_classes():
    everything = detections(Head(), {"y": decoded(maps(3))})
    few = detections(Head(), {"y": decoded(maps(3))}, threshold=Threshold(0.3, 0.5, most=3))
    assert len(few) == 3 and np.array_equal(few.boxes, everything.boxes[:3])
    chosen = detections(Head(), {"y": decoded(maps(3))}, threshold=Threshold(0.3, 0.5, classes=(1, 4)))
    keep = np.isin(everything.classes, [1, 4])
    assert 0 < len(chosen) < len(everything) and np.array_equal(chosen.boxes, everything.boxes[keep])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_model_that_gives_no_numbers_is_an_error_and_not_an_empty_picture(value):
    for dtype in (np.float32, np.float16):
        whole = decoded(maps(3)).astype(dtype)
        whole[0, 0] = value
        with pytest.raises(AccuracyError, match="not numbers"):
            detections(Head(), {"y": whole})
    whole = decoded(maps(3))
    whole[0, 6, 11] = np.nan
    for array in (whole, whole.astype(np.float16)):
        with pytest.raises(AccuracyError, match="not numbers"):
            detections(Head(), {"y": array})


@pytest.mark.parametrize(
    ("head", "shapes", "words"),
    [
        (Head(), [(1, 1000)], "fit no v8 head on 64x96"),
        (Head(), [(1, 9, COUNT + 1)], f"4 \\+ classes, {COUNT}"),
        (Head(), [(1, 4, COUNT)], "fit no v8 head"),
        (Head(), [(2, 9, COUNT)], "fit no v8 head"),
        (V5, [(1, 9, COUNT)], "fit no v5 head"),
        (Head(), [(1, 64, 8, 12), (1, 5, 8, 12)], "fit no v8 head"),
        (Head(), [(1, 63, 8, 12), (1, 5, 8, 12), (1, 64, 4, 6), (1, 5, 4, 6), (1, 64, 2, 3), (1, 5, 2, 3)], "fit no"),
        (Head(), [(1, 64, 8, 12), (1, 5, 8, 12), (1, 64, 4, 6), (1, 6, 4, 6), (1, 64, 2, 3), (1, 5, 2, 3)], "fit no"),
        (Head("v5"), [(1, 30, 8, 12), (1, 30, 4, 6), (1, 30, 2, 3)], "anchors"),
        (V5, [(1, 31, 8, 12), (1, 31, 4, 6), (1, 31, 2, 3)], "fit no v5 head"),
        (Head(), [(1, 10, COUNT)], "names 5 classes and the model tells 6"),
    ],
)
def test_outputs_of_no_known_head_are_refused(head, shapes, words):
    outputs = tuple(TensorSpec(f"o{i}", shape) for i, shape in enumerate(shapes))
    with pytest.raises(ConfigError, match=words):
        layout(head, SIZE, outputs, CLASSES)


@pytest.mark.parametrize(
    "bad",
    [
        {"version": "v3"},
        {"strides": ()},
        {"strides": (8, 8)},
        {"strides": (0, 8)},
        {"reg_max": 0},
        {"anchors": (((1, 2),),)},
        {"anchors": (((1, 2),), ((1, 0),), ((1, 2),))},
    ],
)
def test_heads_are_checked(bad):
    with pytest.raises(ConfigError):
        Head(**bad)


@pytest.mark.parametrize("bad", [{"confidence": -0.1}, {"confidence": float("nan")}, {"iou": 1.5}, {"most": 0}])
def test_thresholds_are_checked(bad):
    with pytest.raises(ConfigError):
        Threshold(**bad)


boxes_of = st.lists(
    st.tuples(*[st.integers(0, 12)] * 2, *[st.integers(0, 8)] * 2, st.integers(0, 20), st.integers(0, 2)), max_size=40
)


@settings(max_examples=200, deadline=None)
@given(boxes_of, st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]), st.integers(1, 50))
def test_suppression_is_the_greedy_one(rows, iou, most):
    boxes = np.array([(x, y, x + w, y + h) for x, y, w, h, _, _ in rows], np.float32).reshape(-1, 4)
    scores = np.array([row[4] / 20 for row in rows], np.float32)
    kinds = np.array([row[5] for row in rows], np.int64)
    wanted: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: -scores[i]):
        if all(kinds[i] != kinds[j] or overlap(boxes[i], boxes[j]) <= iou for j in wanted):
            wanted.append(i)
    assert nms.keep(boxes, scores, kinds, iou, most).tolist() == wanted[:most]


@pytest.mark.parametrize("classes", [1, 2, 6, 40, 400])
def test_suppression_of_many_boxes(classes):
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 200, (1500, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 60, (1500, 2))], 1).astype(np.float32)
    scores, kinds = rng.random(1500).astype(np.float32), rng.integers(0, classes, 1500)
    wanted: list[int] = []
    for i in np.argsort(-scores, kind="stable").tolist():
        if all(kinds[i] != kinds[j] or overlap(boxes[i].astype(float), boxes[j].astype(float)) <= 0.4 for j in wanted):
            wanted.append(i)
    assert nms.keep(boxes, scores, kinds, 0.4, 10**6).tolist() == wanted
    assert nms.keep(boxes, scores, kinds, 0.4, 7).tolist() == wanted[:7]


def test_boxes_are_mapped_back_and_cut_at_the_edges():
    rows = np.zeros((1, 6, COUNT), np.float32)
    rows[0, :, 0] = (48, 32, 20, 10, 0.9, 0)
    rows[0, :, 1] = (5, 32, 40, 10, 0.8, 0)
    rows[0, :, 2] = (3, 3, 4, 4, 0, 0.7)  # wholly in the border
    place = Fit(16, 0, 0.5, 0.5, 128, 128)
    found = read(layout(Head(), SIZE, specs({"y": rows}), 2), {"y": rows}, place, Threshold())
    assert found.boxes.tolist() == [[44, 54, 84, 74], [0, 54, 18, 74]] and found.classes.tolist() == [0, 0]


def detector(channels="", mean=(0.0,), **spec):
    card = Card("detect", preprocess=Preprocess(resize="letterbox", mean=mean), labels=tuple("abcde"), yolo=Head())
    image = TensorSpec("x", (1, 3, *SIZE), layout="NCHW", channels=channels, **spec)
    whole = decoded(maps(3))
    seen = {}
    model = Model(card, {}, (image,), specs({"y": whole}), lambda given: seen.update(given) or {"y": whole})
    return Detector(model), seen


def test_a_detector_runs_on_pixels_in_the_channel_order_of_its_input():
    pixels = np.random.default_rng(1).integers(0, 256, (128, 192, 3), dtype=np.uint8)
    rgb, seen = detector("RGB")
    found, timing = rgb.detect(pixels)
    boxes, scores, kinds = plainly(decoded(maps(3))[0], 0.25, 0.7)
    same(found, (boxes * 2, scores, kinds))
    assert timing.model_ms >= 0 and rgb.name(2) == "c"
    bgr, turned = detector("BGR")
    bgr.detect(pixels)
    assert np.array_equal(seen["x"], turned["x"][:, ::-1]) and not np.array_equal(seen["x"], turned["x"])


def test_statistics_follow_their_channel():
    steps = Preprocess(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    turned = in_order(steps, "BGR")
    assert (turned.channels, turned.mean, turned.std) == ("BGR", (0.3, 0.2, 0.1), (0.7, 0.6, 0.5))
    assert in_order(steps, "") is steps and in_order(steps, "RGB") is steps


def test_classes_are_named():
    labels = ("person", "traffic light", "bus")
    assert class_numbers("bus, traffic light,0", labels) == (2, 1, 0)
    assert class_numbers("7", ()) == (7,)
    with pytest.raises(ConfigError, match="did you mean 'person'"):
        class_numbers("persn", labels)
    for bad in ("3", "", " , "):
        with pytest.raises(ConfigError):
            class_numbers(bad, labels)


def test_a_model_runs_on_real_numbers_and_checks_them():
    how = Quantization((0.5,), (1,))
    spec = TensorSpec("x", (2,), "int8", quantization=how)
    model = Model(Card("classify", preprocess=Preprocess()), {}, (spec,), (spec.renamed("y"),), lambda g: {"y": g["x"]})
    assert model.real({"x": np.array([1.0, -2.0])})["y"].tolist() == [1.0, -2.0]
    with pytest.raises(ConfigError, match="no input z"):
        model.real({"z": np.zeros(2), "x": np.zeros(2)})
    with pytest.raises(ConfigError, match="missing"):
        model.real({})
    with pytest.raises(ConfigError, match="shape"):
        model.real({"x": np.zeros(3)})

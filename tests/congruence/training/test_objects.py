"""What training sees of a detector's maps: what the decode sees."""

import numpy as np
import pytest

from anynpu.tasks import yolo
from anynpu.tensors import TensorSpec

torch = pytest.importorskip("torch")

from anynpu.training.objects import Objects  # noqa: E402  # needs torch

CLASSES, BINS, SIZE = 5, 4, (64, 32)
ANCHORS = (((10.0, 13.0), (16.0, 30.0)), ((30.0, 61.0), (62.0, 45.0)))


def layout(form: str) -> yolo.Layout:
    """A head of two strides: version 8 with its maps apart, in one, or with the channels last, or version 5."""
    outputs = []
    for stride in (8, 16):
        cells = SIZE[0] // stride, SIZE[1] // stride
        parts = {"apart": (4 * BINS, CLASSES), "v5": (2 * (5 + CLASSES),)}.get(form, (4 * BINS + CLASSES,))
        for number, rows in enumerate(parts):
            shape = (1, *cells, rows) if form == "last" else (1, rows, *cells)
            outputs.append(TensorSpec(f"map{number}_{stride}", shape, layout="NHWC" if form == "last" else "NCHW"))
    anchored = form == "v5"
    head = yolo.Head("v5" if anchored else "v8", "host", (8, 16), BINS, ANCHORS if anchored else ())
    return yolo.layout(head, SIZE, outputs)


def maps(head: yolo.Layout, count: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {part.spec.name: rng.normal(-2, 2, (count, *part.spec.shape)).astype(np.float32) for part in head.parts}


def tensors(arrays):
    return {name: torch.from_numpy(each.copy()) for name, each in arrays.items()}


@pytest.mark.parametrize("form", ["apart", "one", "last", "v5"])
def test_training_and_decode_have_the_same_scores(form):
    head, given = layout(form), maps(layout(form))
    objects = Objects(head, tensors(given))
    for sample in range(3):
        own = {name: each[sample] for name, each in given.items()}
        every = yolo.candidates(head, own, 0.0)
        seen = [s.amax(1).flatten() for _, s in objects._places(tensors({n: a[None] for n, a in own.items()}))]
        np.testing.assert_allclose(np.sort(torch.cat(seen).numpy()), np.sort(every.scores), rtol=1e-5)
    assert float(objects.loss(tensors(given), tensors(given))) == 0


@pytest.mark.parametrize("form", ["apart", "one", "last", "v5"])
def test_an_error_counts_where_an_object_is(form):
    head = layout(form)
    empty = {part.spec.name: np.full((1, *part.spec.shape), -9, np.float32) for part in head.parts}
    scores = [part for part in head.parts if part.stride == 8][-1]
    first = 0 if form == "apart" else 4 if form == "v5" else 4 * BINS
    place = {3: (0, 0, 2, 1, slice(first, first + 5)), 1: (0, 0, slice(first, first + 5), 2, 1)}[scores.axis]
    empty[scores.spec.name][place] = 3
    wanted, objects = tensors(empty), Objects(head, tensors(empty))

    def loss(column: int) -> float:
        other = tensors(empty)
        at = tuple(column if each == 1 else each for each in place)
        other[scores.spec.name][at] += -1.0 if column == 1 else 1.0
        return float(objects.loss(other, wanted))

    assert loss(1) > 100 * loss(0) > 0


def test_pictures_without_objects_have_a_loss():
    head = layout("apart")
    nothing = {name: np.full_like(each, -40) for name, each in maps(head).items()}
    objects = Objects(head, tensors(nothing))
    assert np.isfinite(float(objects.loss(tensors(maps(head)), tensors(nothing))))

"""Object detection: pixels in, boxes of the picture out, on any model with a YOLO head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from anynpu.errors import ConfigError
from anynpu.schema import near
from anynpu.tasks import nms, yolo
from anynpu.tasks.images import Fit, Preprocess, check_input, fit, in_order, to_input
from anynpu.tensors import Array, TensorSpec

if TYPE_CHECKING:
    from anynpu.tasks.model import Model


@dataclass(frozen=True)
class Threshold:
    """What counts as a detection: its minimum score, how much two of a class may overlap, how many, which classes.

    With `multi_label` a box is a detection of every class whose score is high enough, and not of the best one only.
    """

    confidence: float = 0.25
    iou: float = 0.7
    most: int = 300
    classes: tuple[int, ...] = ()
    multi_label: bool = False

    def __post_init__(self) -> None:
        for name, value in (("confidence", self.confidence), ("overlap", self.iou)):
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise ConfigError(f"the {name} {value} is not from 0 to 1")
        if self.most < 1:
            raise ConfigError(f"{self.most} detections at most: one or more were expected")


@dataclass(frozen=True)
class Detections:
    """Boxes (x0, y0, x1, y1) in pixels of the picture [n, 4], their scores and class numbers, best first."""

    boxes: Array
    scores: Array
    classes: Array

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True)
class Timing:
    """Milliseconds that one picture took, once it was read."""

    before_ms: float
    model_ms: float
    after_ms: float


@dataclass(frozen=True)
class Detector:
    """A model with a YOLO head, and what counts as a detection."""

    model: Model
    threshold: Threshold = Threshold()

    @cached_property
    def input(self) -> TensorSpec:
        if len(self.model.inputs) != 1:
            raise ConfigError(f"a detector has one input, this model has {len(self.model.inputs)}")
        return self.model.inputs[0]

    @cached_property
    def preprocess(self) -> Preprocess:
        """How pictures become inputs: as the card says, with the channels in the order that the input states."""
        stated = self.model.card.preprocess
        if stated is None:
            raise ConfigError("the card does not say how images become inputs", "give it a table [preprocess]")
        return in_order(stated, self.input.channels)

    @cached_property
    def size(self) -> tuple[int, int]:
        return check_input(self.input, self.preprocess)

    @cached_property
    def layout(self) -> yolo.Layout:
        head = self.model.card.yolo or yolo.Head()
        return yolo.layout(head, self.size, self.model.outputs, len(self.model.card.labels))

    def name(self, number: int) -> str:
        """Returns the name of a class."""
        return self.model.card.labels[number] if self.model.card.labels else f"class {number}"

    def prepare(self, pixels: Array) -> tuple[dict[str, Array], Fit]:
        """Returns 8-bit RGB pixels as the model's input, and where the picture lies in it."""
        fitted, place = fit(pixels, self.size, self.preprocess, self.input.layout)
        return {self.input.name: to_input(fitted, self.preprocess, self.input)}, place

    def read(self, outputs: Mapping[str, Array], place: Fit) -> Detections:
        """Returns what the model's stored outputs say of the picture."""
        return read(self.layout, outputs, place, self.threshold)

    def detect(self, pixels: Array) -> tuple[Detections, Timing]:
        """Returns what is in a picture, and how long that took."""
        self.layout  # noqa: B018  # what does not fit is reported before the model runs
        start = perf_counter()
        inputs, place = self.prepare(pixels)
        ready = perf_counter()
        outputs = self.model.run(inputs)
        ran = perf_counter()
        detections = self.read(outputs, place)
        end = perf_counter()
        return detections, Timing((ready - start) * 1e3, (ran - ready) * 1e3, (end - ran) * 1e3)


def read(layout: yolo.Layout, outputs: Mapping[str, Array], place: Fit, threshold: Threshold) -> Detections:
    """Returns the boxes in a detector's stored outputs, mapped back to the picture and cut at its edges."""
    candidates = yolo.candidates(layout, outputs, threshold.confidence, threshold.multi_label)
    if threshold.classes:
        wanted = np.flatnonzero(np.isin(candidates.classes, threshold.classes))
        candidates = yolo.Candidates(candidates.boxes[wanted], candidates.scores[wanted], candidates.classes[wanted])
    kept = nms.keep(candidates.boxes, candidates.scores, candidates.classes, threshold.iou, threshold.most)
    mapped = candidates.boxes.take(kept, 0) - np.array([place.left, place.top] * 2, np.float32)
    mapped /= np.array([place.gain_x, place.gain_y] * 2, np.float32)
    np.maximum(mapped, 0, out=mapped)
    np.minimum(mapped, np.array([place.width, place.height] * 2, np.float32), out=mapped)
    boxes, scores, classes = (
        mapped,
        candidates.scores.take(kept),
        candidates.classes.take(kept),
    )
    longer = boxes[:, 2:] > boxes[:, :2]
    if np.count_nonzero(longer) == longer.size:
        return Detections(boxes, scores, classes)
    inside = longer[:, 0] & longer[:, 1]
    return Detections(boxes[inside], scores[inside], classes[inside])


def class_numbers(names: str, labels: tuple[str, ...]) -> tuple[int, ...]:
    """Returns the numbers of classes given as "person,bus" or "0,5"."""
    numbers = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name in labels:
            numbers.append(labels.index(name))
        elif name.isdecimal() and (int(name) < len(labels) or not labels):
            numbers.append(int(name))
        else:
            raise ConfigError(f"the model knows no class {name}{near(name, labels)}")
    if not numbers:
        raise ConfigError("--classes names no class", "give names or numbers with commas between: person,bus")
    return tuple(numbers)

"""YOLO detectors: what the outputs of versions 5, 8 and 11 are, and how boxes are read out of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from anynpu.errors import AccuracyError, ConfigError
from anynpu.tasks.rows import Rows
from anynpu.tensors import Array, TensorSpec

Version = Literal["v5", "v8"]
Decode = Literal["model", "host"]
Role = Literal["all", "boxes", "classes"]
_ANCHORS = 3
MOST_LABELS = 30_000
"""Pairs of box and class that go on to the suppression: as many as in Ultralytics' own validation."""


@dataclass(frozen=True)
class Head:
    """How a detector's outputs are read; version 11 has the head of version 8.

    `decode` says where boxes and scores are made from the head's maps: in the model, or on the host after it. A model
    that decodes on the host is cut before the decode when it is imported: eight bits hold a map, but not boxes of 0 to
    640 and scores of 0 to 1 under one scale. `anchors` are widths and heights in pixels, per stride; version 5 only.
    """

    version: Version = "v8"
    decode: Decode = "host"
    strides: tuple[int, ...] = (8, 16, 32)
    reg_max: int = 16
    anchors: tuple[tuple[tuple[float, float], ...], ...] = ()

    def __post_init__(self) -> None:
        if self.version not in get_args(Version) or self.decode not in get_args(Decode):
            raise ConfigError(f"no such head: version {self.version}, decode {self.decode}")
        if not self.strides or min(self.strides) < 1 or len(set(self.strides)) != len(self.strides):
            raise ConfigError(f"strides {list(self.strides)} are not different whole numbers above zero")
        if self.reg_max < 1:
            raise ConfigError(f"reg_max {self.reg_max} is not above zero")
        if self.anchors and (len(self.anchors) != len(self.strides) or len({len(a) for a in self.anchors}) != 1):
            raise ConfigError("anchors need as many pairs of width and height for each stride")
        if any(side <= 0 for anchors in self.anchors for pair in anchors for side in pair):
            raise ConfigError("an anchor has a width and a height above zero")


@dataclass(frozen=True)
class Part:
    """One output: what its rows are, along which axis they lie, and of which stride it is a map (0: decoded boxes)."""

    spec: TensorSpec
    role: Role
    axis: int
    stride: int = 0

    @property
    def rows(self) -> int:
        return self.spec.shape[self.axis]

    def read(self, outputs: Mapping[str, Array]) -> Rows:
        return Rows.of(self.spec, outputs[self.spec.name], self.axis)


@dataclass(frozen=True)
class Layout:
    """Which outputs of a detector hold what, for one size of input (height, width)."""

    head: Head
    size: tuple[int, int]
    parts: tuple[Part, ...]
    classes: int

    @cached_property
    def of_stride(self) -> dict[int, list[Part]]:
        """Returns the parts by their stride, finest first."""
        strides = sorted({part.stride for part in self.parts})
        return {stride: [part for part in self.parts if part.stride == stride] for stride in strides}


def layout(head: Head, size: tuple[int, int], outputs: Sequence[TensorSpec], labels: int = 0) -> Layout:
    """Returns what the outputs of a detector hold, told by their shapes; outputs of no known head raise."""
    anchors = (len(head.anchors[0]) if head.anchors else _ANCHORS) if head.version == "v5" else 1
    parts = _decoded(head, _boxes(head, size, anchors), outputs) or _maps(head, size, outputs)
    counts = set()
    for part in parts:
        if part.role == "classes":
            counts.add(part.rows)
        elif part.role == "all" and head.version == "v5":
            rows, rest = divmod(part.rows, anchors if part.stride else 1)
            counts.add(0 if rest else rows - 5)
        elif part.role == "all":
            counts.add(part.rows - (4 * head.reg_max if part.stride else 4))
    classes = max(counts.pop(), 0) if len(counts) == 1 else 0
    if classes < 1:
        shapes = ", ".join(f"{o.name} {list(o.shape)}" for o in outputs)
        count = _boxes(head, size, _ANCHORS if head.version == "v5" else 1)
        form = "5 + classes" if head.version == "v5" else "4 + classes"
        maps = "one map" if head.version == "v5" else f"a map of {4 * head.reg_max} rows and one of a row a class"
        raise ConfigError(
            f"the outputs {shapes} fit no {head.version} head on {size[0]}x{size[1]}: expected "
            f"[1, {form}, {count}], or {maps} at each of the strides {', '.join(map(str, head.strides))}",
            "the card's [yolo] table says which head the model has",
        )
    if labels and labels != classes:
        raise ConfigError(f"the card names {labels} classes and the model tells {classes} apart", "correct the card")
    if head.version == "v5" and parts[0].stride and not head.anchors:
        raise ConfigError("the maps of a version 5 head need the card's anchors", "state anchors under [yolo]")
    return Layout(head, size, parts, classes)


def _cells(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return -(-size[0] // stride), -(-size[1] // stride)


def _boxes(head: Head, size: tuple[int, int], anchors: int) -> int:
    return sum(anchors * math.prod(_cells(size, stride)) for stride in head.strides)


def _decoded(head: Head, count: int, outputs: Sequence[TensorSpec]) -> tuple[Part, ...]:
    """Returns outputs [1, rows, boxes] or [1, boxes, rows]: one with everything, or boxes and classes apart."""
    flat = [o for o in outputs if len(o.shape) == 3 and o.shape[0] == 1 and count in o.shape[1:]]
    parts = [Part(o, "all", 1 if o.shape[2] == count else 2) for o in flat]
    if len(parts) == 1:
        return tuple(parts)
    if len(parts) == 2 and head.version == "v8" and 4 in {part.rows for part in parts}:
        boxes = next(part for part in parts if part.rows == 4)
        other = next(part for part in parts if part is not boxes)
        return Part(boxes.spec, "boxes", boxes.axis), Part(other.spec, "classes", other.axis)
    return ()


def _maps(head: Head, size: tuple[int, int], outputs: Sequence[TensorSpec]) -> tuple[Part, ...]:
    """Returns the raw maps, finest first: one a stride, or boxes and classes apart; nothing if any is missing."""
    parts: list[Part] = []
    for stride in head.strides:
        cells = _cells(size, stride)
        axes = [(output, _map_axis(output, cells)) for output in outputs]
        maps = [Part(output, "all", axis, stride) for output, axis in axes if axis]
        if len(maps) == 2 and head.version == "v8":
            maps = _roles(head, maps)
        elif len(maps) != 1:
            maps = []
        if not maps:
            return ()
        parts += maps
    return tuple(parts)


def _map_axis(output: TensorSpec, cells: tuple[int, int]) -> int:
    """Returns the axis of a map's channels, or 0 for what is not a map of that many cells."""
    if len(output.shape) != 4 or output.shape[0] != 1:
        return 0
    for axis, layout, sizes in ((1, "NCHW", output.shape[2:]), (3, "NHWC", output.shape[1:3])):
        if sizes == cells and output.layout in ("", layout):
            return axis
    return 0


def _roles(head: Head, maps: Sequence[Part]) -> list[Part]:
    """Returns the two maps of a stride as boxes and classes; of two alike the first, or the one so named, has boxes."""
    wide = [part for part in maps if part.rows == 4 * head.reg_max]
    named = [part for part in wide if part.spec.name.startswith("boxes")]
    if not wide:
        return []
    boxes = (named or wide)[0]
    other = next(part for part in maps if part is not boxes)
    return [
        Part(boxes.spec, "boxes", boxes.axis, boxes.stride),
        Part(other.spec, "classes", other.axis, other.stride),
    ]


@dataclass(frozen=True)
class Candidates:
    """Boxes (x0, y0, x1, y1) in pixels of the input [n, 4], with the score and number of their best class."""

    boxes: Array
    scores: Array
    classes: Array

    def __len__(self) -> int:
        return len(self.scores)


def candidates(
    layout: Layout, outputs: Mapping[str, Array], confidence: float, multi_label: bool = False
) -> Candidates:
    """Returns every box with a score above `confidence`, in the order of the outputs.

    A box has its best class; with `multi_label` it is there once for each class above `confidence`, as the usual
    protocol for COCO has it, and the MOST_LABELS highest scores of all are kept.
    """
    groups: list[tuple[Array, Array]] = []
    for stride, parts in layout.of_stride.items():
        groups += _of_stride(layout, [part.read(outputs) for part in parts], stride, confidence)
    corners, scores = groups[0] if len(groups) == 1 else (np.concatenate(e, 1) for e in zip(*groups, strict=True))
    if multi_label:
        _refuse(bool(np.isnan(scores).any()), "scores")
        _refuse(bool(np.count_nonzero(np.isfinite(corners)) < corners.size), "boxes")
        box, label = np.nonzero(confidence < scores.T)
        peak = scores[label, box]
        if len(peak) > MOST_LABELS:
            first = np.sort(np.argsort(-peak, kind="stable")[:MOST_LABELS])
            box, label, peak = box[first], label[first], peak[first]
        return Candidates(corners.T[box], peak, label)
    best = scores.argmax(0)
    peak = scores[best, np.arange(len(best))]
    if not (least := np.minimum.reduce(peak, initial=math.inf)) > confidence:
        _refuse(math.isnan(least), "scores")
        sure = peak > confidence
        corners, peak, best = corners[:, sure], peak[sure], best[sure]
    _refuse(bool(np.count_nonzero(np.isfinite(corners)) < corners.size), "boxes")
    return Candidates(corners.T, peak, best)


def _refuse(wrong: bool, what: str) -> None:
    if wrong:
        hint = "look for NaN in its weights"
        raise AccuracyError(f"the model gives {what} that are not numbers", f"finite {what}", 0.0, 1.0, hint=hint)


def _of_stride(layout: Layout, rows: list[Rows], stride: int, confidence: float) -> list[tuple[Array, Array]]:
    """Returns corners [4, n] and scores [classes, n] of the boxes in the maps of one stride, or in decoded outputs."""
    if layout.head.version == "v5":
        if stride:
            return _anchored(layout, rows[0], stride, confidence)
        real = rows[0].real(rows[0][4:5].above(confidence))
        return [(_corners(real[:2], real[2:4]), real[4] * real[5:])]
    split = 4 * layout.head.reg_max if stride else 4
    boxes, scores = rows if len(rows) == 2 else (rows[0][:split], rows[0][split:])
    if not stride:
        at = scores.above(confidence)
        real = boxes.real(at)
        return [(_corners(real[:2], real[2:]), scores.columns(at))]
    at = scores.above(_logit(confidence))
    sides = boxes.real(at).reshape(4, layout.head.reg_max, len(at))
    if layout.head.reg_max > 1:  # the distances to the four sides are means of distributions
        weights = np.exp(sides - sides.max(1, keepdims=True))
        bins = np.arange(layout.head.reg_max, dtype=np.float32)
        sides = (weights * bins[:, None]).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
    centre = _places(layout, at, stride) + np.float32(0.5)
    corners = np.concatenate([centre - sides[:2, 0], centre + sides[2:, 0]]) * np.float32(stride)
    return [(corners, _sigmoid(scores.columns(at)))]


def _logit(confidence: float) -> float:
    if 0 < confidence < 1:
        return math.log(confidence / (1 - confidence))
    return -math.inf if confidence <= 0 else math.inf


def _sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -80, 80))), np.float32)


def _corners(centre: Array, sides: Array) -> Array:
    half = sides / 2
    return np.concatenate([centre - half, centre + half])


def _anchored(layout: Layout, rows: Rows, stride: int, confidence: float) -> list[tuple[Array, Array]]:
    """Reads a map of version 5, anchor by anchor: what the objectness rules out is not looked at."""
    groups = []
    anchors = layout.head.anchors[layout.head.strides.index(stride)]
    for index, anchor in enumerate(anchors):
        own = rows[index * (5 + layout.classes) : (index + 1) * (5 + layout.classes)]
        at = own[4:5].above(_logit(confidence))
        real = _sigmoid(own.real(at))
        centre = (real[:2] * 2 - np.float32(0.5) + _places(layout, at, stride)) * np.float32(stride)
        groups.append(
            (_corners(centre, (real[2:4] * 2) ** 2 * np.array(anchor, np.float32)[:, None]), real[4] * real[5:])
        )
    return groups


def _places(layout: Layout, at: Array, stride: int) -> Array:
    """Returns column and row of cells by their numbers."""
    down, across = np.divmod(at, _cells(layout.size, stride)[1])
    return np.stack([across, down]).astype(np.float32)

"""Finds where a YOLO detector ends and the decode of its boxes begins, and cuts there.

Eight bits hold the maps of the last convolutions, but not boxes of 0 to 640 and scores of 0 to 1 under one scale. The
cut is found by structure, never by names: from the output back through reshaping and arithmetic to the convolutions
whose maps have a stride. What lies behind the cut is then executed on random maps and must give what the decode of
version 5 or 8 gives, so that a decode of another kind is refused and not misread. The import proves the same of the
whole detector on the user's samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper

from anynpu.errors import Unsupported
from anynpu.graph.agreement import Disagreement, Feeds, Run, disagreement
from anynpu.graph.fold import needed_nodes
from anynpu.graph.run import Session
from anynpu.graph.shapes import infer, inputs_of, shape_of, tensor_shapes

Role = Literal["boxes", "classes", "maps"]
Floats = NDArray[np.float64]

LOOKED_FOR = (
    "looked for: one image input, and per stride two convolutions (boxes and classes, YOLOv8 and YOLO11) or one "
    "(three anchors, YOLOv5) behind which only the decode of boxes and scores follows"
)
WAY_OUT = 'a card with decode = "model" under [yolo] takes the model as it is'
TOLERANCE = 1e-4
_ANCHORS = 3
_DECODE = """
    Add Cast Concat Conv Div Exp Expand Flatten Gather Identity MatMul Mul Pow ReduceSum Reshape Sigmoid Slice Softmax
    Split Sqrt Squeeze Sub Transpose Unsqueeze"""
_DECODE_OPERATORS = frozenset(_DECODE.split())


@dataclass(frozen=True)
class HeadMap:
    """One map of the head: what it holds and the pixels a cell stands for."""

    tensor: str
    role: Role
    stride: int
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.role}_{self.stride}"


@dataclass(frozen=True)
class DetectorHead:
    """The maps of a detector, finest first, and what its decode says of them."""

    version: Literal["v5", "v8"]
    maps: tuple[HeadMap, ...]
    classes: int
    reg_max: int = 0
    anchors: tuple[tuple[tuple[float, float], ...], ...] = ()
    corners: bool = False
    """Whether the model's own decode gives corners of boxes, not centre and size."""
    of_image: bool = False
    """Whether it gives them as parts of the image, not in pixels."""

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(sorted({m.stride for m in self.maps}))

    @property
    def rows(self) -> int:
        """Rows of the decoded output: the box, its own score in version 5, and the classes."""
        return self.classes + (5 if self.version == "v5" else 4)


def cut_decode(model: ModelProto) -> tuple[ModelProto, DetectorHead]:
    """Returns the detector without its decode, giving the maps of its head, and what these are."""
    head = find_head(model)
    result = ModelProto()
    result.CopyFrom(infer(model, strict=False))
    graph = result.graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    names = {m.tensor: m.name for m in head.maps}
    nodes = needed_nodes(graph.node, set(names))
    produced = {name for node in nodes for name in node.output}
    names |= {name: f"{name}_inner" for name in produced & set(names.values()) - set(names)}
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    read = {name for node in nodes for name in node.input}
    outputs = [helper.make_tensor_value_info(m.name, kinds[m.tensor], m.shape) for m in head.maps]
    inner = [value for value in graph.value_info if value.name in produced - set(names)]
    weights = [tensor for tensor in graph.initializer if tensor.name in read]
    cut = helper.make_graph(nodes, graph.name, inputs_of(result), outputs, weights, value_info=inner)
    graph.CopyFrom(cut)
    return result, head


@dataclass(frozen=True)
class CutDetector:
    """A detector without its decode and the whole one, to be compared on samples."""

    whole: ModelProto
    cut: ModelProto
    head: DetectorHead

    def disagreement(self, run: Run, feeds: Sequence[Feeds]) -> Disagreement | None:
        """Returns where the host's decode of the maps gives other boxes or scores than the whole detector.

        `run` computes the outputs of the whole one. Boxes and scores are compared apart: next to hundreds of pixels no
        error of a score would show.
        """
        output, image = _decoded_output(self.whole), _image_size(self.whole)
        place = [value.name for value in self.whole.graph.output].index(output)
        session = Session(self.cut)
        names = [value.name for value in self.cut.graph.output]

        def by_model(feed: Feeds) -> list[Floats]:
            rows = np.asarray(run(feed)[place][0], np.float64)
            rows = rows if rows.shape[0] == self.head.rows else rows.T
            return [rows[:4], rows[4:]]

        def by_host(feed: Feeds) -> list[Floats]:
            maps = zip(names, session.run(feed), strict=True)
            rows = decode(self.head, {name: np.asarray(values, np.float64) for name, values in maps})
            return [_as_model(self.head, rows, image), rows[4:]]

        return disagreement([f"{output} (boxes)", f"{output} (scores)"], by_model, by_host, feeds)

    def refusal(self, difference: Disagreement) -> Unsupported:
        """Returns the error for a decode that is the host's on random maps and not on these samples."""
        return _unknown(f"its decode is not the one of {self.head.version}: the host's differs in {difference}")


def _as_model(head: DetectorHead, rows: Floats, image: tuple[int, int]) -> Floats:
    """Returns the host's boxes in the form that the model's own decode gives them in."""
    centre, size = rows[:2], rows[2:4]
    boxes = np.concatenate([centre - size / 2, centre + size / 2]) if head.corners else rows[:4]
    sides = np.array([image[1], image[0], image[1], image[0]], np.float64)[:, None]
    return boxes / sides if head.of_image else boxes


def find_head(model: ModelProto) -> DetectorHead:
    """Returns the maps that the decode of a detector begins with; anything else is Unsupported."""
    image = _image_size(model)
    output = _decoded_output(model)
    shapes = tensor_shapes(model)
    by_map, nodes = _walk_back(model, output, shapes, image)
    strides = sorted(set(by_map.values()))
    per_stride = [[name for name, stride in by_map.items() if stride == s] for s in strides]
    counts = {len(names) for names in per_stride}
    if counts not in ({1}, {2}):
        listed = ", ".join(f"{len(n)} of stride {s}" for s, n in zip(strides, per_stride, strict=True)) or "none"
        raise _unknown(f"the convolutions before its output are {listed}")
    tail = _Tail(model, nodes, {name: shapes[name] for name in by_map}, output)
    return (_anchor_free if counts == {2} else _anchor_based)(tail, strides, per_stride, image)


def _unknown(what: str) -> Unsupported:
    return Unsupported(f"this is not a detector whose decode can be cut off: {what}; {LOOKED_FOR}", hint=WAY_OUT)


def _image_size(model: ModelProto) -> tuple[int, int]:
    inputs = inputs_of(model)
    dims = shape_of(inputs[0]) if len(inputs) == 1 else ()
    if len(dims) != 4 or dims[0] != 1:
        raise _unknown(f"its inputs are {', '.join(f'{v.name} {list(shape_of(v))}' for v in inputs)}")
    return int(dims[2]), int(dims[3])


def _decoded_output(model: ModelProto) -> str:
    """Returns the one output [1, rows, boxes] or [1, boxes, rows]; exports of version 5 give raw maps as well."""
    names = [value.name for value in model.graph.output if len(shape_of(value)) == 3]
    shown = ", ".join(f"{v.name} {list(shape_of(v))}" for v in model.graph.output)
    if len(names) != 1 or any(len(shape_of(v)) not in (3, 5) for v in model.graph.output):
        raise _unknown(f"its outputs are {shown}")
    return str(names[0])


def _walk_back(
    model: ModelProto, output: str, shapes: Mapping[str, tuple[int, ...]], image: tuple[int, int]
) -> tuple[dict[str, int], list[NodeProto]]:
    """Returns the maps the decode begins with, each with its stride, and the nodes behind them in order."""
    made_by = {name: node for node in model.graph.node for name in node.output}
    # The tensors that depend on the input
    variable = {value.name for value in inputs_of(model)}
    for node in model.graph.node:
        if variable & {*node.input}:
            variable |= {*node.output}
    maps: dict[str, int] = {}
    seen: set[str] = set()
    waiting = [output]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in variable:
            continue
        seen.add(name)
        if name not in made_by:
            raise _unknown("its input reaches the decode without a convolution")
        node = made_by[name]
        stride = _stride(shapes.get(name, ()), image) if node.op_type == "Conv" else 0
        if stride:
            maps[name] = stride
        elif node.op_type not in _DECODE_OPERATORS:
            raise _unknown(f"operator {node.op_type} ({node.name or name}) is not part of a decode")
        else:
            waiting += node.input
    ordered = dict(sorted(maps.items(), key=lambda item: item[1]))
    return ordered, needed_nodes(model.graph.node, {output}, set(maps))


def _stride(shape: tuple[int, ...], image: tuple[int, int]) -> int:
    """Returns how many pixels a cell of the map is wide and high, or 0 for what is not a map of the image."""
    if len(shape) != 4 or image[0] % shape[2] or image[1] % shape[3]:
        return 0
    stride = image[0] // shape[2]
    return stride if stride == image[1] // shape[3] and stride > 1 else 0


class _Tail:
    """The decode by itself: maps in, rows by boxes out."""

    def __init__(
        self, model: ModelProto, nodes: Sequence[NodeProto], maps: Mapping[str, tuple[int, ...]], output: str
    ) -> None:
        self.shapes = maps
        read = {name for node in nodes for name in node.input}
        values = {v.name: v for v in (*infer(model, strict=False).graph.value_info, *model.graph.output)}
        kind = values[next(iter(maps))].type.tensor_type.elem_type
        graph = helper.make_graph(
            nodes,
            "decode",
            [helper.make_tensor_value_info(name, kind, shape) for name, shape in maps.items()],
            [values[output]],
            [tensor for tensor in model.graph.initializer if tensor.name in read],
        )
        self._dtype = helper.tensor_dtype_to_np_dtype(kind)
        self._session = Session(helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version))

    def run(self, maps: Mapping[str, Floats], boxes: int) -> Floats:
        """Returns the decoded output as (rows, boxes)."""
        result = self._session.run({name: np.asarray(maps[name], self._dtype) for name in self.shapes})[0]
        rows = np.asarray(result[0], np.float64)
        if boxes not in rows.shape:
            raise _unknown(f"its output has the shape {list(result.shape)} and its maps have {boxes} boxes")
        return rows if rows.shape[1] == boxes else rows.T

    def random(self, seed: int) -> dict[str, Floats]:
        random = np.random.default_rng(seed)
        return {name: random.normal(0.0, 2.0, shape) for name, shape in self.shapes.items()}

    def zeros(self) -> dict[str, Floats]:
        return {name: np.zeros(shape) for name, shape in self.shapes.items()}


def _anchor_free(
    tail: _Tail, strides: Sequence[int], names: Sequence[Sequence[str]], image: tuple[int, int]
) -> DetectorHead:
    boxes = sum(tail.shapes[n[0]][2] * tail.shapes[n[0]][3] for n in names)
    base = tail.run(tail.zeros(), boxes)
    maps: list[HeadMap] = []
    for stride, pair in zip(strides, names, strict=True):
        # The rows of the output that change with a map tell what it is for.
        changed = {name: tail.run(tail.zeros() | {name: tail.random(1)[name]}, base.shape[1]) != base for name in pair}
        roles: dict[Role, str] = {}
        for name, rows in changed.items():
            if rows[:4].any() != rows[4:].any():
                roles["boxes" if rows[:4].any() else "classes"] = name
        if set(roles) != {"boxes", "classes"}:
            raise _unknown(f"at stride {stride} it has no two maps of which one moves boxes and one moves scores")
        maps += [HeadMap(roles[role], role, stride, tail.shapes[roles[role]]) for role in ("boxes", "classes")]
    widths = {role: {m.shape[1] for m in maps if m.role == role} for role in ("boxes", "classes")}
    sides, classes = min(widths["boxes"]), base.shape[0] - 4
    if len(widths["boxes"]) > 1 or sides % 4 or widths["classes"] != {classes}:
        raise _unknown(f"its maps have {sorted(widths['boxes'])} box and {sorted(widths['classes'])} class channels")
    return _proved(tail, DetectorHead("v8", tuple(maps), classes, sides // 4), boxes, image)


def _anchor_based(
    tail: _Tail, strides: Sequence[int], names: Sequence[Sequence[str]], image: tuple[int, int]
) -> DetectorHead:
    maps = tuple(HeadMap(n[0], "maps", s, tail.shapes[n[0]]) for s, n in zip(strides, names, strict=True))
    cells = [m.shape[2] * m.shape[3] for m in maps]
    boxes = _ANCHORS * sum(cells)
    base = tail.run(tail.zeros(), boxes)
    if {m.shape[1] for m in maps} != {_ANCHORS * base.shape[0]} or base.shape[0] < 6:
        raise _unknown(f"its maps have {[m.shape[1] for m in maps]} channels and its output {base.shape[0]} rows")
    # Maps of zeros give every box the size of its anchor.
    anchors, start = [], 0
    for count in cells:
        rows = base[2:4, start : start + _ANCHORS * count : count]
        anchors.append(tuple((round(float(w), 4), round(float(h), 4)) for w, h in rows.T))
        start += _ANCHORS * count
    return _proved(tail, DetectorHead("v5", maps, base.shape[0] - 5, anchors=tuple(anchors)), boxes, image)


def _proved(tail: _Tail, head: DetectorHead, boxes: int, image: tuple[int, int]) -> DetectorHead:
    """Returns the head with the form of its boxes; raises unless the model decodes random maps as the host will."""
    maps = tail.random(2)
    got = tail.run(maps, boxes)
    wanted = decode(head, {m.name: maps[m.tensor] for m in head.maps})
    # Some exports give corners, and some divide by the size of the image: the host's boxes are the same.
    heads = [
        replace(head, corners=corners, of_image=of_image) for corners in (False, True) for of_image in (False, True)
    ]
    forms = [_as_model(each, wanted, image) for each in heads]
    errors = [float(np.abs(got[:4] - form).max() / np.abs(form).max()) for form in forms]
    if max(min(errors), float(np.abs(got[4:] - wanted[4:]).max())) > TOLERANCE:
        raise _unknown(f"its decode of boxes or scores is not the one of {head.version}")
    return heads[errors.index(min(errors))]


def decode(head: DetectorHead, maps: Mapping[str, Floats]) -> Floats:
    """Returns (rows, boxes) of the maps by their names: centre x, y, width, height in pixels, then the scores."""
    if head.version == "v5":
        anchors = zip(head.strides, head.anchors, strict=True)
        return np.concatenate([_anchored(maps[f"maps_{s}"], s, a) for s, a in anchors], 1)
    parts = []
    for s in head.strides:
        boxes = maps[f"boxes_{s}"]
        classes = maps[f"classes_{s}"]
        bins = boxes[0].reshape(4, head.reg_max, -1)
        spread = np.exp(bins - bins.max(1, keepdims=True))
        sides = np.einsum("sbn,b->sn", spread / spread.sum(1, keepdims=True), np.arange(head.reg_max))
        if head.reg_max == 1:
            sides = boxes[0].reshape(4, -1)
        centre = _cells(*boxes.shape[2:]) + 0.5
        low, high = centre - sides[:2], centre + sides[2:]
        scores = _sigmoid(classes[0].reshape(classes.shape[1], -1))
        parts.append(np.concatenate([(low + high) / 2 * s, (high - low) * s, scores]))
    return np.concatenate(parts, 1)


def _sigmoid(values: Floats) -> Floats:
    with np.errstate(over="ignore"):  # infinity gives the 0 that it should
        return np.asarray(1.0 / (1.0 + np.exp(-values)))


def _cells(height: int, width: int) -> Floats:
    """Returns x and y of every cell, row by row."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x.ravel(), y.ravel()]).astype(np.float64)


def _anchored(maps: Floats, stride: int, anchors: Sequence[tuple[float, float]]) -> Floats:
    height, width = maps.shape[2:]
    values = _sigmoid(maps[0].reshape(len(anchors), -1, height * width))
    cells = _cells(height, width)
    parts = [
        np.concatenate([(v[:2] * 2 + cells - 0.5) * stride, (v[2:4] * 2) ** 2 * np.array(a)[:, None], v[4:]])
        for v, a in zip(values, anchors, strict=True)
    ]
    return np.concatenate(parts, 1)

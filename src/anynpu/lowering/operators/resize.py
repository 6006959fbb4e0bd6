"""Resizing of images, and moves between depth and space."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from anynpu.lowering.graph import int32
from anynpu.lowering.lower import CHANNELS_LAST, Lowering, View
from anynpu.lowering.operators.linear import dense
from anynpu.lowering.options import DepthToSpace, Gather, Options, ResizeBilinear, ResizeNearestNeighbor, SpaceToDepth
from anynpu.lowering.table import Node, Refused, operator, required


@operator("Resize", "Upsample")
def resize(at: Lowering, node: Node) -> None:
    """RESIZE_NEAREST_NEIGHBOR or RESIZE_BILINEAR where TFLite samples as ONNX does, otherwise FULLY_CONNECTED."""
    place = 2 if node.op == "Resize" and len(node.inputs) > 2 else 1
    if node.input(place) and not node.input(3):
        required(at.constant(node.input(place)), "the scale")  # the sizes do not say it: their ratio is rounded
    try:
        _by_sampling(at, node)
    except Refused:
        # One axis after the other: what each element takes from those along its axis is a constant matrix
        name = node.input(0)
        before, after = at.shape(name), at.shape(node.output)
        axes, tensor = at.axes(name), at.stored(name, at.axes(name))
        for axis in (number for number in range(len(before)) if before[number] != after[number]):
            order = (*(each for each in axes if each != axis), axis)
            at.views[f"{node.output}/{axis}"] = View(tensor, axes)
            tensor = dense(at, at.stored(f"{node.output}/{axis}", order), _matrix(at, node, axis), None, node.output)
            axes = order
        at.give(node.output, tensor, axes)


def _matrix(at: Lowering, node: Node, axis: int) -> np.ndarray:
    """Returns the weights (out, in) of a resize along one axis: ONNX's own reference resizes each unit vector."""
    from onnx.reference import ReferenceEvaluator

    before, after = at.shape(node.input(0))[axis], at.shape(node.output)[axis]
    settings = dict(node.attributes)
    if node.op == "Upsample":
        settings = {"mode": settings.get("mode", "nearest"), "coordinate_transformation_mode": "asymmetric",
                    "nearest_mode": "floor"}  # fmt: skip
    if settings.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise Refused("tf_crop_and_resize has no TFLite operator")
    over = settings.pop("axes", None) or list(range(at.rank(node.input(0))))
    settings.pop("keep_aspect_ratio_policy", None)
    place = 2 if node.op == "Resize" and len(node.inputs) > 2 else 1
    scales = at.constant(node.input(place)) if node.input(place) and not node.input(3) else None
    # Between corners, ONNX Runtime goes by the whole size, and ONNX's reference by the scale.
    corners = settings.get("coordinate_transformation_mode") == "align_corners"
    by_scale = scales is not None and scales.size and not corners
    ratio = float(scales.reshape(-1)[list(over).index(axis)]) if by_scale and scales is not None else after / before
    inputs = ["x", "", "s"] if by_scale else ["x", "", "", "z"]
    only = helper.make_node("Resize", inputs, ["y"], axes=[1], **settings)
    unknown = [helper.make_value_info(each, onnx.TypeProto()) for each in (*filter(None, inputs), "y")]
    graph = helper.make_graph([only], "resize", unknown[:-1], unknown[-1:])
    single = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    feeds = {"s": np.asarray([ratio], np.float32)} if by_scale else {"z": np.asarray([after], np.int64)}
    (weights,) = ReferenceEvaluator(single).run(None, {"x": np.eye(before, dtype=np.float32), **feeds})
    return np.ascontiguousarray(np.asarray(weights, np.float32).T)


def _by_sampling(at: Lowering, node: Node) -> None:
    name = node.input(0)
    before, after = at.shape(name), at.shape(node.output)
    if len(before) != 4 or before[:2] != after[:2]:
        raise Refused("only the two spatial axes of an image can be resized")
    tensor = at.stored(name, CHANNELS_LAST[4])
    if before == after:
        at.give(node.output, tensor, CHANNELS_LAST[4])
        return
    _require_ratio(at, node, before, after)
    mode = node.get("mode", "nearest")
    where = node.get("coordinate_transformation_mode", "half_pixel" if node.op == "Resize" else "asymmetric")
    if mode == "nearest":
        kind, options = "RESIZE_NEAREST_NEIGHBOR", _nearest(before[2:], after[2:], where, node)
    elif mode == "linear":
        kind, options = "RESIZE_BILINEAR", _bilinear(before[2:], after[2:], where, node)
    else:
        raise Refused(f"mode {mode} has no TFLite operator")
    size = at.store(int32(after[2:]), "size")
    shape = (after[0], *after[2:], after[1])
    at.give(node.output, at.emit(kind, (tensor, size), shape, options, node.output), CHANNELS_LAST[4])


def _require_ratio(at: Lowering, node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Refuses scales that do not give a whole size: ONNX takes samples by the scale, TFLite by the sizes."""
    place = 2 if node.op == "Resize" and len(node.inputs) > 2 else 1
    scales = required(at.constant(node.input(place)), "the scale") if node.input(place) else None
    if scales is None or scales.size == 0 or node.input(3):
        return
    if node.get("coordinate_transformation_mode") == "align_corners":
        return  # the corners say where samples lie
    axes = node.integers("axes", list(range(len(before))))
    for axis, scale in zip(axes, scales.reshape(-1), strict=True):
        if abs(before[axis] * float(scale) - after[axis]) > 1e-3:
            raise Refused(f"a scale of {float(scale):g} of {before[axis]} is not a whole size")


def _nearest(before: tuple[int, ...], after: tuple[int, ...], where: str, node: Node) -> Options:
    rounding = node.get("nearest_mode", "round_prefer_floor" if node.op == "Resize" else "floor")
    wanted = [_onnx_places(a, b, where, rounding) for a, b in zip(before, after, strict=True)]
    for align, half in ((False, False), (False, True), (True, False)):
        picked = []
        for a, b in zip(before, after, strict=True):
            at = np.arange(b, dtype=np.float32)
            scale = np.float32((a - 1) / (b - 1)) if align and b > 1 else np.float32(a / b)
            at = (at + np.float32(0.5 if half else 0.0)) * scale
            chosen = np.floor(at + 0.5) if align else np.floor(at)
            picked.append(np.asarray(np.clip(chosen, 0, a - 1), np.int64))
        if all(np.array_equal(a, b) for a, b in zip(wanted, picked, strict=True)):
            return ResizeNearestNeighbor(align, half)
    raise Refused(f"nearest with {where} and {rounding} takes other elements than TFLite")


def _onnx_places(before: int, after: int, where: str, rounding: str) -> np.ndarray:
    """Returns the element that ONNX takes for each of the result."""
    at = np.arange(after, dtype=np.float64)
    scale = after / before
    if where in ("half_pixel", "pytorch_half_pixel"):
        at = (at + 0.5) / scale - 0.5 if after > 1 or where == "half_pixel" else at * 0
    elif where == "align_corners":
        at = at * (before - 1) / max(after - 1, 1)
    elif where == "asymmetric":
        at = at / scale
    else:
        raise Refused(f"{where} has no TFLite operator")
    rounded = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
    }[rounding]
    return np.asarray(np.clip(rounded, 0, before - 1), np.int64)


def _bilinear(before: tuple[int, ...], after: tuple[int, ...], where: str, node: Node) -> Options:
    if int(node.get("antialias", 0)) and any(b < a for a, b in zip(before, after, strict=True)):
        raise Refused("antialiasing has no TFLite operator")
    if where == "pytorch_half_pixel" and 1 in after:
        raise Refused(f"{where} to one element has no TFLite operator")
    options = {
        "half_pixel": ResizeBilinear(False, True),
        "pytorch_half_pixel": ResizeBilinear(False, True),
        "align_corners": ResizeBilinear(True, False),
        "asymmetric": ResizeBilinear(False, False),
    }.get(where)
    if options is None:
        raise Refused(f"{where} has no TFLite operator")
    return options


@operator("DepthToSpace")
def depth_to_space(at: Lowering, node: Node) -> None:
    """DEPTH_TO_SPACE; ONNX's CRD order first brings the channels into TFLite's."""
    tensor = at.stored(node.input(0), CHANNELS_LAST[4])
    block = int(node.attributes["blocksize"])
    batch, height, width, channels = at.tensors[tensor].shape
    if node.get("mode", "DCR") == "CRD":
        order = np.arange(channels).reshape(-1, block * block).T.reshape(-1)
        tensor = at.emit("GATHER", (tensor, at.store(int32(order), "order")), (batch, height, width, channels),
                         Gather(3), node.input(0))  # fmt: skip
    shape = (batch, height * block, width * block, channels // block**2)
    result = at.emit("DEPTH_TO_SPACE", (tensor,), shape, DepthToSpace(block), node.output)
    at.give(node.output, result, CHANNELS_LAST[4])


@operator("SpaceToDepth")
def space_to_depth(at: Lowering, node: Node) -> None:
    """SPACE_TO_DEPTH: ONNX and TFLite number the channels alike."""
    if node.get("mode", "DCR") != "DCR":
        raise Refused("mode CRD numbers the channels otherwise than TFLite")
    tensor = at.stored(node.input(0), CHANNELS_LAST[4])
    block = int(node.attributes["blocksize"])
    batch, height, width, channels = at.tensors[tensor].shape
    shape = (batch, height // block, width // block, channels * block**2)
    result = at.emit("SPACE_TO_DEPTH", (tensor,), shape, SpaceToDepth(block), node.output)
    at.give(node.output, result, CHANNELS_LAST[4])

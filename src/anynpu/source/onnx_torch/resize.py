"""Resizing of feature maps, where torch samples at exactly the places that ONNX asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anynpu.source.onnx_torch.table import Node, Refused, front, operator

ROUNDING: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@operator("Resize")
def resize(node: Node, x: Tensor, *operands: Tensor | None) -> Tensor:
    """Nearest, linear or cubic resizing of the spatial dimensions, for the coordinate modes that torch has exactly."""
    node.only("keep_aspect_ratio_policy", "stretch")
    node.only("antialias", 0)
    node.only("exclude_outside", 0)
    old, (new, scales) = node.shape(), _target(node)
    dims = len(old) - 2
    if dims not in (1, 2, 3) or new[:2] != list(old[:2]):
        raise Refused("Resize of the batch or channel dimension is not supported")
    if new == list(old) and all(scale == 1 for scale in scales):
        return x
    mode = node.get("mode", "nearest")
    sides = list(zip(old[2:], new[2:], scales[2:], strict=True))
    if mode == "nearest":
        return F.interpolate(x, size=new[2:], mode=_nearest(node, sides))
    if mode == "cubic" and (dims != 2 or abs(node.get("cubic_coeff_a", -0.75) + 0.75) > 1e-6):
        raise Refused("Resize with mode=cubic is exact only in two dimensions with cubic_coeff_a=-0.75")
    name = "bicubic" if mode == "cubic" else ("linear", "bilinear", "trilinear")[dims - 1]
    corners, by_scale = _between(node, sides, clamp=mode == "linear")
    if by_scale:
        return F.interpolate(x, scale_factor=scales[2:], mode=name, align_corners=corners)
    return F.interpolate(x, size=new[2:], mode=name, align_corners=corners)


def _target(node: Node) -> tuple[list[int], list[float]]:
    """Returns the new size and the scale of every dimension."""
    old = node.shape()
    axes = [front(axis, len(old)) for axis in node.get("axes", range(len(old)))]
    new, scales = list(old), [1.0] * len(old)
    by_size = node.has(3) and node.array(3).size
    numbers = node.array(3 if by_size else 2).reshape(-1)
    for axis, amount in zip(axes, numbers, strict=True):
        scales[axis] = float(amount) / old[axis] if by_size else float(amount)
        new[axis] = int(amount) if by_size else int(np.floor(old[axis] * np.float32(amount)))
    return new, scales


def _places(mode: str, old: int, new: int, scale: float) -> NDArray[np.float64]:
    """The place in the old dimension that each new element is read at."""
    at = np.arange(new, dtype=np.float64)
    if mode == "asymmetric":
        return at / scale
    if mode == "align_corners":
        return at * (old - 1) / (new - 1) if new > 1 else np.zeros(1)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and new > 1):
        return (at + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        offset = old / 2 * (1 - new / (old * scale))
        return offset + (at + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return np.zeros(1)
    raise Refused(f"Resize with coordinate_transformation_mode={mode} has no exact equivalent in torch")


def _nearest(node: Node, sides: list[tuple[int, int, float]]) -> str:
    """Returns the nearest mode of torch that picks the same element everywhere."""
    mode = node.get("coordinate_transformation_mode", "half_pixel")
    rounding = ROUNDING[node.get("nearest_mode", "round_prefer_floor")]
    possible = {"nearest": 0.0, "nearest-exact": 0.5}
    for old, new, scale in sides:
        wanted = np.clip(rounding(_places(mode, old, new, scale)), 0, old - 1)
        for name, shift in list(possible.items()):
            # torch computes in single precision, which decides ties
            at = (np.arange(new, dtype=np.float32) + np.float32(shift)) * np.float32(old / new)
            if not np.array_equal(wanted, np.clip(np.floor(at), 0, old - 1)):
                del possible[name]
    if not possible:
        raise Refused(f"Resize to the nearest element with {mode} places at this size has no exact equivalent in torch")
    return next(iter(possible))


def _between(node: Node, sides: list[tuple[int, int, float]], clamp: bool) -> tuple[bool, bool]:
    """Returns align_corners and whether to pass scales instead of sizes, so that torch reads at the same places."""
    mode = node.get("coordinate_transformation_mode", "half_pixel")
    for corners, by_scale in ((False, False), (True, False), (False, True)):
        name = "align_corners" if corners else "half_pixel"
        if all(_same_places(mode, name, side, by_scale, clamp) for side in sides):
            return corners, by_scale
    raise Refused(f"Resize between elements with {mode} places at this size has no exact equivalent in torch")


def _same_places(mode: str, other: str, side: tuple[int, int, float], by_scale: bool, clamp: bool) -> bool:
    old, new, scale = side
    wanted, got = _places(mode, old, new, scale), _places(other, old, new, scale if by_scale else new / old)
    # torch copies a dimension that keeps its size, whatever the scale says.
    if by_scale and (int(np.floor(old * scale)) != new or (new == old and scale != 1)):
        return False
    if clamp:
        wanted, got = np.clip(wanted, 0, old - 1), np.clip(got, 0, old - 1)
    return bool(np.allclose(wanted, got, rtol=0, atol=1e-5))

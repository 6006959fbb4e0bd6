"""Strided boxes: shapes and strides of arrays, merged where axes lie behind one another."""

from __future__ import annotations

from collections.abc import Sequence

from anynpu.firmware.generator.layer import MAX_RANK, require


def strides(shape: Sequence[int], item: int = 1) -> list[int]:
    """Returns the strides of a contiguous array."""
    steps = [item] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        steps[axis] = steps[axis + 1] * shape[axis + 1]
    return steps


def merged(sizes: Sequence[int], *walks: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Returns the same walk with axes of size one left out and axes that continue one another joined."""
    out: list[int] = []
    steps: list[list[int]] = [[] for _ in walks]
    for axis in range(len(sizes)):
        if sizes[axis] == 1:
            continue
        if out and all(s[-1] == walk[axis] * sizes[axis] for s, walk in zip(steps, walks, strict=True)):
            out[-1] *= sizes[axis]
            for s, walk in zip(steps, walks, strict=True):
                s[-1] = walk[axis]
            continue
        out.append(sizes[axis])
        for s, walk in zip(steps, walks, strict=True):
            s.append(walk[axis])
    return out, steps


def filled(sizes: Sequence[int], walks: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Returns sizes and strides with MAX_RANK axes, ones and zeros in front."""
    missing = MAX_RANK - len(sizes)
    require(missing >= 0, f"has more than {MAX_RANK} axes")
    return (1,) * missing + tuple(sizes), [(0,) * missing + tuple(w) for w in walks]


def broadcast_strides(shape: Sequence[int], out: Sequence[int]) -> list[int]:
    """Returns the strides that walk `shape` as if it were `out`: 0 along the axes that are repeated."""
    padded = [1] * (len(out) - len(shape)) + list(shape)
    require(all(p in (1, o) for p, o in zip(padded, out, strict=True)), "has shapes that do not broadcast")
    return [0 if p == 1 else s for p, s in zip(padded, strides(padded), strict=True)]
